"""The client for code that does not use asyncio: the same surface, on a loop in a thread."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from justitia_ray.client.calls import Completion
from justitia_ray.client.client import Application, JustitiaClient, Messages, fan_out
from justitia_ray.units import ApplicationId, KvTokenTime, Seconds, Tokens, VirtualTime

T = TypeVar("T")


class SyncClient:
    """`JustitiaClient` for synchronous code; its threads may share one.

    ```
    with SyncClient.connect("http://localhost:8000") as client:
        with client.application("MRS", input=document) as app:
            parts = app.chat_many(prompts, max_tokens=200)
    ```

    Args:
        make_client: Makes the client that does the work.

    Raises:
        ConfigError: As `make_client` does.
    """

    def __init__(self, make_client: Callable[[], JustitiaClient]) -> None:
        self._client = make_client()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="justitia-client", daemon=True)
        self._thread.start()

    @classmethod
    def connect(
        cls,
        base_url: str,
        *,
        model: str | None = None,
        tenant: str | None = None,
        max_retries: int = 2,
        headers: Mapping[str, str] | None = None,
        api_key: str | None = None,
    ) -> Self:
        """Return a client that reaches the service over HTTP; see `JustitiaClient.connect`."""
        return cls(
            lambda: JustitiaClient.connect(
                base_url,
                model=model,
                tenant=tenant,
                max_retries=max_retries,
                headers=headers,
                api_key=api_key,
            )
        )

    @classmethod
    def from_handle(
        cls,
        handle: Any,
        *,
        model: str | None = None,
        tenant: str | None = None,
        max_retries: int = 2,
    ) -> Self:
        """Return a client that reaches the service over a Serve handle of its Ingress."""
        return cls(
            lambda: JustitiaClient.from_handle(
                handle, model=model, tenant=tenant, max_retries=max_retries
            )
        )

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
        """Give back every connection and end the thread. Safe to call twice."""
        if self._thread.is_alive():
            self.run(self._client.aclose())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def application(
        self,
        application_class: str,
        *,
        input: str,
        tenant: str | None = None,
        weight: float | None = None,
        application_id: ApplicationId | None = None,
        model: str | None = None,
        deadline_s: Seconds | None = None,
    ) -> "SyncApplication":
        """Return an application, to be entered with `with`; see `JustitiaClient.application`."""
        return SyncApplication(
            self,
            self._client.application(
                application_class,
                input=input,
                tenant=tenant,
                weight=weight,
                application_id=application_id,
                model=model,
                deadline_s=deadline_s,
            ),
        )

    def models(self) -> tuple[str, ...]:
        """Return the names of the models that the service has; see `JustitiaClient.models`."""
        return self.run(self._client.models())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the client's loop and return its result.

        An interrupt of the waiting thread (Ctrl-C) cancels the coroutine.

        Raises:
            RuntimeError: If the client is closed.
        """
        if not self._thread.is_alive():
            work.close()
            raise RuntimeError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _serve(self) -> None:
        # The runner's exit ends what still runs: streams and calls that nobody waits for.
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()


class SyncApplication:
    """`Application` for synchronous code; made by `SyncClient.application`."""

    def __init__(self, client: SyncClient, application: Application) -> None:
        self._client = client
        self._application = application

    def __enter__(self) -> Self:
        """Open the application; see `Application`."""
        self._client.run(self._application.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the application, or cancel it if its agent failed; see `Application`."""
        self._client.run(self._application.__aexit__(kind, error, traceback))

    @property
    def application_id(self) -> ApplicationId:
        """The application's id, the caller's own or the service's."""
        return self._application.application_id

    @property
    def predicted_kv_token_time(self) -> KvTokenTime | None:
        """The application's predicted cost; see `Application.predicted_kv_token_time`."""
        return self._application.predicted_kv_token_time

    @property
    def virtual_finish_time(self) -> VirtualTime | None:
        """The application's tag at arrival; None under a policy without tags."""
        return self._application.virtual_finish_time

    def status(self) -> dict[str, Any]:
        """Return the application's state at the service now; see `Application.status`."""
        return self._client.run(self._application.status())

    def chat(
        self, messages: Messages, *, max_tokens: Tokens | None = None, **fields: Any
    ) -> Completion:
        """Run one inference on a conversation; see `Application.chat`."""
        return self._client.run(self._application.chat(messages, max_tokens=max_tokens, **fields))

    def complete(
        self, prompt: str, *, max_tokens: Tokens | None = None, **fields: Any
    ) -> Completion:
        """Run one inference on a bare prompt; see `Application.complete`."""
        return self._client.run(self._application.complete(prompt, max_tokens=max_tokens, **fields))

    def chat_many(
        self, conversations: Iterable[Messages], *, max_tokens: Tokens | None = None, **fields: Any
    ) -> list[Completion]:
        """Run one inference on each conversation, all at once, and return the answers in order.

        The first failure cancels the others and is raised; otherwise as `Application.chat`.
        """
        return self._client.run(
            fan_out(
                self._application.chat(messages, max_tokens=max_tokens, **fields)
                for messages in conversations
            )
        )

    def chat_stream(
        self, messages: Messages, *, max_tokens: Tokens | None = None, **fields: Any
    ) -> Generator[str]:
        """Run one inference and yield its text as it is generated; see `Application.chat_stream`.

        Closing the generator, or leaving its loop, cancels the inference.
        """
        stream = self._application.chat_stream(messages, max_tokens=max_tokens, **fields)

        async def next_text() -> str | None:
            return await anext(stream, None)

        try:
            while (text := self._client.run(next_text())) is not None:
                yield text
        finally:
            # The client was closed first, or an interrupt has cancelled the step: both end it too.
            with suppress(RuntimeError):
                self._client.run(stream.aclose())
