"""HTTP errors: a table of statuses, and error bodies in the form of each endpoint's API.

Sources: OpenAI's and Anthropic's API references, "Errors" and "Streaming".
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from justitia_ray.application_key import split_key
from justitia_ray.core.actions import Refusal
from justitia_ray.core.limits import LimitStanding
from justitia_ray.errors import (
    AdmissionError,
    ApplicationBudgetExhausted,
    ApplicationCancelled,
    ApplicationExpired,
    ApplicationIsClosed,
    ApplicationIsEnding,
    BodyTooLarge,
    ConfigError,
    ConsoleIsBusy,
    ContextLengthExceeded,
    DeadlineMissed,
    EngineError,
    Forbidden,
    JustitiaError,
    KillsEngines,
    NoReplicaAnswers,
    NotServed,
    NotStored,
    QueueFull,
    QuotaExhausted,
    RequestError,
    SchedulerSuperseded,
    StreamRefused,
    TooManyApplications,
    TooManyFailures,
    TooManyViewers,
    Unauthenticated,
    UnknownApplication,
    UnknownModel,
    UnsupportedEncoding,
    UnsupportedOperation,
)
from justitia_ray.protocol.generation_bodies import MESSAGES
from justitia_ray.protocol.refusals import (
    DROPPED,
    DROPPED_REASON_HEADER,
    SHOULD_RETRY_HEADER,
    DropReason,
    drop_reason,
    is_rate,
    retry_headers,
)
from justitia_ray.units import ApplicationId, Seconds

STATUS: dict[type[JustitiaError], tuple[int, str, str | None]] = {
    # HTTP status, error type and error code in OpenAI's form, by error class.
    Unauthenticated: (401, "invalid_request_error", "invalid_api_key"),
    Forbidden: (403, "PermissionDeniedError", None),  # the error has its own code
    UnknownModel: (404, "NotFoundError", "model_not_found"),
    UnknownApplication: (404, "NotFoundError", "application_not_found"),
    ApplicationIsClosed: (409, "ConflictError", "application_closed"),
    ApplicationCancelled: (409, "ConflictError", "application_closed"),
    ApplicationExpired: (409, "ConflictError", "application_closed"),
    ContextLengthExceeded: (400, "BadRequestError", "context_length_exceeded"),
    NotServed: (404, "NotFoundError", "not_served"),
    UnsupportedOperation: (400, "BadRequestError", "unsupported_operation"),
    BodyTooLarge: (413, "BadRequestError", "body_too_large"),
    UnsupportedEncoding: (415, "BadRequestError", "unsupported_content_encoding"),
    RequestError: (400, "BadRequestError", None),
    ConfigError: (400, "BadRequestError", None),
    QueueFull: (429, "RateLimitError", "queue_full"),
    TooManyApplications: (429, "RateLimitError", "too_many_applications"),
    TooManyFailures: (429, "RateLimitError", "too_many_failures"),
    TooManyViewers: (429, "RateLimitError", "too_many_viewers"),
    ConsoleIsBusy: (429, "RateLimitError", "console_busy"),
    QuotaExhausted: (429, "RateLimitError", "insufficient_quota"),
    ApplicationBudgetExhausted: (429, "RateLimitError", "application_budget_exhausted"),
    DeadlineMissed: (504, "DeadlineError", "deadline_missed"),
    NoReplicaAnswers: (503, "ServiceUnavailableError", "no_replica"),
    NotStored: (503, "ServiceUnavailableError", None),
    ApplicationIsEnding: (503, "ServiceUnavailableError", "application_ending"),
    SchedulerSuperseded: (503, "ServiceUnavailableError", "scheduler_superseded"),
    AdmissionError: (503, "ServiceUnavailableError", None),
    KillsEngines: (502, "EngineError", "engine_killer"),
    EngineError: (502, "EngineError", "engine_error"),
}

ACCEPTED_ENCODINGS = "gzip, deflate, zstd, br"
"""Content codings of request bodies that the service can decode, in the form of `Accept-Encoding`.
"""
RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
"""Error code of an exhausted quota with a period of at most an hour; `STATUS` has the code for
longer periods.
"""
_RETRY_AFTER_S = 5.0
"""Default `Retry-After` of temporary refusals, in seconds."""
_NEVER_BY_ITSELF = (QuotaExhausted, ApplicationBudgetExhausted, DeadlineMissed)
"""Errors without a default retry time, because they carry their own or none is known."""
_TOO_SMALL = ": the call needs more than a quota of its tenant has in a whole period"
_REFUSALS: dict[Refusal, tuple[type[RequestError | AdmissionError | KillsEngines], str]] = {
    # Error class, and the text that follows the application's id, by the scheduler's refusal.
    Refusal.UNKNOWN_APPLICATION: (UnknownApplication, " is not open"),
    Refusal.APPLICATION_CLOSED: (ApplicationIsClosed, " is closed and takes no more inferences"),
    Refusal.APPLICATION_CANCELLED: (ApplicationCancelled, " was cancelled"),
    Refusal.APPLICATION_EXPIRED: (
        ApplicationExpired,
        " expired: nothing was heard of it too long",
    ),
    Refusal.APPLICATION_ENDING: (
        ApplicationIsEnding,
        " is ending: the scheduler was started again, and is being told what is left of it; try"
        " again in a moment",
    ),
    Refusal.QUEUE_FULL: (
        QueueFull,
        ": as many inferences wait as scheduler.max_waiting_inferences allows, in all or of one"
        " tenant; try again later",
    ),
    Refusal.TOO_MANY_APPLICATIONS: (
        TooManyApplications,
        ": as many applications are open as scheduler.max_open_applications allows, in all or of"
        " one tenant; close those that are done, or try again later",
    ),
    Refusal.NOT_STORED: (
        NotStored,
        ": it was not opened, for Redis does not store it in time, which store.durability: strict"
        " asks for; try again later",
    ),
    Refusal.SUPERSEDED: (
        SchedulerSuperseded,
        ": the scheduler of this deployment has lost its office to another one; /readyz says to"
        " whom",
    ),
    Refusal.QUOTA_EXHAUSTED: (
        QuotaExhausted,
        ": a quota of its tenant has nothing left in this period",
    ),
    Refusal.CAP_REACHED: (
        ApplicationBudgetExhausted,
        " has used up what one application of its tenant may use",
    ),
    Refusal.DEADLINE: (DeadlineMissed, ": it cannot be served before its deadline"),
    Refusal.ENGINE_KILLER: (
        KillsEngines,
        ": engines or their replicas have died while they ran this call, and no other ran on all of"
        " them; it is not run again (scheduler.engine_deaths_allowed)",
    ),
}


def refusal_error(
    reason: Refusal,
    key: ApplicationId,
    limit: LimitStanding | None = None,
    retry_after_s: Seconds | None = None,
) -> RequestError | AdmissionError | KillsEngines:
    """Return the error for a caller whose call the scheduler refused.

    Args:
        reason: The refusal.
        key: The application's key.
        limit: The limit that caused the refusal, if any.
        retry_after_s: Time until a retry may succeed, if known.
    """
    error, text = _REFUSALS[reason]
    message = f"application {split_key(key)[1]!r}{text}"
    if not issubclass(error, AdmissionError):
        return error(message)
    if limit is not None:
        if limit.is_too_small:
            message = f"application {split_key(key)[1]!r}{_TOO_SMALL}"
        of_what = f"{limit.unit} of {limit.scope}: {limit.limit:g}"
        period = "" if limit.period_s is None else f" in {limit.period_s:g} s"
        needed = "" if limit.wanted is None else f", {limit.wanted:g} needed"
        message = f"{message} ({of_what}{period}, {limit.remaining:g} left{needed})"
    if retry_after_s is None and not issubclass(error, _NEVER_BY_ITSELF):
        retry_after_s = _RETRY_AFTER_S
    elif retry_after_s is None and limit is not None and issubclass(error, QuotaExhausted):
        retry_after_s = None if limit.is_too_small else limit.reset_s
    return error(message, retry_after_s, None if limit is None else asdict(limit))


def status_of(error: JustitiaError) -> tuple[int, str, str | None]:
    """Return HTTP status, error type and error code of an error; 500 for an internal error."""
    if isinstance(error, StreamRefused):
        return error.status, str(error.error.get("type")), None
    for kind in type(error).__mro__:
        if kind in STATUS:
            status, type_, code = STATUS[kind]
            if isinstance(error, Forbidden):
                code = error.code
            elif isinstance(error, QuotaExhausted) and is_rate(error):
                code = RATE_LIMIT_EXCEEDED
            return status, type_, code
    return 500, "InternalServerError", None


def dropped_pairs() -> tuple[tuple[str, DropReason], ...]:
    """Return (code, reason) for each error that drops a call; the code may be ""."""
    pairs = {(RATE_LIMIT_EXCEEDED, DropReason.QUOTA): None}
    for kind, reason in DROPPED.items():
        code = next(STATUS[base][2] for base in kind.__mro__ if base in STATUS)
        pairs[code or "", reason] = None
    return tuple(pairs)


def error_body(error: JustitiaError) -> dict[str, Any]:
    """Return the body of an error answer in the form of OpenAI's API."""
    if isinstance(error, StreamRefused):
        return {"error": error.error}
    _, kind, code = status_of(error)
    param = error.param if isinstance(error, RequestError) else None
    return openai_error(str(error), kind, param, code)


def openai_error(
    message: str, kind: str, param: str | None = None, code: str | int | None = None
) -> dict[str, Any]:
    """Return the body of an error answer in the form of OpenAI's API, from its parts."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_headers(error: JustitiaError, draw: Callable[[], float]) -> dict[str, str]:
    """Return the HTTP headers of an error answer; `draw` is as in `refusals.retry_headers`."""
    if isinstance(error, Unauthenticated):
        return {"www-authenticate": "Bearer"}
    if isinstance(error, UnsupportedEncoding):
        return {"accept-encoding": ACCEPTED_ENCODINGS}
    reason = drop_reason(error)
    headers = {} if reason is None else {DROPPED_REASON_HEADER: reason.value}
    if isinstance(error, KillsEngines | ApplicationIsClosed):
        return headers | {SHOULD_RETRY_HEADER: "false"}
    return headers | retry_headers(error, draw) if isinstance(error, AdmissionError) else headers


_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_in_form(path: str, error: JustitiaError) -> dict[str, Any]:
    """Return the body of a service error in the form of OpenAI's or Anthropic's API, by path."""
    body = error_body(error)
    if not has_anthropic_form(path):
        return body
    return anthropic_error(status_of(error)[0], body["error"]["message"])


def engine_error_in_form(path: str, status: int, body: bytes) -> bytes:
    """Return the body of an engine's error in the form of the path's API.

    vLLM answers in OpenAI's form where its own checks of a body fail, and in the form of its web
    framework on a path that it does not serve for this model.
    """
    said = _parse_engine_error(path, status, body)
    if said is None:
        return body
    if has_anthropic_form(path):
        said = anthropic_error(status, said["error"].get("message"))
    return json.dumps(said).encode()


def engine_error_object(path: str, status: int, body: bytes) -> dict[str, Any]:
    """Return an engine's error in OpenAI's form, whichever form the engine used."""
    said = _parse_engine_error(path, status, body)
    if said is not None:
        return dict(said["error"])
    kind = "BadRequestError" if status < 500 else "InternalServerError"
    message = f"the model's engine answers {path} with status {status}"
    error: dict[str, Any] = openai_error(message, kind, code=status)["error"]
    return error


def _parse_engine_error(path: str, status: int, body: bytes) -> dict[str, Any] | None:
    """Parse an engine's error answer; None if it contains no error object."""
    try:
        said = json.loads(body)
    except ValueError:
        return None
    if not isinstance(said, dict):
        return None
    if "detail" in said:
        message = f"the model's engine answers {path} with: {said['detail']}"
        kind = "NotFoundError" if status == 404 else "BadRequestError"
        said = openai_error(message, kind, code=status)
    return said if isinstance(said.get("error"), dict) else None


def has_anthropic_form(path: str) -> bool:
    """Return whether errors on a path have Anthropic's form; other paths use OpenAI's."""
    return path == MESSAGES or path.startswith(f"{MESSAGES}/")


def anthropic_error(status: int, message: Any) -> dict[str, Any]:
    """Return the body of an error answer in the form of Anthropic's API."""
    kind = _ANTHROPIC_TYPES.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}
