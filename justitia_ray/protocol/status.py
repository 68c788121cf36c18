"""The HTTP status of each error, and its body in OpenAI's form: one table."""

from typing import Any

from justitia_ray.core.actions import Refusal
from justitia_ray.errors import (
    AdmissionError,
    ApplicationClosed,
    BodyTooLarge,
    ConfigError,
    ContextLengthExceeded,
    EngineError,
    JustitiaError,
    NoReplicaAnswers,
    NotServed,
    QueueFull,
    RequestError,
    SchedulerSuperseded,
    TooManyApplications,
    UnknownApplication,
    UnknownModel,
    UnsupportedOperation,
)

STATUS: dict[type[JustitiaError], tuple[int, str, str | None]] = {
    # error: (status, OpenAI's error type, code)
    UnknownModel: (404, "NotFoundError", "model_not_found"),
    UnknownApplication: (404, "NotFoundError", "application_not_found"),
    ApplicationClosed: (409, "ConflictError", "application_closed"),
    ContextLengthExceeded: (400, "BadRequestError", "context_length_exceeded"),
    NotServed: (404, "NotFoundError", "not_served"),
    UnsupportedOperation: (400, "BadRequestError", "unsupported_operation"),
    BodyTooLarge: (413, "BadRequestError", "body_too_large"),
    RequestError: (400, "BadRequestError", None),
    ConfigError: (400, "BadRequestError", None),
    QueueFull: (429, "RateLimitError", "queue_full"),
    TooManyApplications: (429, "RateLimitError", "too_many_applications"),
    NoReplicaAnswers: (503, "ServiceUnavailableError", "no_replica"),
    SchedulerSuperseded: (503, "ServiceUnavailableError", "scheduler_superseded"),
    AdmissionError: (503, "ServiceUnavailableError", None),
    EngineError: (502, "EngineError", "engine_error"),
}

_REFUSALS: dict[Refusal, tuple[type[RequestError], str]] = {
    Refusal.UNKNOWN_APPLICATION: (UnknownApplication, "is not open"),
    Refusal.APPLICATION_CLOSED: (ApplicationClosed, "is closed and takes no more inferences"),
    Refusal.APPLICATION_CANCELLED: (ApplicationClosed, "was cancelled"),
    Refusal.APPLICATION_EXPIRED: (ApplicationClosed, "expired: nothing was heard of it too long"),
}

_RETRY_AFTER_S = 5.0
_FULL: dict[Refusal, tuple[type[AdmissionError], str]] = {
    Refusal.QUEUE_FULL: (
        QueueFull,
        "as many inferences wait as scheduler.max_waiting_inferences allows, in all or of one"
        " tenant; try again later",
    ),
    Refusal.TOO_MANY_APPLICATIONS: (
        TooManyApplications,
        "as many applications are open as scheduler.max_open_applications allows, in all or of one"
        " tenant; close those that are done, or try again later",
    ),
    Refusal.NOT_STORED: (
        AdmissionError,
        "it was not opened, for Redis does not store it in time, which store.durability: strict"
        " asks for; try again later",
    ),
    Refusal.SUPERSEDED: (
        AdmissionError,
        "the scheduler of this deployment has lost its office to another one; /readyz says to whom",
    ),
}


def refusal_error(reason: Refusal, application_id: str) -> RequestError | AdmissionError:
    """Return the error that a caller gets for what the scheduler refused."""
    if reason in _FULL:
        pressure, short = _FULL[reason]
        return pressure(f"application {application_id!r}: {short}", _RETRY_AFTER_S)
    error, text = _REFUSALS[reason]
    return error(f"application {application_id!r} {text}")


def status_of(error: JustitiaError) -> tuple[int, str, str | None]:
    """Return status, type and code of an error; 500 for one that no caller should see."""
    for kind in type(error).__mro__:
        if kind in STATUS:
            return STATUS[kind]
    return 500, "InternalServerError", None


def error_body(error: JustitiaError) -> dict[str, Any]:
    """Return the error as OpenAI's clients expect it."""
    _, kind, code = status_of(error)
    param = error.param if isinstance(error, RequestError) else None
    return {"error": {"message": str(error), "type": kind, "param": param, "code": code}}


def error_headers(error: JustitiaError) -> dict[str, str]:
    """Return the headers that go with an error."""
    if isinstance(error, AdmissionError):
        return {"retry-after": str(max(1, round(error.retry_after_s)))}
    return {}
