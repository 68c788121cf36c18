"""The client's transports, over HTTP and over a Serve handle."""

import asyncio
from collections.abc import AsyncIterator
from unittest.mock import MagicMock

import httpx
import pytest

from justitia_ray.client import HandleTransport, HttpTransport, Transport, fan_out
from justitia_ray.errors import ConfigError
from tests.unit.client.fakes import SERVE_REQUEST_ID, FakeHandle, FakeService


async def request_to(base_url: str) -> httpx.Request:
    """Return the request that a client of this URL sends for a GET of /v1/models."""
    sent: list[httpx.Request] = []

    def record_request(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200)

    transport = HttpTransport(base_url, transport=httpx.MockTransport(record_request))
    await transport.request("GET", "/v1/models", {})
    await transport.aclose()
    return sent[0]


@pytest.mark.parametrize(
    ("base_url", "expected"),
    [
        ("http://service", "http://service/v1/models"),
        ("http://service/", "http://service/v1/models"),
        ("http://service:8000/v1", "http://service:8000/v1/models"),
        ("https://service/team/v1/", "https://service/team/v1/models"),
    ],
)
async def test_base_url_is_accepted_with_and_without_v1(base_url: str, expected: str) -> None:
    assert expected == str((await request_to(base_url)).url)


def test_invalid_base_url_is_refused() -> None:
    """The error names the setting and its value before the first call."""
    with pytest.raises(ConfigError, match=r"base_url must start with .*'localhost:8000'"):
        HttpTransport("localhost:8000")


async def test_client_limits_the_connection_time_and_not_the_answer_time() -> None:
    timeouts = (await request_to("http://service")).extensions["timeout"]

    assert {"connect": 10.0, "read": None, "write": None, "pool": None} == timeouts


async def test_incomplete_body_is_a_connection_error() -> None:
    class BrokenBody(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"half"
            raise httpx.RemoteProtocolError("incomplete chunked read")

    def answer_broken_body(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=BrokenBody())

    transport = HttpTransport("http://service", transport=httpx.MockTransport(answer_broken_body))

    async def read_chunks() -> list[bytes]:
        async with transport.stream("GET", "/v1/models", {}) as streamed:
            return [chunk async for chunk in streamed.chunks]

    with pytest.raises(ConnectionError, match="incomplete chunked read"):
        await read_chunks()
    await transport.aclose()


CHAT = "/v1/chat/completions"


@pytest.fixture
def handle_transport(serve_handle: FakeHandle) -> HandleTransport:
    return HandleTransport(serve_handle)


async def test_concurrent_calls_of_one_task_have_separate_contexts(
    handle_transport: HandleTransport, fake_service: FakeService
) -> None:
    """Serve identifies calls by an id in the context; of calls that share one, all but one hang."""
    SERVE_REQUEST_ID.set("the agent's own request")

    async def read_status() -> int:
        async with handle_transport.stream("POST", CHAT, {}) as streamed:
            return streamed.status

    await fan_out(handle_transport.request("GET", "/v1/models", {}) for _ in range(50))
    await fan_out(read_status() for _ in range(50))

    assert len(fake_service.requests) == 100
    assert SERVE_REQUEST_ID.get() == "the agent's own request"


async def start_call(transport: Transport, *, stream: bool) -> None:
    """Start a unary or streamed call and read nothing of its answer."""
    if stream:
        async with transport.stream("POST", CHAT, {}):
            pass
    else:
        await transport.request("POST", CHAT, {})


@pytest.mark.parametrize("stream", [False, True])
async def test_cancelling_a_call_cancels_its_response(
    handle_transport: HandleTransport,
    fake_service: FakeService,
    serve_handle: FakeHandle,
    stream: bool,
) -> None:
    """The ingress learns only by the cancellation; a stream may wait minutes before its head."""
    fake_service.hold = CHAT
    task = asyncio.create_task(start_call(handle_transport, stream=stream))
    await fake_service.held.acquire()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert [response.cancels for response in serve_handle.responses] == [1]


async def test_cancelling_a_call_leaves_concurrent_calls_running(
    handle_transport: HandleTransport, fake_service: FakeService, serve_handle: FakeHandle
) -> None:
    fake_service.hold = CHAT
    left = asyncio.create_task(handle_transport.request("POST", CHAT, {}))
    await fake_service.held.acquire()
    stays = asyncio.create_task(handle_transport.request("GET", "/v1/models", {}))
    left.cancel()

    assert (await stays).status == 200
    assert [response.cancels for response in serve_handle.responses] == [1, 0]


@pytest.mark.parametrize(("taken", "cancels"), [(0, 1), (1, 1), (None, 0)])
async def test_only_an_unfinished_stream_cancels_its_response(
    handle_transport: HandleTransport, serve_handle: FakeHandle, taken: int | None, cancels: int
) -> None:
    """Dropping a Serve generator does not cancel it, and a finished stream needs no cancel."""
    async with handle_transport.stream("POST", CHAT, {}, b'{"stream": true}') as streamed:
        if taken is None:
            assert b"data: [DONE]\n\n" == [chunk async for chunk in streamed.chunks][-1]
        for _ in range(taken or 0):
            await anext(streamed.chunks)

    assert [response.cancels for response in serve_handle.responses] == [cancels]


async def test_header_names_are_lower_case(handle_transport: HandleTransport) -> None:
    """Header names equal those over HTTP, so that one client reads both."""
    assert (await handle_transport.request("GET", "/v1/models", {})).headers == {
        "content-type": "application/json"
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_failed_call_is_a_connection_error_with_its_cause(
    handle_transport: HandleTransport,
    fake_service: FakeService,
    serve_handle: FakeHandle,
    stream: bool,
) -> None:
    failure = LookupError("actor died")
    fake_service.answers[CHAT] = [failure]

    with pytest.raises(ConnectionError, match="LookupError") as caught:
        await start_call(handle_transport, stream=stream)

    assert failure is caught.value.__cause__
    assert [response.cancels for response in serve_handle.responses] == [0]


async def test_cancellation_by_ray_serve_is_a_connection_error(
    handle_transport: HandleTransport, fake_service: FakeService
) -> None:
    """A CancelledError from Serve would silently end the agent's task."""
    fake_service.hold = CHAT
    task = asyncio.create_task(handle_transport.request("POST", CHAT, {}))
    await fake_service.held.acquire()
    [step] = asyncio.all_tasks() - {task, asyncio.current_task()}
    step.cancel()

    with pytest.raises(ConnectionError, match="Serve cancelled"):
        await task


async def test_stream_without_headers_is_a_connection_error() -> None:
    handle = MagicMock()
    handle.options().stream.remote().__anext__.side_effect = StopAsyncIteration

    with pytest.raises(ConnectionError, match="before its head"):
        async with HandleTransport(handle).stream("POST", CHAT, {}):
            pass


@pytest.mark.parametrize(
    ("base_url", "is_direct"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://localhost:8000", True),
        ("http://[::1]:8000", True),
        ("http://service:8000", False),
    ],
)
async def test_localhost_is_reached_without_a_proxy(
    base_url: str, is_direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default URL is 127.0.0.1, which no proxy can reach."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://proxy:3128")
        monkeypatch.setenv(name.lower(), "http://proxy:3128")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    transport = HttpTransport(base_url)
    client = transport._client
    chosen = client._transport_for_url(httpx.URL(base_url))
    await transport.aclose()

    assert is_direct == (chosen is client._transport)
