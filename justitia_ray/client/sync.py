"""Synchronous client: `JustitiaClient` and `Application` on an event loop in a thread.

Its methods take the same arguments as the asynchronous methods, and block until the result has
arrived.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from contextlib import suppress
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from justitia_ray.client.calls import Completion
from justitia_ray.client.client import Application, JustitiaClient, Messages, fan_out
from justitia_ray.units import ApplicationId, KvTokenTime, VirtualTime

T = TypeVar("T")
P = ParamSpec("P")
Inner = TypeVar("Inner", JustitiaClient, Application)


class _LoopThread(threading.Thread):
    """Thread that runs the event loop of a synchronous client."""

    def __init__(self) -> None:
        super().__init__(name="justitia-client", daemon=True)
        self.loop = asyncio.new_event_loop()
        self.start()

    def run(self) -> None:
        # On exit, the runner cancels open streams and calls whose callers are gone.
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.get_loop().run_forever()


class _SyncWrapper(Generic[Inner]):
    """Base class that wraps an asynchronous object and runs its coroutines on the client's loop."""

    def __init__(self, inner: Inner, thread: _LoopThread) -> None:
        self._inner: Inner = inner
        self._thread = thread

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the client's event loop and return its result.

        An interrupt of the waiting thread (Ctrl-C) cancels the coroutine.

        Raises:
            RuntimeError: If the client is closed.
        """
        if not self._thread.is_alive():
            work.close()
            raise RuntimeError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._thread.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


def _blocking(
    method: Callable[Concatenate[Inner, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_SyncWrapper[Inner], P], T]:
    """Return a blocking version of a coroutine method of the wrapped object."""

    @wraps(method)
    def call(self: _SyncWrapper[Inner], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.run(method(self._inner, *args, **kwargs))

    return call


def _blocking_generator(
    method: Callable[Concatenate[Inner, P], AsyncGenerator[T]],
) -> Callable[Concatenate[_SyncWrapper[Inner], P], Generator[T]]:
    """Return a blocking version of an asynchronous generator method of the wrapped object.

    Closing the generator, or leaving its loop, closes the asynchronous one.
    """

    @wraps(method)
    def call(self: _SyncWrapper[Inner], /, *args: P.args, **kwargs: P.kwargs) -> Generator[T]:
        stream = method(self._inner, *args, **kwargs)

        async def next_item() -> tuple[T] | None:
            async for item in stream:
                return (item,)
            return None

        try:
            while (found := self.run(next_item())) is not None:
                yield found[0]
        finally:
            # The stream may have ended already, if the client was closed or a step was interrupted.
            with suppress(RuntimeError):
                self.run(stream.aclose())

    return call


def _sync_constructor(
    make: Callable[P, JustitiaClient],
) -> Callable[Concatenate[type[SyncClient], P], SyncClient]:
    """Wrap a constructor of `JustitiaClient` so that it returns a `SyncClient`."""

    @wraps(getattr(make, "__func__", make))  # an unbound function: `call` passes its class
    def call(cls: type[SyncClient], /, *args: P.args, **kwargs: P.kwargs) -> SyncClient:
        return cls(lambda: make(*args, **kwargs))

    return call


def _sync_application(
    method: Callable[Concatenate[JustitiaClient, P], Application],
) -> Callable[Concatenate[SyncClient, P], SyncApplication]:
    """Wrap a method that returns an `Application` so that it returns a `SyncApplication`."""

    @wraps(method)
    def call(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> SyncApplication:
        return SyncApplication(method(self._inner, *args, **kwargs), self._thread)

    return call


class SyncApplication(_SyncWrapper[Application]):
    """Application for synchronous code, created by `SyncClient.application`; see `Application`."""

    status = _blocking(Application.status)
    chat = _blocking(Application.chat)
    complete = _blocking(Application.complete)
    chat_stream = _blocking_generator(Application.chat_stream)

    def __enter__(self) -> Self:
        """Open the application at the service; see `Application`."""
        self.run(self._inner.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the application, or cancel it if its agent failed; see `Application`."""
        self.run(self._inner.__aexit__(kind, error, traceback))

    @property
    def application_id(self) -> ApplicationId:
        """Id of the application, chosen by the caller or by the service."""
        return self._inner.application_id

    @property
    def predicted_kv_token_time(self) -> KvTokenTime | None:
        """Predicted cost of the whole application, in token·iterations."""
        return self._inner.predicted_kv_token_time

    @property
    def virtual_finish_time(self) -> VirtualTime | None:
        """Virtual finish time F of the application; None if the policy has no virtual time."""
        return self._inner.virtual_finish_time

    def chat_many(self, conversations: Iterable[Messages], **fields: Any) -> list[Completion]:
        """Run one inference on each conversation, concurrently; return the answers in order.

        The first failure cancels the other inferences and is raised. Arguments and errors are those
        of `Application.chat`.
        """
        chat = self._inner.chat
        return self.run(fan_out(chat(messages, **fields) for messages in conversations))


class SyncClient(_SyncWrapper[JustitiaClient]):
    """Client for synchronous code, which threads may share; see `JustitiaClient`.

    ```
    with SyncClient.connect("http://localhost:8000") as client:
        with client.application("MRS", input=document) as app:
            parts = app.chat_many(prompts, max_tokens=200)
    ```

    Args:
        make_client: Creates the asynchronous client that makes the calls.

    Raises:
        ConfigError: If `make_client` raises it.
    """

    connect = classmethod(_sync_constructor(JustitiaClient.connect))
    from_handle = classmethod(_sync_constructor(JustitiaClient.from_handle))
    application = _sync_application(JustitiaClient.application)
    models = _blocking(JustitiaClient.models)
    default_model = _blocking(JustitiaClient.default_model)
    find_application = _blocking(JustitiaClient.find_application)
    list_applications = _blocking(JustitiaClient.list_applications)

    def __init__(self, make_client: Callable[[], JustitiaClient]) -> None:
        super().__init__(make_client(), _LoopThread())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections of the client and end its thread. Calling it twice is safe."""
        if self._thread.is_alive():
            self.run(self._inner.aclose())
            self._thread.loop.call_soon_threadsafe(self._thread.loop.stop)
            self._thread.join()
