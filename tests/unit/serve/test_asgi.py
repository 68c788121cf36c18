"""The in-process ASGI caller, tested with well-behaved and misbehaving applications."""

import asyncio
from collections.abc import MutableMapping
from contextlib import aclosing
from contextvars import Context, ContextVar, copy_context
from typing import Any

import pytest

from justitia_ray.errors import EngineError
from justitia_ray.serve.asgi import AsgiApp, Message, Receive, Send, call_asgi

START: Message = {"type": "http.response.start", "status": 200, "headers": []}


def body_chunk(body: bytes, more_body: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more_body}


async def messages_of(
    app: AsgiApp, path: str = "/path", context: Context | None = None
) -> list[Message]:
    return [message async for message in call_asgi(app, path, [], b"in", context)]


async def leave_after_head(app: AsgiApp) -> None:
    async with aclosing(call_asgi(app, "/path", [], b"")) as messages:
        await anext(messages)


async def test_asgi_messages_keep_their_order_and_the_body_is_complete() -> None:

    async def app(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        request = await receive()
        await send(START)
        await send(body_chunk(request["body"], more_body=True))
        await send(body_chunk(scope["path"].encode(), more_body=False))

    assert await messages_of(app) == [START, body_chunk(b"in", True), body_chunk(b"/path", False)]


@pytest.mark.parametrize("raises", [True, False])
async def test_asgi_application_that_ends_too_early_is_an_engine_error(raises: bool) -> None:
    """The caller must neither hang nor take half an answer for a whole one."""

    async def app(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        await send(START)
        await send(body_chunk(b"half", more_body=True))
        if raises:
            raise KeyError("bug")

    async with asyncio.timeout(5):
        with pytest.raises(EngineError, match="/path") as raised:
            await messages_of(app)

    assert isinstance(raised.value.__cause__, KeyError) == raises


async def test_asgi_error_after_the_last_message_does_not_change_the_answer() -> None:
    """Starlette sends its 500 and then raises, when the caller already has the answer."""

    async def app(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        await send(START)
        await send(body_chunk(b"", more_body=False))
        raise KeyError("bug")

    assert await messages_of(app) == [START, body_chunk(b"", False)]


async def test_early_close_sends_an_asgi_disconnect_before_the_cancellation() -> None:
    """VLLM frees KV memory on a disconnect, but continues a generation cancelled at once."""
    seen: list[str] = []

    async def app(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        await receive()
        await send(START)
        try:
            seen.append((await receive())["type"])
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    await leave_after_head(app)

    assert seen == ["http.disconnect"]


async def test_asgi_application_that_ignores_a_disconnect_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stuck handler must not block the replica forever."""
    monkeypatch.setattr("justitia_ray.serve.asgi._GOODBYE_S", 0.01)
    cancelled = asyncio.Event()

    async def app(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        await send(START)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    await leave_after_head(app)

    assert cancelled.is_set()


async def test_asgi_application_runs_in_the_given_context() -> None:
    """The meter finds the lease of a vLLM request through a context variable."""
    variable: ContextVar[str] = ContextVar("variable", default="unset")
    context = copy_context()
    context.run(variable.set, "set")

    async def app(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        await send(body_chunk(variable.get().encode(), more_body=False))

    (message,) = await messages_of(app, context=context)

    assert message["body"] == b"set"
    assert variable.get() == "unset"


async def test_asgi_path_and_query_are_decoded_as_by_an_http_server() -> None:
    """An id with a slash is percent-encoded, and the model is in the query."""

    async def app(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        await send(START)
        await send(body_chunk(f"{scope['path']} {scope['query_string'].decode()}".encode(), False))

    answer = await messages_of(app, "/v1/applications/a%2F1?model=org%2Fm")

    assert [START, body_chunk(b"/v1/applications/a/1 model=org%2Fm", False)] == answer
