"""Inference endpoints: the body parser of each path, and the names of this service's headers.

A request that can never succeed is refused here at once instead of waiting in the queue first.
Paths outside the table are not served, because vLLM's application has paths that control the
engine.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from justitia_ray.core.tenants import DEFAULT_TIER, TIERS
from justitia_ray.errors import RequestError, UnknownModel, shown_short
from justitia_ray.protocol.generation_bodies import (
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    MESSAGES,
    RESPONSES,
    join_assistant_texts,
    parse_chat,
    parse_completion,
    parse_message,
    parse_response,
)
from justitia_ray.protocol.inference_body import InferenceBody, read_object
from justitia_ray.protocol.pooling_bodies import (
    CLASSIFY,
    COHERE_EMBED,
    EMBEDDINGS,
    POOLING,
    RANKINGS,
    SCORES,
    parse_pooling,
)
from justitia_ray.units import Tokens

APPLICATION_HEADER = "x-justitia-application"
CLASS_HEADER = "x-justitia-class"
TENANT_HEADER = "x-justitia-tenant"
DEADLINE_HEADER = "x-justitia-deadline-s"
"""Header with the longest time in seconds that an inference may wait before it starts."""
RETRY_COUNT_HEADER = "x-stainless-retry-count"
"""Header with the number of earlier attempts; OpenAI's and Anthropic's clients send it with every
call.
"""
KEEPALIVE_HEADER = "x-justitia-keepalive"
"""Header with the form of keepalives in a stream, a value of `stream_forms.Keepalive`."""
FINAL_HEADER = "x-justitia-final"
"""Header that is `true` on the last inference of an application."""

TIER_HEADER = "x-justitia-tier"
"""Header with the service tier of the call."""
REPLICA_HEADER = "x-justitia-replica"
WAITED_HEADER = "x-justitia-waited-s"
POSITION_HEADER = "x-justitia-position"
RAN_HEADER = "x-justitia-ran-s"
LEASED_HEADER = "x-justitia-leased-s"
"""Header with the seconds for which a call held its lease on a replica; set on whole answers, not
on streams.
"""


_PARSERS: dict[str, Callable[[str, dict[str, Any], Tokens], InferenceBody]] = {
    # Parser of the request body by path; its last argument is the maximum number of output tokens.
    CHAT: parse_chat,
    COMPLETIONS: parse_completion,
    RESPONSES: parse_response,
    MESSAGES: parse_message,
} | dict.fromkeys((EMBEDDINGS, COHERE_EMBED, POOLING, CLASSIFY, *SCORES, *RANKINGS), parse_pooling)

INFERENCE_PATHS = tuple(_PARSERS)
"""Paths of calls that wait in the queue for a replica."""
UNSCHEDULED_PATHS = ("/tokenize", "/detokenize", COUNT_TOKENS)
"""Paths that any replica answers at once, because they need no KV memory."""


def parse_body(
    path: str,
    body: bytes,
    models: Sequence[str],
    max_model_len: Tokens | None,
    fields: dict[str, Any] | None = None,
) -> InferenceBody:
    """Parse a request's body; if its fields name no model, add the model's name.

    Args:
        path: One of `INFERENCE_PATHS`.
        body: Body as it was received.
        models: Served names: first the model's own name, then those of its adapters.
        max_model_len: The model's context length in tokens, if known.
        fields: The body's fields, if they were parsed before.

    Raises:
        RequestError: If the body is malformed or a field out of range; `param` names the field.
        UnknownModel: If the body names another model.
        UnsupportedOperation: If the body requests something that this service refuses.
    """
    if fields is None:
        fields = read_object(body)
    payload = name_model(fields, body, models)
    if path == RESPONSES and join_assistant_texts(fields):
        payload = json.dumps(fields).encode()
    longest = max_model_len if max_model_len is not None else 2**31 - 1
    return replace(_PARSERS[path](path, fields, longest), payload=payload)


def read_tier(fields: dict[str, Any]) -> str:
    """Return the service tier in a request's body; unknown tiers count as the default tier.

    Tiers of other services, e.g. `auto`, `fast` and `scale`, mean the default tier; the answer's
    header `x-justitia-tier` contains the tier that was used.
    """
    asked = fields.get("service_tier")
    return asked if isinstance(asked, str) and asked in TIERS else DEFAULT_TIER


def prompt_text(body: InferenceBody) -> str:
    """Return the text of a request's prompts, as the predictor's input for a new application."""
    texts = [
        prompt if isinstance(prompt, str) else prompt.text
        for prompt in body.prompts
        if not isinstance(prompt, list)
    ]
    return "\n".join(texts)


def name_model(fields: dict[str, Any], body: bytes, models: Sequence[str]) -> bytes:
    """Return a request body that names its model, unchanged if it already did.

    Args:
        fields: The body's fields; the name is added to the fields too.
        body: Body as it was received.
        models: Served names.

    Raises:
        RequestError: If the name is not a string.
        UnknownModel: If the name is not served.
    """
    asked = fields.get("model")
    if asked is None:
        fields["model"] = models[0]
        return json.dumps(fields).encode()
    if not isinstance(asked, str):
        raise RequestError(f"model must be a string, not {type(asked).__name__}", "model")
    if asked not in models:
        served = " and ".join(repr(name) for name in models)
        verb = "is" if len(models) == 1 else "are"
        raise UnknownModel(
            f"the model {shown_short(asked)} does not exist; {served} {verb} served here", "model"
        )
    return body
