"""Rate-limit headers in the formats of OpenAI, Anthropic and the IETF draft."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.core.limits import LimitStanding
from justitia_ray.protocol.rate_limits import duration, limit_headers, read_limits

_NOW = datetime(2026, 11, 30, 23, 59, 30, 250_000, UTC)
_MINUTE = LimitStanding("acme/search", "inferences", 60.0, 12.9, 30.0, 60.0)
_DAY = LimitStanding("acme", "inferences", 10_000.0, 40.0, 3_600.5, 86_400.0)
_TOKENS = LimitStanding("acme", "tokens", 1e6, 250_000.0, 0.25, 1.0)
_KV = LimitStanding("acme", "kv_token_time", 5e9, 0.0, 86_400.0, 86_400.0)


def test_openai_headers_cover_requests_and_tokens() -> None:
    """The tighter of two request limits is shown; OpenAI has no header for KV token-time."""
    said = limit_headers((_DAY, _MINUTE, _TOKENS, _KV), _NOW, is_anthropic=False)

    assert {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "12",
        "x-ratelimit-reset-requests": "30s",
        "x-ratelimit-limit-tokens": "1000000",
        "x-ratelimit-remaining-tokens": "250000",
        "x-ratelimit-reset-tokens": "250ms",
    } == {name: value for name, value in said.items() if name.startswith("x-")}


def test_anthropic_headers_have_absolute_reset_times() -> None:
    """Reset times are instants, rounded up, also across the end of a month."""
    said = limit_headers((_MINUTE, _TOKENS), _NOW, is_anthropic=True)

    assert {
        "anthropic-ratelimit-requests-limit": "60",
        "anthropic-ratelimit-requests-remaining": "12",
        "anthropic-ratelimit-requests-reset": "2026-12-01T00:00:01Z",
        "anthropic-ratelimit-tokens-limit": "1000000",
        "anthropic-ratelimit-tokens-remaining": "250000",
        "anthropic-ratelimit-tokens-reset": "2026-11-30T23:59:31Z",
    } == {name: value for name, value in said.items() if name.startswith("anthropic-")}
    assert not any(name.startswith("x-") for name in said)


def test_rate_limits_are_ordered_by_remaining_share() -> None:
    again = LimitStanding("acme", "kv_token_time", 5e9, 4e9, 1.0, 86_400.0)
    said = limit_headers((_MINUTE, _KV, again), _NOW, is_anthropic=False)

    assert (
        '"acme:kv_token_time/86400";q=5000000000;w=86400, "acme/search:inferences/60";q=60;w=60'
        == said["ratelimit-policy"]
    )
    assert (
        '"acme:kv_token_time/86400";r=0;t=86400, "acme/search:inferences/60";r=12;t=30'
        == said["ratelimit"]
    )


def test_refusing_rate_limit_is_first_in_the_headers() -> None:
    """A single call may exceed the rest of a limit that is hardly used."""
    said = limit_headers((_KV, _DAY), _NOW, is_anthropic=False, binding=_MINUTE)

    assert said["ratelimit"].startswith('"acme/search:inferences/60";r=12')


_DEEPEST = "/".join("x" * 15 for _ in range(8))
"""Path of a tenant with the largest depth and length."""


@pytest.mark.parametrize("is_anthropic", [False, True])
@pytest.mark.parametrize("scope", ["t/" * 7 + "t", _DEEPEST], ids=["short", "longest"])
@pytest.mark.parametrize("limits", [1, 4, 12, 96, 1_000])
def test_headers_of_many_limits_are_short_and_name_the_tightest(
    limits: int, scope: str, is_anthropic: bool
) -> None:
    """HAProxy replaces an answer with too long headers by a 502; 96 limits took 16 kB."""
    units = ("inferences", "tokens", "kv_token_time", "applications")
    standings = [
        LimitStanding(scope, units[i % 4], 1e15, 1e15 - i, 86_400.0, 60.0 + i)
        for i in range(limits)
    ]
    said = limit_headers(standings, _NOW, is_anthropic=is_anthropic)
    head = "".join(f"{name}: {value}\r\n" for name, value in said.items())
    named = read_limits(said)

    assert len(head) <= 2_000
    assert len(named) == limits or len(head) > 1_600
    assert [standings[-1 - i].period_s for i in range(len(named))] == [s.period_s for s in named]


def test_tenant_without_limits_gets_no_headers() -> None:
    assert {} == limit_headers((), _NOW, is_anthropic=False)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0.0, "0s"), (-1.0, "0s"), (0.0001, "1ms"), (0.9, "900ms"), (1.0, "1s"), (59.2, "1m0s")),
        *((360.0, "6m0s"), (3_661.0, "1h1m1s"), (86_400.0, "24h0m0s")),
    ],
)
def test_rate_limit_durations_have_the_openai_format(seconds: float, text: str) -> None:
    """Durations are rounded up, so that no client retries too early."""
    assert text == duration(seconds)


_COUNTS = st.integers(0, 10**12).map(float)


@given(
    st.lists(
        st.builds(
            LimitStanding,
            st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20),
            st.sampled_from(["inferences", "tokens", "kv_token_time", "applications"]),
            _COUNTS,
            _COUNTS,
            _COUNTS,
            st.none() | st.sampled_from([1.0, 60.0, 3_600.0, 86_400.0]),
        ),
        unique_by=lambda s: (s.scope, s.unit, s.period_s),
        max_size=4,
    )
)
def test_client_parses_the_rate_limit_headers(standings: list[LimitStanding]) -> None:
    """Tenant names may contain quotes and backslashes; the tightest limit comes first."""
    read = read_limits(limit_headers(standings, _NOW, is_anthropic=False))

    assert set(standings) == set(read)
    parts = [s.remaining / s.limit if s.limit else 0.0 for s in read]
    assert parts == sorted(parts)


@pytest.mark.parametrize("value", ["", "nonsense", '"a";q=', '"a";r=1', "1000;w=60"])
def test_headers_of_other_services_are_not_parsed_as_limits(value: str) -> None:
    assert () == read_limits({"ratelimit": value, "ratelimit-policy": value})
