"""The transport over HTTP."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from justitia_ray.client import HttpTransport
from justitia_ray.errors import ConfigError

from .fakes import FakeService


@pytest.mark.parametrize(
    ("base_url", "expected"),
    [
        ("http://service", "http://service/v1/models"),
        ("http://service/", "http://service/v1/models"),
        ("http://service:8000/v1", "http://service:8000/v1/models"),
        ("https://service/team/v1/", "https://service/team/v1/models"),
    ],
)
async def test_base_urls_are_taken_with_and_without_v1(base_url: str, expected: str) -> None:
    """The OpenAI client's setting, copied over, must work."""
    urls: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        urls.append(str(request.url))
        return httpx.Response(200)

    transport = HttpTransport(base_url, transport=httpx.MockTransport(answer))
    await transport.request("GET", "/v1/models", {})
    await transport.aclose()

    assert [expected] == urls


def test_a_base_url_that_is_none_is_refused() -> None:
    """By name and value, before the first call."""
    with pytest.raises(ConfigError, match=r"base_url must start with .*'localhost:8000'"):
        HttpTransport("localhost:8000")


async def test_an_answer_may_take_any_time_but_a_connection_may_not() -> None:
    """An inference that waits minutes in the queue is the service working as meant."""
    timeouts: list[dict[str, float | None]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        timeouts.append(request.extensions["timeout"])
        return httpx.Response(200)

    transport = HttpTransport("http://service", transport=httpx.MockTransport(answer))
    await transport.request("GET", "/v1/models", {})
    await transport.aclose()

    assert timeouts == [{"connect": 10.0, "read": None, "write": None, "pool": None}]


async def test_cancelling_a_call_ends_it(service: FakeService) -> None:
    """The connection is closed with it, by which the proxy knows that its caller has gone."""
    service.hold = "/v1/models"
    transport = HttpTransport("http://service", transport=service.http())
    task = asyncio.create_task(transport.request("GET", "/v1/models", {}))
    await service.held.acquire()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await transport.aclose()

    assert service.cancelled_calls == 1


async def test_a_body_that_breaks_off_is_a_connection_error() -> None:
    """Both transports raise builtin errors, so that callers need not know httpx."""

    class Broken(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"half"
            raise httpx.RemoteProtocolError("incomplete chunked read")

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=Broken())

    transport = HttpTransport("http://service", transport=httpx.MockTransport(answer))

    async def read() -> list[bytes]:
        async with transport.stream("GET", "/v1/models", {}) as streamed:
            return [chunk async for chunk in streamed.chunks]

    with pytest.raises(ConnectionError, match="incomplete chunked read"):
        await read()
    await transport.aclose()
