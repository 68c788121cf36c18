"""OpenAI's older two families: chats and completions."""

from typing import Any

from justitia_ray.errors import RequestError, UnsupportedOperation
from justitia_ray.protocol.inference_body import (
    MAX_SEQUENCES,
    USUAL_OUTPUT,
    Conversation,
    InferenceBody,
    Prompt,
    check_sequences,
    longest_output,
    text_of,
)
from justitia_ray.protocol.json_body import boolean, integer, objects
from justitia_ray.units import Tokens

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

_MAX_CHOICES = 128
"""OpenAI's bound on n."""


def parse_chat(path: str, fields: dict[str, Any], max_model_len: Tokens | None) -> InferenceBody:
    """Read the fields of a chat, which may fill the context unless it says otherwise.

    Raises:
        RequestError: If a field is malformed or out of range; `param` names it.
        UnsupportedOperation: If it asks for what this service refuses.
    """
    refuse_beam_search(fields)
    objects(fields, "messages", "message")
    newer = integer(fields, "max_completion_tokens", 1, longest_output(max_model_len))
    older = integer(fields, "max_tokens", 1, longest_output(max_model_len))
    return _body(path, fields, 1, newer if newer is not None else older)


def parse_completion(
    path: str, fields: dict[str, Any], max_model_len: Tokens | None
) -> InferenceBody:
    """Read the fields of a completion: 16 tokens for each prompt, unless it says otherwise.

    Raises:
        RequestError: If a field is malformed or out of range; `param` names it.
        UnsupportedOperation: If it asks for what this service refuses.
    """
    refuse_beam_search(fields)
    prompt = fields.get("prompt")
    if not (isinstance(prompt, str) or (isinstance(prompt, list) and prompt)):
        raise RequestError(
            "prompt must be a string, a list of strings, or token ids, and not empty", "prompt"
        )
    is_one = isinstance(prompt, str) or isinstance(prompt[0], int)
    max_tokens = integer(fields, "max_tokens", 1, longest_output(max_model_len))
    return _body(
        path,
        fields,
        1 if is_one else len(prompt),
        USUAL_OUTPUT if max_tokens is None else max_tokens,
    )


def chat_prompts(fields: dict[str, Any]) -> list[Prompt]:
    """Return the one prompt of a chat."""
    messages = tuple(
        {**message, "content": text_of(message.get("content"), "messages")}
        for message in fields["messages"]
    )
    return [Conversation(messages, fields.get("tools"))]


def completion_prompts(fields: dict[str, Any]) -> list[Prompt]:
    """Return the prompts of a completion.

    Raises:
        RequestError: If one is neither text nor token ids.
    """
    return texts_or_ids(fields["prompt"], "prompt")


def texts_or_ids(value: Any, field: str) -> list[Prompt]:
    """Return what a text, token ids, or a list of either says.

    Raises:
        RequestError: If it is something else.
    """
    if isinstance(value, str):
        return [value]
    if all(isinstance(part, int) and not isinstance(part, bool) for part in value):
        return [value]
    for part in value:
        is_ids = isinstance(part, list) and part and all(isinstance(token, int) for token in part)
        if not (isinstance(part, str) or is_ids):
            raise RequestError(f"{field} must hold strings, or lists of token ids, only", field)
    return list(value)


def refuse_beam_search(fields: dict[str, Any]) -> None:
    """Refuse beam search.

    Raises:
        UnsupportedOperation: If it is asked for.
    """
    if fields.get("use_beam_search"):
        raise UnsupportedOperation(
            "use_beam_search is not supported: beam search runs outside the engine's batch",
            "use_beam_search",
        )


def _body(
    path: str, fields: dict[str, Any], prompts: int, max_tokens: Tokens | None
) -> InferenceBody:
    n = integer(fields, "n", 1, _MAX_CHOICES) or 1
    check_sequences(prompts, n, MAX_SEQUENCES, "prompt")
    forced = max_tokens is not None and (
        (fields.get("ignore_eos") is True and not fields.get("stop"))
        or fields.get("min_tokens") == max_tokens
    )
    return InferenceBody(
        path=path,
        fields=fields,
        stream=boolean(fields, "stream"),
        n=n,
        max_tokens=max_tokens,
        forced_length=forced,
        prompt_field="messages" if path == CHAT else "prompt",
    )
