"""Which calls the client repeats, and when."""

import httpx
import pytest

from justitia_ray.client import HttpTransport, JustitiaClient, ServiceUnreachable
from justitia_ray.errors import ConfigError, ResponseError
from tests.unit.client.fakes import FakeService, error_answer, sse_chunks

CHAT = "/v1/chat/completions"


async def _call_application(client: JustitiaClient, *, stream: bool) -> str:
    async with client.application("SC", input="q") as app:
        if stream:
            return "".join([text async for text in app.chat_stream("q")])
        return (await app.chat("q")).text


@pytest.mark.parametrize("stream", [False, True])
async def test_full_queue_is_retried_after_the_stated_time(
    client: JustitiaClient, fake_service: FakeService, waits_s: list[float], stream: bool
) -> None:
    """With status 429 or 503 nothing has started, and Retry-After gives the time."""
    fake_service.answers[CHAT] = [
        error_answer(429, "full", retry_after="3"),
        error_answer(503, "no replicas", retry_after="0.25"),
    ]

    assert await _call_application(client, stream=stream) == "Hello"
    assert waits_s == [3.0, 0.25]
    assert ["0", "1", "2"] == [
        sent.headers.get("x-stainless-retry-count") for sent in fake_service.requests_to(CHAT)
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_number_of_attempts_is_limited(
    client: JustitiaClient, fake_service: FakeService, waits_s: list[float], stream: bool
) -> None:
    """By default two retries with growing waits precede the error."""
    fake_service.answers[CHAT] = [error_answer(503, "no replicas")] * 3

    with pytest.raises(ResponseError, match="503: no replicas"):
        await _call_application(client, stream=stream)

    assert waits_s == [0.5, 1.0]
    assert len(fake_service.requests_to(CHAT)) == 3


@pytest.mark.parametrize(
    ("status", "wait"), [*((s, None) for s in (400, 404, 409, 500, 502, 504)), (503, "3600")]
)
async def test_client_does_not_retry_other_errors(
    client: JustitiaClient,
    fake_service: FakeService,
    waits_s: list[float],
    status: int,
    wait: str | None,
) -> None:
    """A retry would fail again, or be charged twice if the inference has started.

    A wait of an hour is not made either, and an earlier retry than requested would be refused.
    """
    fake_service.answers[CHAT] = [
        error_answer(status, "no", **({"retry_after": wait} if wait else {}))
    ]

    with pytest.raises(ResponseError, match=f"{status}: no") as caught:
        await _call_application(client, stream=False)

    assert caught.value.retry_after_s == (wait and float(wait))
    assert waits_s == []


async def test_spent_retry_budget_is_not_retried(
    client: JustitiaClient, fake_service: FakeService, waits_s: list[float]
) -> None:
    """The service marks a spent retry budget, so the caller gets the error at once."""
    status, headers, body = error_answer(429, "spent", retry_after="2")
    fake_service.answers[CHAT] = [(status, {**headers, "X-Should-Retry": "false"}, body)]

    with pytest.raises(ResponseError, match="spent"):
        await _call_application(client, stream=False)

    assert waits_s == []


async def test_started_stream_is_not_retried(
    client: JustitiaClient, fake_service: FakeService, waits_s: list[float]
) -> None:
    broken = sse_chunks([{"choices": [{"index": 0, "delta": {"content": "Hel"}}]}])
    fake_service.answers[CHAT] = [(200, {}, [*broken[:-1], b'data: {"error": {"code": 503}}\n\n'])]

    with pytest.raises(ResponseError):
        await _call_application(client, stream=True)

    assert waits_s == []
    assert len(fake_service.requests_to(CHAT)) == 1


over_http = pytest.mark.parametrize("client", ["http"], indirect=True)


@over_http
@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), httpx.ConnectTimeout("slow")])
async def test_refused_connection_is_retried(
    client: JustitiaClient, fake_service: FakeService, waits_s: list[float], error: httpx.HTTPError
) -> None:
    """Nothing was sent, so a proxy's restart costs only a second."""
    fake_service.answers["/v1/models"] = [error]

    assert await client.models() == ("tiny",)
    assert waits_s == [0.5]


async def test_zero_retries_disable_retries(fake_service: FakeService) -> None:
    """A caller with its own retries wants the first error."""
    fake_service.answers["/v1/models"] = [httpx.ConnectError("refused")]
    transport = HttpTransport("http://service", transport=fake_service.http_transport())
    async with JustitiaClient(transport, max_retries=0) as client:
        with pytest.raises(ServiceUnreachable, match="service"):
            await client.models()


@over_http
async def test_broken_connection_is_not_retried(
    client: JustitiaClient, fake_service: FakeService
) -> None:
    """The service may have started the call, so only the caller can decide about a retry."""
    fake_service.answers["/v1/models"] = [httpx.ReadError("reset")]
    with pytest.raises(ConnectionError, match="ReadError"):
        await client.models()

    assert len(fake_service.requests) == 1


def test_negative_number_of_retries_is_refused(fake_service: FakeService) -> None:
    """The error names the field, its value and the allowed values."""
    with pytest.raises(ConfigError, match="max_retries must be >= 0, got -1"):
        JustitiaClient.from_handle(fake_service.serve_handle(), max_retries=-1)
