"""Streams read by the OpenAI and Anthropic clients: waiting, complete, and failed.

Each test waits for events, as a client with an idle timer does.
"""

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from justitia_ray.errors import ApplicationIsClosed, EngineError
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from justitia_ray.serve.ingress.replica_calls import StreamItem
from tests.unit.serve.ingress.asgi_caller import FedStream
from tests.unit.serve.ingress.engine_streams import BODIES, HEAD, STREAMS
from tests.unit.serve.ingress.http_client import StandInGateway
from tests.unit.serve.ingress.local_service import LocalService

_SOON_S = 0.02
_SIGNS = 3
"""Number of keepalives that a client receives before any other event."""
_REFUSED: tuple[StreamItem, StreamItem] = (
    (400, {}),
    b'{"error": {"message": "no such tool", "type": "B", "code": 400}}',
)
_BODY: Any = {name: value for name, value in BODIES[CHAT].items() if name != "stream"}
_RESPONSE: Any = {name: value for name, value in BODIES[RESPONSES].items() if name != "stream"}


class StreamingService:
    """Service whose streams wait until the test supplies their items."""

    def __init__(self, service: LocalService, gateway: StandInGateway) -> None:
        self.service = service
        self.gateway = gateway
        self.source = FedStream()
        gateway.source = self.source
        self.openai = openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="k", max_retries=0)
        self.anthropic = anthropic.AsyncAnthropic(base_url=service.url, api_key="k", max_retries=0)

    def feed(self, *items: StreamItem | Exception | None) -> None:
        self.source.feed(*items)


@pytest.fixture
async def streaming() -> AsyncIterator[StreamingService]:
    gateway = StandInGateway()
    async with LocalService(gateway, keepalive_s=_SOON_S).listening() as service:
        streaming = StreamingService(service, gateway)
        async with streaming.openai, streaming.anthropic:
            yield streaming


def whole_stream(path: str) -> list[StreamItem | None]:
    return [HEAD, *STREAMS[path], None]


async def test_anthropic_client_reads_events_of_a_waiting_message(
    streaming: StreamingService,
) -> None:
    """Anthropic's client drops pings, but its idle timer counts them."""
    async with streaming.anthropic.messages.with_streaming_response.create(
        **_BODY, stream=True
    ) as answer:
        kinds: list[str | None] = []
        fed = False
        async for event in anthropic.AsyncStream.raw_events(answer.http_response):
            kinds.append(event.event)
            if not fed and len(kinds) == _SIGNS:
                fed = True
                streaming.feed(*whole_stream(MESSAGES))

    assert ["ping"] * _SIGNS == kinds[:_SIGNS]
    assert "message_stop" == kinds[-1]


async def test_anthropic_client_reads_a_message_that_follows_pings(
    streaming: StreamingService,
) -> None:
    async with streaming.anthropic.messages.stream(**_BODY) as stream:
        streaming.feed(*whole_stream(MESSAGES))
        message = await stream.get_final_message()

    assert ("hi", "end_turn") == (message.content[0].text, message.stop_reason)  # type: ignore[union-attr]


async def test_openai_client_reads_events_of_a_waiting_response(
    streaming: StreamingService,
) -> None:
    """OpenAI's client rejects events before `response.created` and passes later ones on."""
    numbers, kinds = [], []
    async with streaming.openai.responses.stream(**_RESPONSE) as stream:
        async for event in stream:
            kinds.append(event.type)
            numbers.append(event.sequence_number)
            if len(kinds) == _SIGNS:
                streaming.feed(*whole_stream(RESPONSES))
        response = await stream.get_final_response()

    assert ["response.created", "response.queued", "response.queued"] == kinds[:_SIGNS]
    assert list(range(len(numbers))) == numbers
    assert response.output_text.startswith("hi")


async def test_response_with_a_long_prefill_yields_events(streaming: StreamingService) -> None:
    """OpenAI's own service also sends `keepalive` after the response has started."""
    streaming.feed(HEAD, *STREAMS[RESPONSES][:2])
    kinds: list[str] = []
    async with streaming.openai.responses.stream(**_RESPONSE) as stream:
        async for event in stream:
            kinds.append(event.type)
            if kinds == ["response.created", "response.in_progress", *["keepalive"] * _SIGNS]:
                streaming.feed(*STREAMS[RESPONSES][2:], None)
        response = await stream.get_final_response()

    assert kinds.count("keepalive") >= _SIGNS
    assert response.output_text.startswith("hi")


@pytest.mark.parametrize("kind", ["event", "chunk", "comment", "none"])
async def test_chat_with_any_kind_of_keepalive_is_read_completely(
    streaming: StreamingService, kind: str
) -> None:
    """Chunks without text keep the connection alive and do not change the answer."""
    streaming.feed(*[] if kind == "chunk" else whole_stream(CHAT))
    chunks = 0
    asked: Any = _BODY | {"extra_headers": {"x-justitia-keepalive": kind}}
    async with streaming.openai.chat.completions.stream(**asked) as stream:
        async for event in stream:
            chunks += event.type == "chunk"
            if event.type == "chunk":
                assert event.chunk.choices[0].delta is not None
            if kind == "chunk" and chunks == _SIGNS and streaming.source.items.empty():
                streaming.feed(*whole_stream(CHAT))
        completion = await stream.get_final_completion()

    said = completion.choices[0].message
    assert ("hi", "assistant") == (said.content, said.role)


async def test_completion_with_keepalive_chunks_is_read_completely(
    streaming: StreamingService,
) -> None:
    texts: list[str] = []
    body = {name: value for name, value in BODIES[COMPLETIONS].items() if name != "stream"}
    asked: Any = {**body, "extra_headers": {"x-justitia-keepalive": "chunk"}}
    async for chunk in await streaming.openai.completions.create(**asked, stream=True):
        texts.append(chunk.choices[0].text)
        if len(texts) == _SIGNS:
            streaming.feed(*whole_stream(COMPLETIONS))

    assert [""] * _SIGNS == texts[:_SIGNS]
    assert "hi" == "".join(texts)


@pytest.mark.parametrize("kind", ["chunk", "none"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_stream_can_be_read_by_a_client_that_parses_every_line_as_json(
    streaming: StreamingService, path: str, kind: str
) -> None:
    head = {"x-justitia-keepalive": kind}
    async with httpx.AsyncClient(base_url=streaming.service.url) as client:
        if kind == "none":
            streaming.feed(*whole_stream(path))
        async with client.stream("POST", path, json=BODIES[path], headers=head) as answer:
            lines = 0
            async for line in answer.aiter_lines():
                assert not line or line.startswith("data: ")
                lines += bool(line)
                if kind == "chunk" and lines == _SIGNS and streaming.source.items.empty():
                    streaming.feed(*whole_stream(path))

    assert lines >= len(STREAMS[path])


_FAILURES: list[tuple[StreamItem | Exception | None, ...]] = [
    (*_REFUSED, None),
    (EngineError("gave up"),),
    (ApplicationIsClosed("application 'a' was cancelled"),),
]


@pytest.mark.parametrize(
    ("failure", "begun"),
    [*((failure, False) for failure in _FAILURES), *((failure, True) for failure in _FAILURES[1:])],
)
async def test_anthropics_client_raises_for_a_failed_stream(
    streaming: StreamingService, failure: tuple[StreamItem | Exception | None, ...], begun: bool
) -> None:
    """Without `event: error` Anthropic's client reads an empty answer and raises nothing."""
    if begun:
        streaming.feed(HEAD, *STREAMS[MESSAGES][:3])
    async with streaming.anthropic.messages.stream(**_BODY) as stream:
        streaming.feed(*failure)
        with pytest.raises(anthropic.APIStatusError) as raised:
            await stream.get_final_message()

    assert "error" == raised.value.body["type"]  # type: ignore[index]
    assert 1 == len(streaming.gateway.failed_streams) == len(streaming.service.raised)


@pytest.mark.parametrize("failure", _FAILURES, ids=["refused", "engine", "closed"])
async def test_openais_client_sees_a_failed_response(
    streaming: StreamingService, failure: tuple[StreamItem | Exception | None, ...]
) -> None:
    """The last event shows the failure, and the client's helper returns no response."""
    events = []
    async for event in await streaming.openai.responses.create(**_RESPONSE, stream=True):
        events.append(event)
        if len(events) == _SIGNS:
            streaming.feed(*failure)

    assert "response.failed" == events[-1].type
    assert events[-1].response.error is not None
    assert list(range(len(events))) == [event.sequence_number for event in events]
    async with streaming.openai.responses.stream(**_RESPONSE) as stream:
        streaming.feed(*failure)
        with pytest.raises(RuntimeError, match=r"response\.completed"):
            await stream.get_final_response()
    assert 2 == len(streaming.gateway.failed_streams) == len(streaming.service.raised)


@pytest.mark.parametrize("failure", _FAILURES, ids=["refused", "engine", "closed"])
async def test_openais_client_raises_for_a_failed_chat(
    streaming: StreamingService, failure: tuple[StreamItem | Exception | None, ...]
) -> None:
    async with streaming.openai.chat.completions.stream(**_BODY) as stream:
        streaming.feed(*failure)
        with pytest.raises(openai.APIError):
            await stream.get_final_completion()

    assert 1 == len(streaming.gateway.failed_streams) == len(streaming.service.raised)


@pytest.mark.parametrize("stream", [False, True])
async def test_clients_do_not_retry_a_call_of_an_ended_application(
    streaming: StreamingService, stream: bool
) -> None:
    streaming.gateway.failure = ApplicationIsClosed("application 'a' was cancelled")
    openais = streaming.openai.with_options(max_retries=2)
    anthropics = streaming.anthropic.with_options(max_retries=2)
    asked: Any = _BODY | {"stream": stream}
    with pytest.raises(openai.ConflictError) as told:
        await openais.chat.completions.create(**asked)
    assert 1 == streaming.gateway.answered
    with pytest.raises(anthropic.ConflictError):
        await anthropics.messages.create(**asked)

    assert 2 == streaming.gateway.answered
    assert "false" == told.value.response.headers["x-should-retry"]


async def test_connection_of_a_failed_stream_stays_usable(streaming: StreamingService) -> None:
    """A cut connection would look like a network failure."""
    async with httpx.AsyncClient(base_url=streaming.service.url) as client:
        for _ in range(2):
            streaming.feed(HEAD, STREAMS[CHAT][0], EngineError("gave up"))
            answer = await client.post(CHAT, json=BODIES[CHAT])
            assert b"gave up" in answer.content
        assert 200 == answer.status_code
