"""The inference endpoints: which family reads the body of which path. One table.

A request that can never succeed is refused here, at once: it would otherwise wait its turn first.
What the table does not name is not served: vLLM's application has paths that control the engine.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from justitia_ray.errors import RequestError, UnknownModel, shown_short
from justitia_ray.protocol.inference_body import InferenceBody, Prompt
from justitia_ray.protocol.json_body import read_object
from justitia_ray.protocol.messages_body import (
    COUNT_TOKENS,
    MESSAGES,
    message_prompts,
    parse_message,
)
from justitia_ray.protocol.openai_body import (
    CHAT,
    COMPLETIONS,
    chat_prompts,
    completion_prompts,
    parse_chat,
    parse_completion,
)
from justitia_ray.protocol.pooling_body import (
    CLASSIFY,
    COHERE_EMBED,
    EMBEDDINGS,
    POOLING,
    RANKINGS,
    SCORES,
    parse_pooling,
    pooling_prompts,
)
from justitia_ray.protocol.responses_body import RESPONSES, parse_response, response_prompts
from justitia_ray.units import Tokens


@dataclass(frozen=True, slots=True)
class _Family:
    parse: Callable[[str, dict[str, Any], Tokens | None], InferenceBody]
    prompts: Callable[[dict[str, Any]], list[Prompt]]


_FAMILIES: dict[str, _Family] = {
    CHAT: _Family(parse_chat, chat_prompts),
    COMPLETIONS: _Family(parse_completion, completion_prompts),
    RESPONSES: _Family(parse_response, response_prompts),
    MESSAGES: _Family(parse_message, message_prompts),
} | {
    path: _Family(parse_pooling, partial(pooling_prompts, path))
    for path in (EMBEDDINGS, COHERE_EMBED, POOLING, CLASSIFY, *SCORES, *RANKINGS)
}

INFERENCE_PATHS = tuple(_FAMILIES)
"""What takes part in the queue."""
ASIDE_PATHS = ("/tokenize", "/detokenize", COUNT_TOKENS)
"""What any replica answers at once: it takes no memory of the engine."""


def parse_fields(
    path: str, fields: dict[str, Any], models: Sequence[str], max_model_len: Tokens | None
) -> InferenceBody:
    """Read the fields of a body.

    Args:
        path: One of `INFERENCE_PATHS`.
        fields: Of the body; `model` is added if it is not there.
        models: The names that are served: the model's own first, then those of its adapters.
        max_model_len: Its context, in tokens, if known.

    Raises:
        RequestError: If the body is malformed or a field out of range; `param` names the field.
        UnknownModel: If it asks for another model.
        UnsupportedOperation: If it asks for what this service refuses.
    """
    check_model(fields, models)
    return _FAMILIES[path].parse(path, fields, max_model_len)


def parse_body(
    path: str, body: bytes, models: Sequence[str], max_model_len: Tokens | None
) -> InferenceBody:
    """Read a body as it was sent; see `parse_fields`."""
    return parse_fields(path, read_object(body), models, max_model_len)


def prompts_of(body: InferenceBody) -> list[Prompt]:
    """Return the prompts of a request, at least one.

    Raises:
        RequestError: If one has a form that cannot be read.
    """
    return _FAMILIES[body.path].prompts(body.fields)


def prompt_text(body: InferenceBody) -> str:
    """Return what a request says, as far as it is text: the input of an application of one."""
    texts = [
        prompt if isinstance(prompt, str) else prompt.text
        for prompt in prompts_of(body)
        if not isinstance(prompt, list)
    ]
    return "\n".join(texts)


def asked_model(fields: dict[str, Any]) -> str | None:
    """Return the model that a body names, if it names one.

    Raises:
        RequestError: If it is no string.
    """
    asked = fields.get("model")
    if asked is not None and not isinstance(asked, str):
        raise RequestError(f"model must be a string, not {type(asked).__name__}", "model")
    return asked


def check_model(fields: dict[str, Any], models: Sequence[str]) -> None:
    """Refuse a body that asks for another model; one that names none gets the first name.

    Raises:
        RequestError: If the name is no string.
        UnknownModel: If it is none of those that are served.
    """
    asked = asked_model(fields)
    if asked is None:
        fields["model"] = models[0]
    elif asked not in models:
        served = " and ".join(repr(name) for name in models)
        verb = "is" if len(models) == 1 else "are"
        raise UnknownModel(
            f"the model {shown_short(asked)} does not exist; {served} {verb} served here", "model"
        )
