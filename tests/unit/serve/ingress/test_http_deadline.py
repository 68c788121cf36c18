"""The operator's time limit of a call, which no request header can lift."""

import asyncio
import json
from typing import Any

import pytest

from justitia_ray.errors import DeadlineMissed
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from justitia_ray.serve.asgi import AsgiApp, Message
from justitia_ray.serve.ingress.door import DEFAULT_TENANT, TRUSTED, Door
from justitia_ray.serve.ingress.http_app import build_http_app
from justitia_ray.serve.ingress.models import ServedModels
from justitia_ray.serve.ingress.submission import ApplicationSpecCache
from tests.eventually import eventually
from tests.unit.serve.ingress.asgi_caller import Caller, FedStream
from tests.unit.serve.ingress.http_client import FINDER, StandInGateway, served_model
from tests.unit.serve.ingress.test_http_inference import _BODY

_LIMIT_S = 0.05
_LIFTING = [(b"x-request-timeout-seconds", b"0")]


def limited_app(gateway: StandInGateway, limit_s: float | None = _LIMIT_S) -> AsgiApp:
    specs, door = ApplicationSpecCache(600.0, 100), Door(None, DEFAULT_TENANT)
    return build_http_app(ServedModels([served_model(gateway)]), specs, door, FINDER, limit_s)


def unlimited_scope(path: str, **more: Any) -> Message:
    """Return the ASGI scope of a call without a time limit of its own."""
    head = {"type": "http", "method": "POST", "path": path, "headers": _LIFTING}
    return {**head, "query_string": b"", "server": ("a", 80), "scheme": "http", **more}


def body_of(path: str, *, stream: bool) -> bytes:
    left_out = "prompt" if path == RESPONSES else ""
    fields = {name: value for name, value in _BODY.items() if name != left_out}
    return json.dumps(fields | {"stream": stream}).encode()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES, RESPONSES])
@pytest.mark.parametrize("stream", [False, True])
async def test_call_past_its_time_limit_is_cancelled(path: str, stream: bool) -> None:
    """The official clients do not retry this error, since a retry would take as long."""
    gateway, source, caller = StandInGateway(), FedStream(), Caller(body_of(path, stream=stream))
    gateway.source = source
    await limited_app(gateway)(unlimited_scope(path), caller.receive, caller.send)
    head, error = caller.messages[0], json.loads(caller.chunks[0])["error"]

    assert 504 == head["status"]
    assert (b"x-should-retry", b"false") in head["headers"]
    assert "0.05 s (http_options.request_timeout_s of Serve)" in error["message"]
    assert ("timeout_error" if path == MESSAGES else "DeadlineError") == error["type"]
    assert source.closed


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES, RESPONSES])
async def test_stream_past_its_time_limit_ends_with_an_error_event(path: str) -> None:
    """Some clients take a cut connection for the end of an answer."""
    gateway, source, caller = StandInGateway(), FedStream(), Caller(body_of(path, stream=True))
    gateway.source = source
    source.feed((200, {}), b"a\n\n")
    with pytest.raises(DeadlineMissed):
        await limited_app(gateway)(unlimited_scope(path), caller.receive, caller.send)

    assert b"a\n\n" == caller.chunks[0]
    assert b"request_timeout_s" in caller.chunks[1]
    assert [504] == gateway.failed_streams
    assert (b"", False) == (caller.chunks[-1], caller.messages[-1]["more_body"])
    assert source.closed


@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/applications"])
async def test_reading_of_a_body_has_a_time_limit(path: str) -> None:
    """Otherwise a caller could hold a connection with a single byte."""
    caller, never = Caller(), asyncio.Event()

    async def receive_forever() -> Message:
        await never.wait()
        return {}

    await limited_app(StandInGateway())(unlimited_scope(path), receive_forever, caller.send)

    assert 504 == caller.messages[0]["status"]


@pytest.mark.parametrize(
    ("limit_s", "more"), [(None, {}), (_LIMIT_S, {TRUSTED: True})], ids=["no limit", "handle"]
)
async def test_call_over_a_handle_has_no_time_limit(
    limit_s: float | None, more: dict[str, Any]
) -> None:
    """Ray Serve's HTTP options do not apply to calls over a handle."""
    gateway, source = StandInGateway(), FedStream()
    caller = Caller(body_of(CHAT, stream=False))
    gateway.source = source
    app = limited_app(gateway, limit_s)
    answering: Any = app(unlimited_scope(CHAT, **more), caller.receive, caller.send)
    call = asyncio.create_task(answering)
    await eventually(lambda: gateway.answered, "it runs")
    done, _ = await asyncio.wait([call], timeout=2 * _LIMIT_S)
    source.feed((200, {}), b"told", None)
    await call

    assert not done
    assert (200, b"told") == (caller.messages[0]["status"], caller.chunks[0])
