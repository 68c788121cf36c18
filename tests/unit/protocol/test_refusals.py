"""Refusals state a reason and a retry time in forms that the official clients obey."""

import inspect
import re
from pathlib import Path

import anthropic._base_client
import httpx
import openai
import pytest

from justitia_ray import errors
from justitia_ray.core.actions import Refusal
from justitia_ray.core.limits import LimitStanding
from justitia_ray.errors import (
    AdmissionError,
    AttemptsExhausted,
    ConsoleIsBusy,
    DeadlineMissed,
    JustitiaError,
    QueueFull,
    TooManyFailures,
    TooManyViewers,
    Unauthenticated,
)
from justitia_ray.protocol.errors import error_headers, refusal_error, status_of
from justitia_ray.protocol.refusals import DropReason, drop_reason, retry_headers

_API = (Path(__file__).parents[3] / "deployments/api.md").read_text("utf-8")
_MINUTE = LimitStanding("acme", "inferences", 60.0, 0.0, 42.0, 60.0)
_HOUR = LimitStanding("acme", "tokens", 1e6, 0.0, 1_800.0, 3_600.0)
_DAY = LimitStanding("acme", "tokens", 1e6, 0.0, 9_000.5, 86_400.0)


def quota_error(limit: LimitStanding | None, retry_after_s: float | None = None) -> AdmissionError:
    error = refusal_error(Refusal.QUOTA_EXHAUSTED, "acme|app", limit, retry_after_s)
    assert isinstance(error, AdmissionError)
    return error


@pytest.mark.parametrize(
    ("error", "code", "headers"),
    [
        (
            quota_error(_MINUTE),
            "rate_limit_exceeded",
            {"retry-after": "42", "retry-after-ms": "42000"},
        ),
        (
            quota_error(_MINUTE, 3.0),
            "rate_limit_exceeded",
            {"retry-after": "3", "retry-after-ms": "3000"},
        ),
        (
            quota_error(_HOUR),
            "rate_limit_exceeded",
            {"retry-after": "1800", "x-should-retry": "false"},
        ),
        (
            quota_error(_DAY),
            "insufficient_quota",
            {"retry-after": "9001", "x-should-retry": "false"},
        ),
        (
            quota_error(_DAY, 2.0),
            "insufficient_quota",
            {"retry-after": "2", "x-should-retry": "false"},
        ),
        (quota_error(None), "insufficient_quota", {"x-should-retry": "false"}),
        (
            refusal_error(Refusal.CAP_REACHED, "acme|app"),
            "application_budget_exhausted",
            {"x-should-retry": "false"},
        ),
        (DeadlineMissed("late", None), "deadline_missed", {"x-should-retry": "false"}),
        (
            refusal_error(Refusal.QUEUE_FULL, "acme|app", None, 0.01),
            "queue_full",
            {"retry-after": "1", "retry-after-ms": "100"},
        ),
    ],
)
def test_rate_refusal_is_retryable_and_budget_refusal_is_not(
    error: AdmissionError, code: str, headers: dict[str, str]
) -> None:
    """A rate limit refills within the retry time; a daily budget does not."""
    said = error_headers(error, lambda: 0.5)

    assert code == status_of(error)[2]
    assert headers == {n: v for n, v in said.items() if n != "x-justitia-dropped-reason"}


def test_quota_refusal_names_the_exceeded_limit() -> None:
    """The error names the tenant, the unit and the window of the limit."""
    assert "(tokens of acme: 1e+06 in 3600 s, 0 left)" in str(quota_error(_HOUR))


@pytest.mark.parametrize("drawn", [0.0, 0.5, 1.0])
def test_retry_time_is_jittered_and_never_longer_than_clients_obey(drawn: float) -> None:
    """Random jitter of 10 % spreads retries; OpenAI's client ignores waits above 120 s."""
    (seconds, long) = (retry_headers(QueueFull("x", s), lambda: drawn) for s in (50.0, 120.0))

    assert abs({0.0: 45_000, 0.5: 50_000, 1.0: 55_000}[drawn] - int(seconds["retry-after-ms"])) <= 1
    assert 98 <= int(long["retry-after"]) <= 120
    assert int(long["retry-after-ms"]) <= 120_000


@pytest.mark.parametrize("wait_s", [0.001, 0.3, 1.0, 59.5, 120.0, 10_000.0])
@pytest.mark.parametrize("drawn", [0.0, 1.0])
def test_official_clients_obey_the_retry_time(wait_s: float, drawn: float) -> None:
    """The clients' retry rules are read from the installed packages."""
    headers = retry_headers(QueueFull("x", wait_s), lambda: drawn)
    told_s = int(headers["retry-after-ms"]) / 1_000
    one, other = openai.OpenAI(api_key="k"), anthropic.Anthropic(api_key="k")
    theirs = _retries_after(other)

    assert one._should_retry(httpx.Response(429, headers=headers))
    assert theirs(headers)
    assert told_s == one._parse_retry_after_header(httpx.Headers(headers))
    assert 0 < told_s <= 120


def test_official_clients_do_not_retry_a_spent_budget() -> None:
    """A spent budget stays spent until the next day; Anthropic's client would wait for hours."""
    headers = retry_headers(quota_error(_DAY), lambda: 0.5)

    assert not openai.OpenAI(api_key="k")._should_retry(httpx.Response(429, headers=headers))
    assert not _retries_after(anthropic.Anthropic(api_key="k"))(headers)


def _retries_after(client: anthropic.Anthropic):  # type: ignore[no-untyped-def]
    """Return a function that tells whether Anthropic's client retries a 429 with given headers."""
    response = anthropic._base_client.httpx2.Response  # type: ignore[attr-defined]
    return lambda headers: client._should_retry(response(429, headers=headers))


def test_only_admission_refusals_carry_a_reason() -> None:
    """Dashboards and agents tell refusals apart by a fixed list of reasons."""
    told = {drop_reason(refusal_error(reason, "t|a")) for reason in Refusal}
    told |= {drop_reason(error) for error in _admission_errors()}

    assert set(DropReason) == told
    assert drop_reason(AttemptsExhausted("x")) is DropReason.ATTEMPTS
    assert drop_reason(TooManyFailures("x")) is drop_reason(Unauthenticated("x")) is None


def _admission_errors() -> list[JustitiaError]:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    return [
        kind("x")
        for kind in kinds
        if issubclass(kind, AdmissionError | errors.EngineError)
        and kind not in (AdmissionError, TooManyFailures, TooManyViewers, ConsoleIsBusy)
    ]


def test_documentation_has_every_reason() -> None:
    """Authors of agents read the table of reasons in `deployments/api.md`."""
    section = _API.split("### Why a call was dropped")[1].split("\n## ")[0]

    assert {reason.value for reason in DropReason} == set(
        re.findall(r"^\| `(\w+)` \|", section, re.M)
    )
