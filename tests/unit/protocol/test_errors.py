"""HTTP status and body of every error, in the formats that the clients read."""

import json

import pytest

from justitia_ray import errors
from justitia_ray.core.actions import Refusal
from justitia_ray.core.limits import LimitStanding
from justitia_ray.errors import (
    AdmissionError,
    ApplicationIsClosed,
    ApplicationIsEnding,
    BodyTooLarge,
    ConfigError,
    ContextLengthExceeded,
    EngineError,
    JustitiaError,
    QueueFull,
    RequestError,
    SchedulerSuperseded,
    StoreError,
    StreamRefused,
    TooManyApplications,
    UnknownApplication,
    UnknownLease,
    UnknownModel,
    UnsupportedOperation,
)
from justitia_ray.protocol.errors import (
    STATUS,
    engine_error_in_form,
    error_body,
    error_headers,
    error_in_form,
    refusal_error,
    status_of,
)
from justitia_ray.protocol.generation_bodies import CHAT, COUNT_TOKENS, MESSAGES


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (UnknownModel("x", "model"), 404, "model_not_found"),
        (UnknownApplication("x"), 404, "application_not_found"),
        (ApplicationIsClosed("x"), 409, "application_closed"),
        (ContextLengthExceeded("x", "prompt"), 400, "context_length_exceeded"),
        (UnsupportedOperation("x"), 400, "unsupported_operation"),
        (RequestError("x", "n"), 400, None),
        (BodyTooLarge("x"), 413, "body_too_large"),
        (ConfigError("x"), 400, None),
        (QueueFull("x"), 429, "queue_full"),
        (TooManyApplications("x"), 429, "too_many_applications"),
        (SchedulerSuperseded("x"), 503, "scheduler_superseded"),
        (ApplicationIsEnding("x"), 503, "application_ending"),
        (AdmissionError("x"), 503, None),
        (EngineError("x"), 502, "engine_error"),
        (StoreError("x"), 500, None),
        (UnknownLease("1-1", "r"), 500, None),
    ],
)
def test_every_error_has_the_right_status_and_code(
    error: JustitiaError, status: int, code: str | None
) -> None:
    """An error that the caller can correct has a 4xx status; an internal error has 500."""
    assert (status, code) == (status_of(error)[0], status_of(error)[2])
    assert str(error) == error_body(error)["error"]["message"]


def test_every_public_error_has_a_status() -> None:
    for_callers = (RequestError, AdmissionError)
    kinds = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, for_callers)
    }

    assert kinds <= set(STATUS)


def _half_jitter() -> float:
    return 0.5


@pytest.mark.parametrize(
    ("wait_s", "whole", "exact"), [(5.0, "5", "5000"), (0.2, "1", "200"), (7.2, "8", "7200")]
)
def test_overload_error_carries_a_retry_time(wait_s: float, whole: str, exact: str) -> None:
    """The Retry-After header has whole seconds, rounded up; the body has milliseconds."""
    said = error_headers(QueueFull("x", wait_s), _half_jitter)

    assert {
        "x-justitia-dropped-reason": "queue_full",
        "retry-after": whole,
        "retry-after-ms": exact,
    } == said


def test_errors_caused_by_the_caller_are_not_retryable() -> None:
    assert {} == error_headers(RequestError("x"), _half_jitter)


_REFUSALS = {
    # refusal: (status, text that names what to change)
    Refusal.UNKNOWN_APPLICATION: (404, ""),
    Refusal.APPLICATION_CLOSED: (409, ""),
    Refusal.APPLICATION_CANCELLED: (409, ""),
    Refusal.APPLICATION_EXPIRED: (409, ""),
    Refusal.APPLICATION_ENDING: (503, "try again in a moment"),
    Refusal.QUEUE_FULL: (429, "scheduler.max_waiting_inferences"),
    Refusal.TOO_MANY_APPLICATIONS: (429, "scheduler.max_open_applications"),
    Refusal.NOT_STORED: (503, "store.durability"),
    Refusal.SUPERSEDED: (503, "/readyz"),
    Refusal.QUOTA_EXHAUSTED: (429, "quota of its tenant"),
    Refusal.CAP_REACHED: (429, "one application of its tenant may use"),
    Refusal.DEADLINE: (504, "deadline"),
    Refusal.ENGINE_KILLER: (502, "scheduler.engine_deaths_allowed"),
}


_SPENT = (
    Refusal.APPLICATION_CLOSED,
    Refusal.APPLICATION_CANCELLED,
    Refusal.APPLICATION_EXPIRED,
    Refusal.QUOTA_EXHAUSTED,
    Refusal.CAP_REACHED,
    Refusal.DEADLINE,
    Refusal.ENGINE_KILLER,
)
"""Refusals that carry no further details and that a retry cannot change."""


@pytest.mark.parametrize("reason", list(Refusal))
def test_refusal_names_the_application_and_a_remedy(reason: Refusal) -> None:
    """A caller may run many applications, and an operator must know which limit to raise."""
    error = refusal_error(reason, "app-1")
    status, text = _REFUSALS[reason]

    assert status == status_of(error)[0]
    assert "application 'app-1'" in str(error)
    assert text in str(error)
    headers = error_headers(error, _half_jitter)
    waits = "5" if status >= 429 and reason not in _SPENT else None
    assert waits == headers.get("retry-after")
    assert ("false" if reason in _SPENT else None) == headers.get("x-should-retry")
    assert headers["x-justitia-dropped-reason"]


def test_call_above_the_whole_quota_is_not_retryable() -> None:
    limit = LimitStanding("t", "tokens", 100.0, 90.0, 30.0, 60.0, wanted=200.0)
    error = refusal_error(Refusal.QUOTA_EXHAUSTED, "app-1", limit)
    headers = error_headers(error, _half_jitter)

    assert "more than a quota of its tenant has in a whole period" in str(error)
    assert "(tokens of t: 100 in 60 s, 90 left, 200 needed)" in str(error)
    assert ("false", None) == (headers.get("x-should-retry"), headers.get("retry-after"))


@pytest.mark.parametrize("path", [MESSAGES, COUNT_TOKENS])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RequestError("x", "max_tokens"), "invalid_request_error"),
        (UnknownModel("x", "model"), "not_found_error"),
        (BodyTooLarge("x"), "request_too_large"),
        (QueueFull("x"), "rate_limit_error"),
        (EngineError("x"), "api_error"),
    ],
)
def test_anthropic_clients_get_their_own_error_format(
    path: str, error: JustitiaError, kind: str
) -> None:
    """Anthropic's client decides by the type of an error whether to retry."""
    assert {"type": "error", "error": {"type": kind, "message": "x"}} == error_in_form(path, error)


def test_stream_refused_before_its_head_returns_the_engines_error() -> None:
    error = StreamRefused(400, {"message": "m", "type": "BadRequestError"})

    assert {"error": error.error} == error_in_form(CHAT, error)
    turned = {"type": "invalid_request_error", "message": "m"}
    assert {"type": "error", "error": turned} == error_in_form(MESSAGES, error)


def test_engine_error_is_converted_to_the_format_of_the_path() -> None:
    """VLLM answers a malformed Messages request in OpenAI's format.

    Bodies that are no errors pass unchanged.
    """
    said = b'{"error": {"message": "m", "type": "BadRequestError", "param": null, "code": 400}}'
    turned = {"type": "error", "error": {"type": "invalid_request_error", "message": "m"}}

    assert turned == json.loads(engine_error_in_form(MESSAGES, 400, said))
    assert said == engine_error_in_form(CHAT, 400, said)
    assert b"<html>" == engine_error_in_form(MESSAGES, 502, b"<html>")
    assert b"[]" == engine_error_in_form(MESSAGES, 502, b"[]")


def test_unknown_engine_path_answers_in_the_error_format_of_the_path() -> None:
    """An embedding engine has no chat path, and its web framework's error has another format."""
    said = b'{"detail": "Not Found"}'

    chat = json.loads(engine_error_in_form(CHAT, 404, said))["error"]
    assert ("NotFoundError", 404) == (chat["type"], chat["code"])
    assert "/v1/chat/completions with: Not Found" in chat["message"]
    message = json.loads(engine_error_in_form(MESSAGES, 404, said))
    assert "not_found_error" == message["error"]["type"]
