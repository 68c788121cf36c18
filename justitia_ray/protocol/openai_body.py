"""What the queue must know of an OpenAI request before it may wait; the rest is vLLM's to judge.

A request that can never succeed is refused here, at once: it would otherwise wait its turn first.
"""

import json
import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from justitia_ray.errors import (
    ContextLengthExceeded,
    RequestError,
    UnknownModel,
    UnsupportedOperation,
    shown_short,
)
from justitia_ray.units import Tokens

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
INFERENCE_PATHS = (CHAT, COMPLETIONS)

_COMPLETIONS_DEFAULT_MAX_TOKENS: Tokens = 16
"""OpenAI's, and vLLM's, for `/v1/completions`; a chat may fill the context."""
_MAX_CHOICES = 128
"""OpenAI's bound on n."""
_MAX_SEQUENCES = 1_024
"""Of one request, prompts times n: four times what an engine runs at once by default. They are one
inference, which holds its replica until all of them are done."""
_MAX_DEPTH = 128
"""Schemas of tools nest some ten deep. What parses JSON or writes it gives up at about a thousand,
each at another depth."""
_MARKS = re.compile(r'\\.|["\[{\]}]', re.DOTALL)
"""What depth is counted by; an escaped character is none of it."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class InferenceBody:
    """A request body, as far as the queue reads it."""

    path: str
    fields: dict[str, Any]
    stream: bool
    n: int
    """Choices of each prompt."""
    max_tokens: Tokens | None
    """Most output of each choice; None: what the context leaves."""
    forced_length: bool
    """Every choice will have exactly `max_tokens`."""


def parse_body(path: str, body: bytes, model: str, max_model_len: Tokens | None) -> InferenceBody:
    """Read a body.

    Args:
        path: One of `INFERENCE_PATHS`.
        body: JSON.
        model: The name of the model served.
        max_model_len: Its context, in tokens, if known.

    Raises:
        RequestError: If the body is malformed or a field out of range; `param` names the field.
        UnknownModel: If it asks for another model.
        UnsupportedOperation: If it asks for what this service refuses.
    """
    fields = _read_object(body)
    _check_model(fields, model)
    _check_supported(fields)
    _check_prompt(path, fields)
    max_tokens = _max_tokens(path, fields, max_model_len)
    forced = max_tokens is not None and (
        (fields.get("ignore_eos") is True and not fields.get("stop"))
        or fields.get("min_tokens") == max_tokens
    )
    n = _integer(fields, "n", 1, _MAX_CHOICES) or 1
    _check_sequences(path, fields, n)
    return InferenceBody(
        path=path,
        fields=fields,
        stream=_boolean(fields, "stream"),
        n=n,
        max_tokens=max_tokens,
        forced_length=forced,
    )


def output_bound(
    body: InferenceBody, longest_prompt: Tokens, max_model_len: Tokens | None
) -> Tokens:
    """Return the most output of one choice, given the length of its prompt.

    Raises:
        ContextLengthExceeded: If the prompt, or the prompt and the output, exceed the context.
    """
    if max_model_len is None:
        return body.max_tokens if body.max_tokens is not None else _COMPLETIONS_DEFAULT_MAX_TOKENS
    if longest_prompt >= max_model_len:
        raise ContextLengthExceeded(
            f"the model's context is {max_model_len} tokens, but the prompt has {longest_prompt};"
            " shorten the prompt",
            "messages" if body.path == CHAT else "prompt",
        )
    left = max_model_len - longest_prompt
    if body.max_tokens is not None and body.max_tokens > left:
        raise ContextLengthExceeded(
            f"the model's context is {max_model_len} tokens, but {longest_prompt} of prompt and"
            f" {body.max_tokens} of output were asked for; at most {left} of output fit",
            "max_tokens",
        )
    return left if body.max_tokens is None else body.max_tokens


def _read_object(body: bytes) -> dict[str, Any]:
    """Return a JSON object that everybody reads alike: numbers finite, names once, text in UTF-8.

    Raises:
        RequestError: If it is something else.
    """
    try:
        text = body.decode("utf-8")
        _check_depth(text)
        fields = json.loads(
            text,
            object_pairs_hook=_object,
            parse_float=_finite,
            parse_constant=_refuse_constant,
        )
        if _SURROGATE.search(text):  # half a character can be written so, but not be encoded
            json.dumps(fields, ensure_ascii=False).encode()
    except ValueError as error:  # UnicodeError is one
        raise RequestError(f"the body is not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise RequestError(f"the body must be a JSON object, not {type(fields).__name__}")
    return fields


def _check_depth(text: str) -> None:
    """Refuse what nests too deep.

    Raises:
        ValueError: If it does.
    """
    if text.count("[") + text.count("{") <= _MAX_DEPTH:
        return
    depth, in_string = 0, False
    for mark in _MARKS.finditer(text):
        character = mark.group()
        if character == '"':
            in_string = not in_string
        elif in_string or len(character) > 1:
            continue
        elif character in "[{":
            depth += 1
            if depth > _MAX_DEPTH:
                raise ValueError(f"it nests deeper than {_MAX_DEPTH}")
        else:
            depth -= 1


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"it names {shown_short(name)} twice in one object")
            seen.add(name)
    return found


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:40]} is too large a number")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _check_model(fields: dict[str, Any], model: str) -> None:
    asked = fields.get("model")
    if asked is None:
        fields["model"] = model
    elif not isinstance(asked, str):
        raise RequestError(f"model must be a string, not {type(asked).__name__}", "model")
    elif asked != model:
        shown = shown_short(asked)
        raise UnknownModel(f"the model {shown} does not exist; {model!r} is served here", "model")


def _check_supported(fields: dict[str, Any]) -> None:
    if fields.get("use_beam_search"):
        raise UnsupportedOperation(
            "use_beam_search is not supported: beam search runs outside the engine's batch",
            "use_beam_search",
        )


def _check_prompt(path: str, fields: dict[str, Any]) -> None:
    if path == CHAT:
        messages = fields.get("messages")
        if not isinstance(messages, list) or not messages:
            raise RequestError("messages must be a list of at least one message", "messages")
        if not all(isinstance(message, dict) for message in messages):
            raise RequestError("every message must be an object with role and content", "messages")
        return
    prompt = fields.get("prompt")
    is_text = isinstance(prompt, str)
    is_list = isinstance(prompt, list) and bool(prompt)
    if not (is_text or is_list):
        raise RequestError(
            "prompt must be a string, a list of strings, or token ids, and not empty", "prompt"
        )


def _check_sequences(path: str, fields: dict[str, Any], n: int) -> None:
    prompt = fields.get("prompt") if path == COMPLETIONS else None
    is_one = not isinstance(prompt, list) or isinstance(prompt[0], int)  # text, or token ids
    prompts = 1 if is_one or prompt is None else len(prompt)
    if prompts * n > _MAX_SEQUENCES:
        raise RequestError(
            f"prompt holds {prompts} prompts, times n makes {prompts * n} sequences: at most"
            f" {_MAX_SEQUENCES} are allowed in one request",
            "prompt",
        )


def _max_tokens(path: str, fields: dict[str, Any], max_model_len: Tokens | None) -> Tokens | None:
    most = max_model_len if max_model_len is not None else 2**31 - 1
    newer = _integer(fields, "max_completion_tokens", 1, most) if path == CHAT else None
    older = _integer(fields, "max_tokens", 1, most)
    chosen = newer if newer is not None else older
    if chosen is None and path == COMPLETIONS:
        return _COMPLETIONS_DEFAULT_MAX_TOKENS
    return chosen


def _integer(fields: dict[str, Any], name: str, least: int, most: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        shown = shown_short(value)
        raise RequestError(f"{name} is {shown}: an integer of {least} to {most} is allowed", name)
    return value


def _boolean(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        shown = shown_short(value)
        raise RequestError(f"{name} is {shown}: true or false is allowed", name)
    return value
