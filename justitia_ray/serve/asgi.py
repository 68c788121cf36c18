"""Call an ASGI application in the same process, without a socket and without buffering streams.

httpx's ASGITransport collects the whole body before it returns, so it cannot stream.
"""

import asyncio
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    MutableMapping,
)
from contextvars import Context
from typing import Any, TypeAlias
from urllib.parse import unquote

from justitia_ray.errors import EngineError
from justitia_ray.units import Seconds

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_GOODBYE_S: Seconds = 1.0
"""Seconds for an ASGI application to end after its caller has disconnected; vLLM needs 10 ms."""


async def call_asgi(
    app: AsgiApp,
    path: str,
    headers: Iterable[tuple[bytes, bytes]],
    body: bytes,
    context: Context | None = None,
    method: str = "POST",
    more: Mapping[str, Any] | None = None,
) -> AsyncGenerator[Message]:
    """Send a request to an ASGI application and yield its messages as it sends them.

    Closing the generator early sends `http.disconnect` to the application, and cancels the
    application only if it does not end within a second: after an immediate cancellation, vLLM's
    unary generations would run to their end.

    Args:
        app: The application. Its lifespan is not run.
        path: Path in the form of URLs, with its query if there is one.
        headers: Lower-case names; must include `content-length`.
        body: The whole request body.
        context: Context in which the application runs; by default a copy of the caller's.
        method: HTTP method.
        more: Additional entries of the ASGI scope.

    Raises:
        EngineError: If the application ends before its last message. An error after that message is
            dropped, because the answer is complete.
    """
    messages: asyncio.Queue[Message | None] = asyncio.Queue()
    gone = asyncio.Event()
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if unread:
            return unread.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def run() -> None:
        await app({**_asgi_scope(method, path, headers), **(more or {})}, receive, messages.put)

    task = asyncio.create_task(run(), context=context)
    # This message wakes the loop below even if the application raises an error.
    task.add_done_callback(lambda _: messages.put_nowait(None))
    try:
        while (message := await messages.get()) is not None:
            yield message
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                return
        error = None if task.cancelled() else task.exception()
        raise EngineError(f"the engine ended {path} without a complete answer") from error
    finally:
        gone.set()
        await _unless_cancelled(asyncio.create_task(_end_task(task)))


async def _unless_cancelled(task: asyncio.Task[None]) -> None:
    """Wait until a short task ends; a cancellation of the caller takes effect afterwards.

    The application has to end before its token counts are read, even if its caller is cancelled
    twice.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def _end_task(task: asyncio.Task[None]) -> None:
    """Wait until a task ends; cancel the task after a timeout, and drop its exception."""
    done, _ = await asyncio.wait([task], timeout=_GOODBYE_S)
    if not done:
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=_GOODBYE_S)
    if done and not task.cancelled():
        task.exception()  # asyncio reports exceptions that are never retrieved


def _asgi_scope(
    method: str, path: str, headers: Iterable[tuple[bytes, bytes]]
) -> MutableMapping[str, Any]:
    raw_path, _, query = path.partition("?")
    return {
        "type": "http",
        # From `spec_version` 2.4 on, Starlette's streams would not listen for a disconnect.
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(raw_path),
        "raw_path": raw_path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": list(headers),
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 0),
    }
