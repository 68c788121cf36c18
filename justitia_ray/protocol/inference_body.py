"""What the queue must know of a request, whatever the family of its endpoint."""

from dataclasses import dataclass
from typing import Any

from justitia_ray.errors import ContextLengthExceeded, RequestError
from justitia_ray.units import Tokens

USUAL_OUTPUT: Tokens = 16
"""Output of a request that names none, where neither its endpoint nor a context bounds it."""
MAX_SEQUENCES = 1_024
"""Of one request, prompts times n: four times what an engine runs at once by default. They are one
inference, which holds its replica until all of them are done."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt that the model's chat template makes of messages."""

    messages: tuple[dict[str, Any], ...]
    """Each with `role`, and with `content` as text."""
    tools: list[Any] | None = None
    """In the form of OpenAI's chats."""

    @property
    def text(self) -> str:
        """What is said in it."""
        return "\n".join(message["content"] for message in self.messages)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts that are compared."""

    first: str
    second: str

    @property
    def text(self) -> str:
        """Both."""
        return f"{self.first}\n{self.second}"


Prompt = str | list[int] | Conversation | Pair
"""A text, token ids, or what the model's tokenizer makes a text of."""


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
    pools: bool = False
    """Each prompt is read once and nothing is generated: it is charged as one token of output."""
    estimated: bool = False
    """Prompts of this family are only estimated before the engine has made them, and the engine
    cuts what is asked for to what fits: nothing is refused by their length."""
    prompt_field: str = "prompt"
    """The field that holds the prompt, for errors."""


def output_bound(
    body: InferenceBody, longest_prompt: Tokens, max_model_len: Tokens | None
) -> Tokens:
    """Return the most output of one choice, given the length of its prompt.

    Raises:
        ContextLengthExceeded: If the prompt, or the prompt and the output, exceed the context.
    """
    if body.pools:
        if max_model_len is not None and longest_prompt > max_model_len and not body.estimated:
            raise _too_long(body, longest_prompt, max_model_len)
        return 1
    if max_model_len is None:
        return body.max_tokens if body.max_tokens is not None else USUAL_OUTPUT
    left = max_model_len - longest_prompt
    if body.estimated:
        return max(1, left if body.max_tokens is None else min(body.max_tokens, left))
    if left <= 0:
        raise _too_long(body, longest_prompt, max_model_len)
    if body.max_tokens is not None and body.max_tokens > left:
        raise ContextLengthExceeded(
            f"the model's context is {max_model_len} tokens, but {longest_prompt} of prompt and"
            f" {body.max_tokens} of output were asked for; at most {left} of output fit",
            "max_tokens",
        )
    return left if body.max_tokens is None else body.max_tokens


def longest_output(max_model_len: Tokens | None) -> Tokens:
    """Return the most output that may be asked for, whatever the prompt."""
    return max_model_len if max_model_len is not None else 2**31 - 1


def check_sequences(prompts: int, n: int, most: int, field: str) -> None:
    """Refuse a request of too many sequences.

    Raises:
        RequestError: If it has more than `most`.
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
        RequestError: If it has another form than messages have.
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
