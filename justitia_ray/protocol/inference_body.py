"""A request's JSON body: read strictly, its fields checked, and the part that the queue needs."""

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
"""Schemas of tools nest some ten deep; parsers and writers of JSON give up at about a thousand,
each at another depth."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_INTEGER = TypeAdapter(int)
_BOOLEAN = TypeAdapter(bool)
"""vLLM reads its requests by pydantic's lax rules: `"5"` and `5.0` are 5, `"true"` is true."""


def read_object(body: bytes) -> dict[str, Any]:
    """Return a JSON object that every reader takes alike: finite numbers, names once, UTF-8.

    Raises:
        RequestError: If the body is something else.
    """
    try:
        text = body.decode("utf-8")
        try:
            fields = _STRICT.decode(text)
        except RecursionError:
            raise _too_deep() from None
        if isinstance(fields, dict):
            _check_depth(fields)
        if _SURROGATE.search(text):  # half a character can be written so, but not be encoded
            json.dumps(fields, ensure_ascii=False).encode()
    except ValueError as error:  # UnicodeError is one
        raise RequestError(f"the body is not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise RequestError(f"the body must be a JSON object, not {type(fields).__name__}")
    return fields


def integer(fields: dict[str, Any], name: str, least: int, most: int) -> int | None:
    """Return an integer field, read as the engine reads it; None if it is missing or null.

    Raises:
        RequestError: If the field is something else, or out of range.
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
    """Return a boolean field, read as the engine reads it; False if it is missing or null.

    Raises:
        RequestError: If the field is something else.
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
    """Return a field that is a list of at least one object.

    Args:
        fields: A body's fields.
        name: The field to read.
        what: A noun for its items, e.g. `message`.

    Raises:
        RequestError: If the field is something else.
    """
    value = fields.get(name)
    if not isinstance(value, list) or not value:
        raise RequestError(f"{name} must be a list of at least one {what}", name)
    if not all(isinstance(item, dict) for item in value):
        raise RequestError(f"every {what} must be an object", name)
    return value


def _check_depth(fields: dict[str, Any]) -> None:
    """Refuse an object that nests too deep.

    Raises:
        ValueError: If the object does.
    """
    level: list[Any] = [fields]
    depth = 0
    while level:
        depth += 1
        if depth > _MAX_DEPTH:
            raise _too_deep()
        level = [
            child
            for holder in level
            for child in (holder.values() if type(holder) is dict else holder)
            if type(child) is dict or type(child) is list
        ]


def _too_deep() -> ValueError:
    return ValueError(f"it nests deeper than {_MAX_DEPTH}")


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


_STRICT = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_finite, parse_constant=_refuse_constant
)


USUAL_OUTPUT: Tokens = 16
"""Output of a request that asks for no length and that neither endpoint nor context bounds."""
MAX_SEQUENCES = 1_024
"""Maximum prompts times n of a request: four times what an engine runs at once by default. All are
one inference, which holds its replica until the last one is done."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt that the model's chat template makes of messages."""

    messages: tuple[dict[str, Any], ...]
    """Messages in the form of OpenAI's chats, as they came."""
    tools: list[Any] | None = None
    """Tools in the form of OpenAI's chats."""

    @property
    def text(self) -> str:
        """The messages' contents, a line each."""
        return "\n".join(text_of(one.get("content"), "messages") for one in self.messages)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts that are compared."""

    first: str
    second: str

    @property
    def text(self) -> str:
        """The two texts, a line each."""
        return f"{self.first}\n{self.second}"


Prompt = str | list[int] | Conversation | Pair
"""A text, token ids, or something that the model's tokenizer makes a text of."""


@dataclass(frozen=True, slots=True)
class PromptSize:
    """Number and tokens of a request's prompts."""

    prompts: int
    total_tokens: Tokens
    longest_tokens: Tokens
    is_exact: bool = True
    """Whether the engine will count as many."""
    prefixes: bytes = b""
    """Names of beginnings that others may have, too (`core.prefixes.pack_prefixes`)."""
    copies: int = 1
    """Choices of each prompt that share its memory on the engine."""


@dataclass(frozen=True, slots=True)
class InferenceBody:
    """A request body, as far as the queue reads it."""

    fields: dict[str, Any]
    prompts: list[Prompt]
    """Prompts that the engine reads, at least one."""
    stream: bool = False
    n: int = 1
    """Choices of each prompt."""
    max_tokens: Tokens | None = None
    """Maximum output of each choice; None: all that the context leaves."""
    keeps: Tokens | None = None
    """Tokens that the engine keeps of a longer prompt, as the request asks; None: all of it."""
    forced_length: bool = False
    """Every choice will have exactly `max_tokens`."""
    pools: bool = False
    """Each prompt is read once and charged as one token of output; nothing is generated."""
    estimated: bool = False
    """Prompts are only estimated before the engine has made them: no request is refused by its
    length."""
    prompt_field: str = "prompt"
    """The field that holds the prompt, for errors."""
    effort_field: str | None = None
    """The place of the effort that the model is asked for, e.g. `reasoning.effort`; None: none."""
    payload: bytes = b""
    """The fields as JSON, for the engine: the bytes that came, if they name the model."""
    size: PromptSize | None = None
    """Size of the prompts, once they are counted."""
    wants_ids: bool = False
    """Whether a count of the prompts is to keep their token ids."""


@dataclass(frozen=True, slots=True)
class PromptCount:
    """Tokens of a prompt before the engine has read it."""

    tokens: Tokens
    is_exact: bool = True
    """Whether the engine will count as many; an estimate refuses nothing."""
    ids: "array[int] | None" = None
    """Token ids, if they are wanted and all known."""
    cuts: tuple[Tokens, ...] = ()
    """Numbers of tokens after which prompts may differ that begin alike, e.g. the system prompt."""


Counting: TypeAlias = Generator[None, None, Tokens]
"""A count of tokens in steps of some milliseconds each, so that others can have turns between."""
PromptCounting: TypeAlias = Generator[None, None, PromptCount]
"""A count of a prompt, in such steps."""
CountPrompt: TypeAlias = Callable[[Prompt, InferenceBody, Tokens | None], PromptCounting]
"""Counts the tokens of a prompt in a body, as the engine of the model does if that is possible.

The third argument is how many tokens are of interest: a count that has passed them may end there,
with what it has. None: all are.
"""


def output_bound(
    body: InferenceBody,
    longest_prompt: Tokens,
    max_model_len: Tokens | None,
    *,
    is_exact: bool = True,
) -> Tokens:
    """Return the maximum output of one choice, given the length of its prompt.

    The engine cuts the output that was asked for to what the context leaves (`get_max_tokens`,
    vllm/entrypoints/serve/utils/api_utils.py:169): only a prompt that leaves nothing is refused.

    Args:
        body: The request.
        longest_prompt: Tokens of its longest prompt.
        max_model_len: The model's context, in tokens, if known.
        is_exact: Whether the engine will count as many.

    Raises:
        ContextLengthExceeded: If the prompt fills the context, or exceeds it.
    """
    may_refuse = is_exact and not body.estimated
    if body.pools:
        if max_model_len is not None and longest_prompt > max_model_len and may_refuse:
            raise _too_long(body, longest_prompt, max_model_len)
        return 1
    if max_model_len is None:
        return body.max_tokens if body.max_tokens is not None else USUAL_OUTPUT
    left = max_model_len - longest_prompt
    if left <= 0 and may_refuse:
        raise _too_long(body, longest_prompt, max_model_len)
    return max(1, left if body.max_tokens is None else min(body.max_tokens, left))


def check_sequences(prompts: int, n: int, most: int, field: str) -> None:
    """Refuse a request of too many sequences.

    Raises:
        RequestError: If the request has more than `most`.
    """
    if prompts * n > most:
        times = f", times n makes {prompts * n} sequences" if n > 1 else ""
        raise RequestError(
            f"{field} holds {prompts} prompts{times}: at most {most} are allowed in one request",
            field,
        )


def text_of(content: Any, field: str) -> str:
    """Return the text of a message; images and audio are left to the replica's count.

    Raises:
        RequestError: If the content has another form than messages have.
    """
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise RequestError("content must be a string or a list of parts", field)
    return "\n".join(str(part.get("text", "")) for part in content)


def _too_long(
    body: InferenceBody, longest_prompt: Tokens, max_model_len: Tokens
) -> ContextLengthExceeded:
    return ContextLengthExceeded(
        f"the model's context is {max_model_len} tokens, but the prompt has {longest_prompt};"
        " shorten the prompt",
        body.prompt_field,
    )
