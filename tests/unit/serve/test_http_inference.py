"""The routes of the inference endpoints: each answers, and errors have the form of its family."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, cast

import httpx
import pytest
from fastapi.responses import StreamingResponse

from justitia_ray.config import parse_app_config
from justitia_ray.errors import EngineError, NotServed, QueueFull
from justitia_ray.protocol.endpoints import ASIDE_PATHS, INFERENCE_PATHS, parse_body
from justitia_ray.protocol.messages_body import MESSAGES
from justitia_ray.protocol.responses_body import RESPONSES
from justitia_ray.serve.gateway import Gateway
from justitia_ray.serve.http_answers import stream
from justitia_ray.serve.http_app import build_http_app
from justitia_ray.serve.keepalive import KEEPALIVE
from justitia_ray.serve.models import ServedModel, ServedModels
from justitia_ray.serve.replica_calls import Answer, StreamItem
from justitia_ray.serve.scheduler_calls import SchedulerCalls

_BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "a"}],
    "prompt": "a",
    "input": "a",
    "query": "a",
    "queries": "a",
    "documents": ["a"],
    "texts": ["a"],
    "max_tokens": 5,
}
"""Holds what any of the endpoints asks for."""
_ENGINE_ERROR = b'{"error": {"message": "m", "type": "BadRequestError", "code": 400}}'


class StandInGateway:
    """Reads bodies as the real one does, and answers as the test says."""

    max_model_len = 100

    def __init__(self) -> None:
        self.refusal: Exception | None = None
        self.failure: Exception | None = None
        self.items: list[StreamItem] = [(200, {"content-type": "text/plain"}), b"told"]
        self.aside_answer: Answer = (200, {"content-type": "text/plain"}, b"aside")

    def parse(self, path: str, raw: bytes) -> Any:
        return parse_body(path, raw, ("m",), self.max_model_len)

    async def check_served(self, path: str) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def answer(
        self, path: str, headers: dict[str, str], body: Any
    ) -> AsyncGenerator[StreamItem]:
        if self.failure is not None:
            raise self.failure
        for item in self.items:
            yield item

    async def aside(self, path: str, raw: bytes) -> Answer:
        return self.aside_answer


@pytest.fixture
def gateway() -> StandInGateway:
    """Return what the requests come to."""
    return StandInGateway()


@pytest.fixture
async def http(gateway: StandInGateway) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the HTTP application in front of it."""
    config = parse_app_config({"model": {"name": "m", "path": "none"}})
    model = ServedModel(config, cast(Gateway, gateway), cast(SchedulerCalls, None))
    transport = httpx.ASGITransport(app=build_http_app(ServedModels([model])))
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        yield client


@pytest.mark.parametrize("path", INFERENCE_PATHS)
async def test_every_endpoint_of_the_table_is_answered(http: httpx.AsyncClient, path: str) -> None:
    """A path that is in the table and has no route would be a 404 that nobody understands."""
    body = {name: value for name, value in _BODY.items() if (path, name) != (RESPONSES, "prompt")}
    answer = await http.post(path, json=body)

    assert (200, "told") == (answer.status_code, answer.text)


@pytest.mark.parametrize("path", ASIDE_PATHS)
async def test_what_takes_no_turn_is_answered_by_any_replica(
    http: httpx.AsyncClient, gateway: StandInGateway, path: str
) -> None:
    """With the engine's own status and body."""
    answer = await http.post(path, json=_BODY)

    assert (200, "aside") == (answer.status_code, answer.text)
    gateway.aside_answer = (400, {}, _ENGINE_ERROR)
    refused = await http.post(path, json=_BODY)
    assert 400 == refused.status_code
    assert ("error" == refused.json().get("type")) == path.startswith(MESSAGES)


@pytest.mark.parametrize("stream", [False, True])
async def test_errors_on_the_way_have_the_form_of_the_family(
    http: httpx.AsyncClient, gateway: StandInGateway, stream: bool
) -> None:
    """Refused before it waits, while it waits, or by the engine: Anthropic's client reads it."""
    body = _BODY | {"stream": stream}
    malformed = await http.post(MESSAGES, json=body | {"max_tokens": 0})
    gateway.items = [(400, {}), _ENGINE_ERROR]
    by_engine = await http.post(MESSAGES, json=body)
    gateway.failure = QueueFull("full", 7.0)
    full = await http.post(MESSAGES, json=body)
    gateway.refusal = NotServed("not here")
    not_served = await http.post(MESSAGES, json=body)

    answers = (malformed, by_engine, full, not_served)
    assert [400, 400, 429, 404] == [answer.status_code for answer in answers]
    assert "7" == full.headers["retry-after"]
    assert [
        "invalid_request_error",
        "invalid_request_error",
        "rate_limit_error",
        "not_found_error",
    ] == [answer.json()["error"]["type"] for answer in answers]


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
async def test_stream_that_fails_after_it_was_kept_alive_ends_with_its_own_event(path: str) -> None:
    """Its status was 200 by then: what is wrong can only be said in the stream."""
    may_fail = asyncio.Event()

    async def failing() -> AsyncGenerator[StreamItem]:
        await may_fail.wait()
        if may_fail.is_set():
            raise EngineError("gave up")
        yield b""

    answer = await stream(path, failing(), keepalive_s=0.001)
    chunks = cast(StreamingResponse, answer).body_iterator.__aiter__()
    first = await anext(chunks)
    may_fail.set()
    rest = [bytes(cast(bytes, chunk)) async for chunk in chunks]

    assert KEEPALIVE == first
    assert rest[-1].startswith(b"event: error\ndata: ")
    assert "error" == json.loads(rest[-1].split(b"data: ")[1])["type"]
