"""Which calls the client repeats, and when."""

import httpx
import pytest

from justitia_ray.client import HttpTransport, JustitiaClient, ServiceUnreachable
from justitia_ray.errors import ConfigError, ResponseError
from tests.unit.client.fakes import FakeService, as_error, as_sse

CHAT = "/v1/chat/completions"


async def _ask(client: JustitiaClient, *, stream: bool) -> str:
    async with client.application("SC", input="q") as app:
        if stream:
            return "".join([text async for text in app.chat_stream("q")])
        return (await app.chat("q")).text


@pytest.mark.parametrize("stream", [False, True])
async def test_full_queue_is_retried_after_the_stated_time(
    client: JustitiaClient, service: FakeService, waits_s: list[float], stream: bool
) -> None:
    """With 429 and 503 nothing has started; Retry-After gives the time."""
    service.answers[CHAT] = [
        as_error(429, "full", retry_after="3"),
        as_error(503, "no replicas", retry_after="0.25"),
    ]

    assert await _ask(client, stream=stream) == "Hello"
    assert waits_s == [3.0, 0.25]
    assert ["0", "1", "2"] == [
        sent.headers.get("x-stainless-retry-count") for sent in service.sent(CHAT)
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_attempts_are_bounded(
    client: JustitiaClient, service: FakeService, waits_s: list[float], stream: bool
) -> None:
    """By default two retries with growing waits precede the error."""
    service.answers[CHAT] = [as_error(503, "no replicas")] * 3

    with pytest.raises(ResponseError, match="503: no replicas"):
        await _ask(client, stream=stream)

    assert waits_s == [0.5, 1.0]
    assert len(service.sent(CHAT)) == 3


@pytest.mark.parametrize(
    ("status", "wait"), [*((s, None) for s in (400, 404, 409, 500, 502, 504)), (503, "3600")]
)
async def test_other_errors_are_not_tried_again(
    client: JustitiaClient,
    service: FakeService,
    waits_s: list[float],
    status: int,
    wait: str | None,
) -> None:
    """They would fail again, or the inference may have started and would be charged twice.

    A wait of an hour is not made either, and an earlier retry than requested would be refused.
    """
    service.answers[CHAT] = [as_error(status, "no", **({"retry_after": wait} if wait else {}))]

    with pytest.raises(ResponseError, match=f"{status}: no") as caught:
        await _ask(client, stream=False)

    assert caught.value.retry_after_s == (wait and float(wait))
    assert waits_s == []


async def test_spent_budget_is_not_retried(
    client: JustitiaClient, service: FakeService, waits_s: list[float]
) -> None:
    """The service marks a spent budget, so the caller gets the error at once."""
    status, headers, body = as_error(429, "spent", retry_after="2")
    service.answers[CHAT] = [(status, {**headers, "X-Should-Retry": "false"}, body)]

    with pytest.raises(ResponseError, match="spent"):
        await _ask(client, stream=False)

    assert waits_s == []


async def test_nothing_is_tried_again_once_a_stream_has_begun(
    client: JustitiaClient, service: FakeService, waits_s: list[float]
) -> None:
    broken = as_sse([{"choices": [{"index": 0, "delta": {"content": "Hel"}}]}])
    service.answers[CHAT] = [(200, {}, [*broken[:-1], b'data: {"error": {"code": 503}}\n\n'])]

    with pytest.raises(ResponseError):
        await _ask(client, stream=True)

    assert waits_s == []
    assert len(service.sent(CHAT)) == 1


over_http = pytest.mark.parametrize("client", ["http"], indirect=True)


@over_http
@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), httpx.ConnectTimeout("slow")])
async def test_a_refused_connection_is_tried_again(
    client: JustitiaClient, service: FakeService, waits_s: list[float], error: httpx.HTTPError
) -> None:
    """Nothing was sent, so a proxy's restart costs only a second."""
    service.answers["/v1/models"] = [error]

    assert await client.models() == ("tiny",)
    assert waits_s == [0.5]


async def test_no_retries_means_none(service: FakeService) -> None:
    """A caller with its own retries wants the first error."""
    service.answers["/v1/models"] = [httpx.ConnectError("refused")]
    transport = HttpTransport("http://service", transport=service.http())
    async with JustitiaClient(transport, max_retries=0) as client:
        with pytest.raises(ServiceUnreachable, match="service"):
            await client.models()


@over_http
async def test_a_connection_that_breaks_is_not_tried_again(
    client: JustitiaClient, service: FakeService
) -> None:
    """The service may have started the call, and only the caller can decide about a repetition."""
    service.answers["/v1/models"] = [httpx.ReadError("reset")]
    with pytest.raises(ConnectionError, match="ReadError"):
        await client.models()

    assert len(service.requests) == 1


def test_fewer_than_no_retries_are_refused(service: FakeService) -> None:
    """The error names the field, its value and the allowed values."""
    with pytest.raises(ConfigError, match="max_retries must be >= 0, got -1"):
        JustitiaClient.from_handle(service.handle(), max_retries=-1)
