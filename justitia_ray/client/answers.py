"""What the service's JSON means: errors and completions."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from justitia_ray.client.transport import Response
from justitia_ray.errors import ResponseError
from justitia_ray.units import Seconds, Tokens

_EXCERPT_CHARS = 200
"""Of an error page that is not ours (a proxy's); enough to tell whose it is."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer to one inference."""

    text: str
    """Text of the first choice; empty if the model called a tool instead."""
    choices: tuple[str, ...]
    """Texts of all choices, by index."""
    prompt_tokens: Tokens
    output_tokens: Tokens
    """Tokens generated, over all choices."""
    finish_reason: str | None
    """Why the first choice ended: `stop`, `length`, `tool_calls`, …"""
    raw: Mapping[str, Any]
    """The whole answer as the engine gave it."""


def is_success(status: int) -> bool:
    """Return whether the status says that the request was carried out."""
    return 200 <= status < 300


def json_object(response: Response) -> dict[str, Any]:
    """Return the JSON object of a successful answer.

    Raises:
        ResponseError: If the status is no success, or the body is not a JSON object.
    """
    if not is_success(response.status):
        raise response_error(response.status, response.headers, response.body)
    try:
        answer = json.loads(response.body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ResponseError(response.status, "the answer is not a JSON object")
    return answer


def completion(answer: Mapping[str, Any]) -> Completion:
    """Read the answer of `/v1/chat/completions` or `/v1/completions`.

    Raises:
        ResponseError: If it has no choices or no usage.
    """
    try:
        choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
        texts = tuple(
            (choice["message"]["content"] if "message" in choice else choice["text"]) or ""
            for choice in choices
        )
        usage = answer["usage"]
        return Completion(
            text=texts[0],
            choices=texts,
            prompt_tokens=int(usage["prompt_tokens"]),
            output_tokens=int(usage.get("completion_tokens") or 0),
            finish_reason=choices[0].get("finish_reason"),
            raw=answer,
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ResponseError(
            200, f"the answer is not a completion: {type(error).__name__}: {error}"
        ) from error


def response_error(status: int, headers: Mapping[str, str], body: bytes) -> ResponseError:
    """Read an error answer; one that is not OpenAI's JSON is quoted in part."""
    try:
        error = json.loads(body)["error"]
        message, code = str(error["message"]), error.get("code")
    except (ValueError, KeyError, TypeError, AttributeError):
        message = body[:_EXCERPT_CHARS].decode("utf-8", "replace") or "no message"
        code = None
    return ResponseError(
        status,
        message,
        code if isinstance(code, str) else None,
        _retry_after_s(headers.get("retry-after")),
    )


def stream_error(payload: object) -> ResponseError:
    """Read the error event of a stream whose head said 200.

    vLLM gives the status it would have had as the error's `code`; 500 stands for none.
    """
    error = payload.get("error", payload) if isinstance(payload, dict) else None
    if not isinstance(error, dict):
        return ResponseError(500, "the stream ended with an error")
    code = error.get("code")
    return ResponseError(
        code if isinstance(code, int) and 400 <= code <= 599 else 500,
        str(error.get("message") or "the stream ended with an error"),
        code if isinstance(code, str) else None,
    )


def _retry_after_s(value: str | None) -> Seconds | None:
    """Read `Retry-After` in seconds. Its other form, a date, trusts two clocks: not used here."""
    try:
        seconds = float(value or "")
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
