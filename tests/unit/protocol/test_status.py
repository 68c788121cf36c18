"""Every error has a status, and its body is one that OpenAI's clients can read."""

import pytest

from justitia_ray import errors
from justitia_ray.core.actions import Refusal
from justitia_ray.errors import (
    AdmissionError,
    ApplicationClosed,
    BodyTooLarge,
    ConfigError,
    ContextLengthExceeded,
    EngineError,
    JustitiaError,
    QueueFull,
    RequestError,
    SchedulerSuperseded,
    StoreError,
    TooManyApplications,
    UnknownApplication,
    UnknownLease,
    UnknownModel,
    UnsupportedOperation,
)
from justitia_ray.protocol.status import (
    STATUS,
    error_body,
    error_headers,
    refusal_error,
    status_of,
)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (UnknownModel("x", "model"), 404, "model_not_found"),
        (UnknownApplication("x"), 404, "application_not_found"),
        (ApplicationClosed("x"), 409, "application_closed"),
        (ContextLengthExceeded("x", "prompt"), 400, "context_length_exceeded"),
        (UnsupportedOperation("x"), 400, "unsupported_operation"),
        (RequestError("x", "n"), 400, None),
        (BodyTooLarge("x"), 413, "body_too_large"),
        (ConfigError("x"), 400, None),
        (QueueFull("x"), 429, "queue_full"),
        (TooManyApplications("x"), 429, "too_many_applications"),
        (SchedulerSuperseded("x"), 503, "scheduler_superseded"),
        (AdmissionError("x"), 503, None),
        (EngineError("x"), 502, "engine_error"),
        (StoreError("x"), 500, None),
        (UnknownLease("1-1", "r"), 500, None),
    ],
)
def test_status_and_code_of_each_error(error: JustitiaError, status: int, code: str | None) -> None:
    """What the caller can do about it decides the status; what only we can do is a 500."""
    assert (status, code) == (status_of(error)[0], status_of(error)[2])
    assert str(error) == error_body(error)["error"]["message"]


def test_every_error_for_callers_stands_in_the_table() -> None:
    """A new kind of error must not become a 500 unnoticed."""
    for_callers = (RequestError, AdmissionError)
    kinds = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, for_callers)
    }

    assert kinds <= set(STATUS)


@pytest.mark.parametrize(("after_s", "expected"), [(5.0, "5"), (0.2, "1"), (7.6, "8")])
def test_pressure_says_when_to_come_back(after_s: float, expected: str) -> None:
    """Whole seconds, and never at once."""
    assert {"retry-after": expected} == error_headers(QueueFull("full", after_s))


def test_other_errors_ask_for_no_retry() -> None:
    """A mistake repeated is the same mistake."""
    assert {} == error_headers(RequestError("x"))


@pytest.mark.parametrize("reason", list(Refusal))
def test_refusal_names_its_application(reason: Refusal) -> None:
    """A caller may run many at once."""
    error = refusal_error(reason, "app-1")

    assert "application 'app-1'" in str(error)
    assert status_of(error)[0] in (404, 409, 429, 503)


@pytest.mark.parametrize(
    ("reason", "key"),
    [
        (Refusal.QUEUE_FULL, "scheduler.max_waiting_inferences"),
        (Refusal.TOO_MANY_APPLICATIONS, "scheduler.max_open_applications"),
    ],
)
def test_full_scheduler_names_its_limit_and_when_to_come_back(reason: Refusal, key: str) -> None:
    """Clients retry a 429 by themselves; the operator has to know which key to raise."""
    error = refusal_error(reason, "app-1")

    assert key in str(error)
    assert 429 == status_of(error)[0]
    assert {"retry-after": "5"} == error_headers(error)
