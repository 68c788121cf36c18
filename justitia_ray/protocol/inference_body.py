"""Parse a request's JSON body strictly, check its fields and extract what the scheduler needs."""

import json
import math
import re
from array import array
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from pydantic import TypeAdapter, ValidationError

from justitia_ray.errors import ContextLengthExceeded, RequestError, shown_short
from justitia_ray.units import Tokens

_MAX_DEPTH = 128
"""Maximum nesting depth of a JSON body. Tool schemas have about ten levels; JSON parsers and
writers fail at about a thousand.
"""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_INTEGER = TypeAdapter(int)
_BOOLEAN = TypeAdapter(bool)
"""Texts that vLLM accepts as booleans, like pydantic: `"true"` is true, but `"5"` is an error."""


def read_object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object strictly: finite numbers, no duplicate names, UTF-8.

    Raises:
        RequestError: If the body is not a JSON object of this kind.
    """
    try:
        text = body.decode("utf-8")
        try:
            fields = _STRICT.decode(text)
        except RecursionError:
            raise _depth_error() from None
        if isinstance(fields, dict):
            _check_depth(fields)
        # JSON can escape a lone surrogate, which has no UTF-8 encoding.
        if _SURROGATE.search(text):
            json.dumps(fields, ensure_ascii=False).encode()
    except ValueError as error:  # includes UnicodeError
        raise RequestError(f"the body is not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise RequestError(f"the body must be a JSON object, not {type(fields).__name__}")
    return fields


def integer(fields: dict[str, Any], name: str, least: int, most: int) -> int | None:
    """Return an integer field of a request by vLLM's rules; None if it is missing or null.

    Raises:
        RequestError: If the field is not an integer, or out of range.
    """
    value = fields.get(name)
    if value is None:
        return None
    try:
        found = value if type(value) is int else _INTEGER.validate_python(value)
    except ValidationError:
        found = None
    if found is None or not least <= found <= most:
        shown = shown_short(value)
        raise RequestError(f"{name} is {shown}: an integer of {least} to {most} is allowed", name)
    return found


def boolean(fields: dict[str, Any], name: str) -> bool:
    """Return a boolean field of a request by vLLM's rules; False if it is missing or null.

    Raises:
        RequestError: If the field is not a boolean.
    """
    value = fields.get(name)
    if value is None:
        return False
    try:
        return value if type(value) is bool else _BOOLEAN.validate_python(value)
    except ValidationError:
        shown = shown_short(value)
        raise RequestError(f"{name} is {shown}: true or false is allowed", name) from None


def objects(fields: dict[str, Any], name: str, what: str) -> list[dict[str, Any]]:
    """Return a field of a request that must be a list of at least one object.

    Args:
        fields: The body's fields.
        name: The field to read.
        what: A noun for its items, e.g. `message`.

    Raises:
        RequestError: If the field is missing, empty or of another form.
    """
    value = fields.get(name)
    if not isinstance(value, list) or not value:
        raise RequestError(f"{name} must be a list of at least one {what}", name)
    if not all(isinstance(item, dict) for item in value):
        raise RequestError(f"every {what} must be an object", name)
    return value


def check_values(value: Any) -> None:
    """Check the depth and the numbers of a JSON value that another parser has read.

    Raises:
        ValueError: If it nests deeper than bodies may, or has a number that is not finite.
    """
    _check_depth({"value": value})
    rest = [value]
    while rest:
        one = rest.pop()
        if type(one) is float and not math.isfinite(one):
            raise ValueError("only finite numbers are allowed")
        if type(one) is dict or type(one) is list:
            rest += one.values() if type(one) is dict else one


def _check_depth(fields: dict[str, Any]) -> None:
    """Refuse a JSON object that exceeds the maximum nesting depth.

    Raises:
        ValueError: If it exceeds `_MAX_DEPTH`.
    """
    level: list[Any] = [fields]
    depth = 0
    while level:
        depth += 1
        if depth > _MAX_DEPTH:
            raise _depth_error()
        level = [
            child
            for holder in level
            for child in (holder.values() if type(holder) is dict else holder)
            if type(child) is dict or type(child) is list
        ]


def _depth_error() -> ValueError:
    return ValueError(f"it nests deeper than {_MAX_DEPTH}")


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"it names {shown_short(name)} twice in one object")
            seen.add(name)
    return found


def _finite_number(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:40]} is too large a number")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


_STRICT = json.JSONDecoder(
    object_pairs_hook=_object_without_duplicates,
    parse_float=_finite_number,
    parse_constant=_refuse_constant,
)


USUAL_OUTPUT: Tokens = 16
"""Assumed output tokens of a request without a limit, while the context length is unknown."""
MAX_SEQUENCES = 1_024
"""Maximum number of sequences (prompts times n) of a request, four times an engine's default. All
of them occupy one replica until the last has ended.
"""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Prompt given as chat messages, which the model's chat template renders."""

    messages: tuple[dict[str, Any], ...]
    """Chat messages in OpenAI's form, unmodified."""
    tools: list[Any] | None = None
    """Tools in the form of OpenAI's chats."""

    @property
    def text(self) -> str:
        """Texts of the messages, joined by line breaks."""
        return "\n".join(text_of(one.get("content"), "messages") for one in self.messages)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts that a scoring model compares."""

    first: str
    second: str

    @property
    def text(self) -> str:
        """Both texts, joined by a line break."""
        return f"{self.first}\n{self.second}"


Prompt = str | list[int] | Conversation | Pair
"""Prompt as text, as token ids, as chat messages, or as a pair of texts to score."""


@dataclass(frozen=True, slots=True)
class PromptSize:
    """Number of prompts of a request, and their tokens."""

    prompts: int
    total_tokens: Tokens
    longest_tokens: Tokens
    is_exact: bool = True
    """Whether the engine will count exactly this number of prompt tokens."""
    prefixes: bytes = b""
    """Hashes of prompt prefixes that other requests may share, packed by
    `core.prefixes.pack_prefixes`.
    """
    copies: int = 1
    """Number of choices per prompt, which share the prompt's KV memory on the engine."""


@dataclass(frozen=True, slots=True)
class InferenceBody:
    """Request body with the fields that the scheduler needs."""

    fields: dict[str, Any]
    prompts: list[Prompt]
    """Prompts of the request, at least one."""
    stream: bool = False
    n: int = 1
    """Number of choices for each prompt."""
    max_tokens: Tokens | None = None
    """Maximum output tokens of each choice; None: up to the model's context length."""
    keeps: Tokens | None = None
    """Number of tokens to which the engine truncates a prompt; None: no truncation."""
    forced_length: bool = False
    """Whether the request forces every choice to have exactly `max_tokens` tokens."""
    pools: bool = False
    """Whether the request is for embeddings or scores. No text is generated, and each prompt is
    charged one output token.
    """
    estimated: bool = False
    """Whether prompt lengths are only estimates, because the engine builds the prompt. Such a
    request is never refused for its length.
    """
    prompt_field: str = "prompt"
    """Name of the request field with the prompt, for error messages."""
    effort_field: str | None = None
    """Path of the request field for reasoning effort, such as `reasoning.effort`; None if the API
    has none.
    """
    payload: bytes = b""
    """JSON that is sent to the engine: the caller's own bytes if they name the model."""
    size: PromptSize | None = None
    """Tokens of the prompts; None before they are counted."""
    wants_ids: bool = False
    """Whether counting must also return the prompts' token ids."""


@dataclass(frozen=True, slots=True)
class PromptCount:
    """Number of tokens of a prompt, counted before the engine reads it."""

    tokens: Tokens
    is_exact: bool = True
    """Whether the engine will count exactly this number of tokens. A request is never refused
    because of an estimate.
    """
    ids: "array[int] | None" = None
    """Token ids of the prompt, if they were requested and all are known."""
    cuts: tuple[Tokens, ...] = ()
    """Token positions at which prompts with a common beginning may diverge, such as the end of the
    system prompt.
    """


Counting: TypeAlias = Generator[None, None, Tokens]
"""Generator that counts tokens in steps of a few milliseconds, so that other work can run in
between.
"""
PromptCounting: TypeAlias = Generator[None, None, PromptCount]
CountPrompt: TypeAlias = Callable[[Prompt, InferenceBody, Tokens | None], PromptCounting]
"""Function that counts the tokens of a prompt as the model's engine does, if possible. It may stop
at the limit in its third argument.
"""


def output_bound(
    body: InferenceBody,
    longest_prompt: Tokens,
    max_model_len: Tokens | None,
    *,
    is_exact: bool = True,
) -> Tokens:
    """Return the maximum output tokens of a choice, given the length of its prompt.

    The engine reduces the requested output to the room that the context leaves (`get_max_tokens`,
    vllm/entrypoints/serve/utils/api_utils.py:169), so only a prompt that leaves no room is refused.

    Args:
        body: The request.
        longest_prompt: Tokens of the longest prompt.
        max_model_len: The model's context length in tokens, if known.
        is_exact: Whether the engine will count the same tokens.

    Raises:
        ContextLengthExceeded: If the prompt fills or exceeds the context.
    """
    may_refuse = is_exact and not body.estimated
    if body.pools:
        if max_model_len is not None and longest_prompt > max_model_len and may_refuse:
            raise _too_long_error(body, longest_prompt, max_model_len)
        return 1
    if max_model_len is None:
        return body.max_tokens if body.max_tokens is not None else USUAL_OUTPUT
    left = max_model_len - longest_prompt
    if left <= 0 and may_refuse:
        raise _too_long_error(body, longest_prompt, max_model_len)
    return max(1, left if body.max_tokens is None else min(body.max_tokens, left))


def check_sequences(prompts: int, n: int, most: int, field: str) -> None:
    """Refuse a request with more than `most` sequences.

    Raises:
        RequestError: If prompts times n exceeds `most`.
    """
    if prompts * n > most:
        times = f", times n makes {prompts * n} sequences" if n > 1 else ""
        raise RequestError(
            f"{field} holds {prompts} prompts{times}: at most {most} are allowed in one request",
            field,
        )


def text_of(content: Any, field: str) -> str:
    """Return the text of a chat message, without images and audio, which the engine counts.

    Raises:
        RequestError: If the content is not a string, a list of parts or null.
    """
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise RequestError("content must be a string or a list of parts", field)
    return "\n".join(str(part.get("text", "")) for part in content)


def _too_long_error(
    body: InferenceBody, longest_prompt: Tokens, max_model_len: Tokens
) -> ContextLengthExceeded:
    return ContextLengthExceeded(
        f"the model's context is {max_model_len} tokens, but the prompt has {longest_prompt};"
        " shorten the prompt",
        body.prompt_field,
    )
