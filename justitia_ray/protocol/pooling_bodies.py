"""Bodies of requests without generation: embeddings, scores of pairs, rankings, classification.

The forms are vLLM's, which follow OpenAI (embeddings), Jina (rankings) and Cohere (`/v2/embed`).
"""

from typing import Any

from justitia_ray.errors import RequestError
from justitia_ray.protocol.generation_bodies import texts_or_ids
from justitia_ray.protocol.inference_body import (
    Conversation,
    InferenceBody,
    Pair,
    Prompt,
    check_sequences,
    objects,
    text_of,
)
from justitia_ray.units import Tokens

EMBEDDINGS = "/v1/embeddings"
COHERE_EMBED = "/v2/embed"
POOLING = "/pooling"
CLASSIFY = "/classify"
SCORES = ("/score", "/v1/score")
RANKINGS = ("/rerank", "/v1/rerank", "/v2/rerank")

_MAX_INPUTS = 2_048
"""Maximum number of inputs of an embeddings request in OpenAI's API."""
_SIDES = (
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
    ("text_1", "text_2"),
)
"""vLLM's names of the two request fields with the texts to score."""
_LIMITS = ("truncate_prompt_tokens", "max_tokens_per_query", "max_tokens_per_doc")


def parse_pooling(path: str, fields: dict[str, Any], longest: Tokens) -> InferenceBody:
    """Parse the fields of a request for embeddings or scores, which generates no text.

    Raises:
        RequestError: If the fields contain no allowed input; `param` names the field.
    """
    if fields.get("stream"):
        raise RequestError("stream is not allowed: nothing is generated", "stream")
    prompts, field = _input_prompts(path, fields)
    check_sequences(len(prompts), 1, _MAX_INPUTS, field)
    return InferenceBody(
        fields,
        prompts,
        max_tokens=1,
        forced_length=True,
        pools=True,
        estimated=field != "input" or any(fields.get(name) for name in _LIMITS),
        prompt_field=field,
    )


def _input_prompts(path: str, fields: dict[str, Any]) -> tuple[list[Prompt], str]:
    """Return the inputs of a request as prompts, with the name of their field."""
    if path in SCORES:
        first, second = _side_fields(fields)
        return _text_pairs(fields[first], fields[second]), second
    if path in RANKINGS:
        if not fields.get("query"):
            raise RequestError("query is missing: a text to rank documents by is needed", "query")
        if not _as_list(fields.get("documents")):
            raise RequestError(
                "documents is missing: a list of at least one is needed", "documents"
            )
        return _text_pairs(fields["query"], fields["documents"]), "documents"
    if path == COHERE_EMBED:
        names = [name for name in ("texts", "images", "inputs") if fields.get(name)]
        if not names:
            raise RequestError("texts is missing: a list of at least one text is needed", "texts")
        return [_input_text(part) for name in names for part in _as_list(fields[name])], names[0]
    field = "messages" if fields.get("messages") else "input"
    given: Any = fields.get(field)
    if isinstance(given, list) and given and all(isinstance(one, list) and one for one in given):
        if isinstance(given[0][0], dict):
            return [_read_conversation(messages, field) for messages in given], field
    elif field == "messages" or (isinstance(given, list) and given and isinstance(given[0], dict)):
        return [_read_conversation(given, field)], field
    elif not isinstance(given, str) and (
        not isinstance(given, list) or not given or given[0] == []
    ):
        raise RequestError(
            "input must be a string, a list of strings, or token ids, and not empty", "input"
        )
    return texts_or_ids(given, "input"), field


def _side_fields(fields: dict[str, Any]) -> tuple[str, str]:
    for first, second in _SIDES:
        if fields.get(first) and fields.get(second):
            return first, second
    allowed = ", ".join(" and ".join(names) for names in _SIDES)
    raise RequestError(f"two sides are needed to score: {allowed}", "queries")


def _text_pairs(first: Any, second: Any) -> list[Prompt]:
    """Return the pairs to score: the first text with each second, or both lists in order.

    vLLM pairs a single first text with each second text, and several first texts with as many
    second ones.
    """
    firsts, seconds = _as_list(first), _as_list(second)
    if len(firsts) == 1:
        firsts = firsts * len(seconds)
    return [Pair(_input_text(a), _input_text(b)) for a, b in zip(firsts, seconds, strict=False)]


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _input_text(part: Any) -> str:
    """Return the text of an input; images have none, and the engine counts their tokens."""
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        return text_of(part.get("content"), "content") or str(part.get("text", ""))
    if isinstance(part, list):
        return " ".join(map(str, part))
    raise RequestError(f"an input must be a text, not {type(part).__name__}")


def _read_conversation(given: Any, field: str) -> Conversation:
    messages = objects({field: given}, field, "message")
    return Conversation(
        tuple(
            {"role": one.get("role", "user"), "content": text_of(one.get("content"), "messages")}
            for one in messages
        )
    )
