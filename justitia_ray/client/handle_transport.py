"""The service over a Ray Serve handle of its Ingress deployment, without importing Ray.

The handle is used as a duck: `handle.call.remote(method, path, headers, body)` is awaited for
`(status, headers, body)`, and `handle.options(stream=True).stream.remote(…)` is iterated for
`(status, headers)` and then chunks. Both answers have a `cancel()`.

Two rules of Serve shape this file. Calls made in one context share Serve's internal request id, and
of several such calls at once all but the first may hang in a router: every call gets a context of
its own. In exchange nothing links it to its caller any more, and dropping a generator never
cancelled it: a caller that stops early must say so with `cancel()`.
"""

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from justitia_ray.client.transport import Response, StreamedResponse

T = TypeVar("T")


class HandleTransport:
    """The service over a handle of its Ingress deployment.

    Args:
        handle: A `DeploymentHandle`, or anything that behaves as one.
    """

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> Response:
        """Call the ingress and return the whole answer; see `Transport.request`."""
        call = _Call(lambda: self._handle.call.remote(method, path, dict(headers), body))
        try:
            status, answer_headers, answer = await call.run(call.result())
        finally:
            call.cancel_unless_ended()
        return Response(status, _lower(answer_headers), answer)

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> AsyncGenerator[StreamedResponse]:
        """Call the ingress and enter its answer; see `Transport.stream`."""
        call = _Call(
            lambda: self._handle.options(stream=True).stream.remote(
                method, path, dict(headers), body
            )
        )
        try:
            head = await call.run(call.next_item())
            if head is None:
                raise ConnectionError("the ingress ended a stream before its head")
            status, answer_headers = head
            yield StreamedResponse(status, _lower(answer_headers), call.chunks())
        finally:
            call.cancel_unless_ended()

    async def aclose(self) -> None:
        """Do nothing: the handle is the caller's."""


class _Call:
    """One call over the handle, in a context of its own."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self._context = contextvars.Context()
        self._start = start
        self._response: Any = None
        self._ended = False

    async def result(self) -> Any:
        self._response = self._start()
        try:
            return await self._response
        finally:
            self._ended = True

    async def next_item(self) -> Any:
        """Return the next item of a stream, None at its end."""
        if self._response is None:
            self._response = self._start()
        try:
            return await anext(self._response)
        except StopAsyncIteration:
            self._ended = True
            return None
        except BaseException:
            self._ended = True
            raise

    async def chunks(self) -> AsyncGenerator[bytes]:
        while (chunk := await self.run(self.next_item())) is not None:
            yield chunk

    async def run(self, step: Coroutine[Any, Any, T]) -> T:
        """Await one step in the call's own context.

        Raises:
            ConnectionError: If the call failed; Serve's own error is its cause.
        """
        task = asyncio.get_running_loop().create_task(step, context=self._context)
        # `wait`, unlike `await task`, tells a cancel of this caller from one by Serve.
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.add_done_callback(_forget)
            task.cancel()
            raise
        if task.cancelled():
            # This caller was not cancelled, so the answer must not look as if it had been.
            raise ConnectionError("Serve cancelled the call to the ingress")
        try:
            return task.result()
        except Exception as error:
            raise ConnectionError(
                f"the call to the ingress failed with {type(error).__name__}"
            ) from error

    def cancel_unless_ended(self) -> None:
        if self._response is not None and not self._ended:
            self._ended = True
            self._response.cancel()


def _forget(task: asyncio.Task[Any]) -> None:
    """Take the outcome of a step whose caller has gone, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
