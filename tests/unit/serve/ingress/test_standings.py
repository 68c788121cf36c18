"""Limit standings at an ingress: taken from the last grant and bounded in number."""

from collections.abc import AsyncIterator

import httpx
import pytest

from justitia_ray.core.limits import LimitStanding
from justitia_ray.errors import QuotaExhausted
from justitia_ray.protocol.generation_bodies import CHAT, MESSAGES
from justitia_ray.serve.ingress.standings import TenantStandings
from tests.unit.serve.ingress.http_client import StandInGateway, client_of, served_model

_MINUTE = LimitStanding("acme", "inferences", 60.0, 12.0, 30.0, 60.0)
_SECOND = LimitStanding("acme", "tokens", 100.0, 5.0, 0.5, 1.0)


@pytest.fixture
def gateway() -> StandInGateway:
    return StandInGateway()


@pytest.fixture
async def http(gateway: StandInGateway) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(served_model(gateway)) as client:
        yield client


def test_reset_time_of_a_limit_counts_down_until_the_limit_expires() -> None:
    standings = TenantStandings()
    standings.note({"acme": (_MINUTE, _SECOND)}, 100.0)
    (later,) = standings.of("acme", 110.0)

    assert (_MINUTE, _SECOND) == standings.of("acme", 100.0)
    assert (12.0, 20.0) == (later.remaining, later.reset_s)
    assert () == standings.of("acme", 130.0) == standings.of("other", 100.0)


def test_tenant_whose_limits_were_removed_is_forgotten() -> None:
    standings = TenantStandings()
    standings.note({"acme": (_MINUTE,)}, 0.0)
    standings.note({"acme": ()}, 1.0)

    assert not standings
    assert () == standings.of("acme", 1.0)


def test_number_of_tenants_with_stored_limits_is_bounded() -> None:
    """Callers choose tenant names, so only the tenants served last are stored."""
    standings = TenantStandings()
    for number in range(5_000):
        standings.note({f"t{number}": (_MINUTE,)}, 0.0)

    assert (_MINUTE,) == standings.of("t4999", 0.0)
    assert 1_024 == sum(bool(standings.of(f"t{n}", 0.0)) for n in range(5_000))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "header"),
    [
        (CHAT, "x-ratelimit-remaining-requests"),
        (MESSAGES, "anthropic-ratelimit-requests-remaining"),
    ],
)
async def test_unary_streamed_and_refused_answers_have_limit_headers(
    http: httpx.AsyncClient, gateway: StandInGateway, path: str, header: str, stream: bool
) -> None:
    """The headers have the path's format; a refusal reports the exceeded limit first."""
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "stream": stream}
    without = await http.post(path, json=body)
    gateway.limits = (_MINUTE,)
    served = await http.post(path, json=body)
    binding = {
        "scope": "acme",
        "unit": "inferences",
        "limit": 60.0,
        "remaining": 0.0,
        "reset_s": 42.0,
        "period_s": 60.0,
    }
    gateway.failure = QuotaExhausted("spent", 42.0, binding)
    refused = await http.post(path, json=body)

    assert header not in without.headers
    assert "ratelimit" not in without.headers
    assert (200, "12") == (served.status_code, served.headers[header])
    assert '"acme:inferences/60";q=60;w=60' == served.headers["ratelimit-policy"]
    assert (429, "0") == (refused.status_code, refused.headers[header])
    assert '"acme:inferences/60";r=0;t=42' == refused.headers["ratelimit"]
    assert "quota" == refused.headers["x-justitia-dropped-reason"]
