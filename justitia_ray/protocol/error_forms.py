"""An error in the form that the clients of an endpoint read: OpenAI's, Anthropic's, an event's.

Sources: OpenAI's and Anthropic's API references, "Errors" and "Streaming".
"""

import json
from typing import Any

from justitia_ray.errors import JustitiaError
from justitia_ray.protocol.messages_body import COUNT_TOKENS, MESSAGES
from justitia_ray.protocol.responses_body import RESPONSES
from justitia_ray.protocol.status import error_body, status_of

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_ANTHROPIC_OTHER = "api_error"


def error_in_form(path: str, error: JustitiaError) -> dict[str, Any]:
    """Return the body that answers an error of ours on a path."""
    body = error_body(error)
    return _anthropic(status_of(error)[0], body) if _is_anthropic(path) else body


def engine_error_in_form(path: str, status: int, body: bytes) -> bytes:
    """Return the body of an engine's error on a path.

    vLLM answers in OpenAI's form wherever its own checks of a body fail, and in that of its web
    framework on a path that it has not for this model.
    """
    try:
        said = json.loads(body)
    except ValueError:
        return body
    if not isinstance(said, dict):
        return body
    if "detail" in said:
        said = _openai(path, status, said["detail"])
    elif not _is_anthropic(path):
        return body
    if not isinstance(said.get("error"), dict):
        return body
    return json.dumps(_anthropic(status, said) if _is_anthropic(path) else said).encode()


def error_event(path: str, error: JustitiaError, events: int) -> bytes:
    """Return the event with which a stream on a path ends that fails.

    Args:
        path: The endpoint's.
        error: Why.
        events: How many the caller has of it.
    """
    if path == MESSAGES:
        return _named_event("error", error_in_form(path, error))
    if path == RESPONSES:
        said = error_body(error)["error"]
        event = {
            "type": "error",
            "code": said["code"] or said["type"],
            "message": said["message"],
            "param": said["param"],
            "sequence_number": events,
        }
        return _named_event("error", event)
    return b"data: " + json.dumps(error_body(error)).encode() + b"\n\n"


def _is_anthropic(path: str) -> bool:
    return path in (MESSAGES, COUNT_TOKENS)


def _anthropic(status: int, body: dict[str, Any]) -> dict[str, Any]:
    kind = _ANTHROPIC_TYPES.get(status, _ANTHROPIC_OTHER)
    return {"type": "error", "error": {"type": kind, "message": body["error"].get("message")}}


def _openai(path: str, status: int, detail: Any) -> dict[str, Any]:
    kind = "NotFoundError" if status == 404 else "BadRequestError"
    message = f"the model's engine answers {path} with: {detail}"
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def _named_event(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
