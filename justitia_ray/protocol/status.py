"""The HTTP status of each error, and its body in OpenAI's form: one table."""

from typing import Any

from justitia_ray.core.actions import Refusal
from justitia_ray.errors import (
    AdmissionError,
    ApplicationClosed,
    ConfigError,
    ContextLengthExceeded,
    EngineError,
    JustitiaError,
    QueueFull,
    RequestError,
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
    UnsupportedOperation: (400, "BadRequestError", "unsupported_operation"),
    RequestError: (400, "BadRequestError", None),
    ConfigError: (400, "BadRequestError", None),
    QueueFull: (429, "RateLimitError", "queue_full"),
    AdmissionError: (503, "ServiceUnavailableError", None),
    EngineError: (502, "EngineError", "engine_error"),
}

_REFUSALS: dict[Refusal, tuple[type[RequestError], str]] = {
    Refusal.UNKNOWN_APPLICATION: (UnknownApplication, "is not open"),
    Refusal.APPLICATION_CLOSED: (ApplicationClosed, "is closed and takes no more inferences"),
    Refusal.APPLICATION_CANCELLED: (ApplicationClosed, "was cancelled"),
    Refusal.APPLICATION_EXPIRED: (ApplicationClosed, "expired: nothing was heard of it too long"),
}


def refusal_error(reason: Refusal, application_id: str) -> RequestError:
    """Return the error that a caller gets for an inference that the scheduler refused."""
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
