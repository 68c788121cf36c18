"""Inputs that are read once: embeddings, scores of pairs, rankings, classes.

The forms are vLLM's, which follow OpenAI (embeddings), Jina (rankings) and Cohere (`/v2/embed`).
"""

from typing import Any

from justitia_ray.errors import RequestError
from justitia_ray.protocol.inference_body import (
    Conversation,
    InferenceBody,
    Pair,
    Prompt,
    check_sequences,
    text_of,
)
from justitia_ray.protocol.json_body import objects
from justitia_ray.protocol.openai_body import texts_or_ids
from justitia_ray.units import Tokens

EMBEDDINGS = "/v1/embeddings"
COHERE_EMBED = "/v2/embed"
POOLING = "/pooling"
CLASSIFY = "/classify"
SCORES = ("/score", "/v1/score")
RANKINGS = ("/rerank", "/v1/rerank", "/v2/rerank")

_MAX_INPUTS = 2_048
"""OpenAI's bound on the inputs of one request for embeddings."""
_SIDES = (
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
    ("text_1", "text_2"),
)
"""What vLLM calls the two sides of a score."""
_LIMITS = ("truncate_prompt_tokens", "max_tokens_per_query", "max_tokens_per_doc")


def parse_pooling(path: str, fields: dict[str, Any], max_model_len: Tokens | None) -> InferenceBody:
    """Read the fields of a request whose inputs are read once.

    Raises:
        RequestError: If they hold no input that is allowed; `param` names the field.
    """
    if fields.get("stream"):
        raise RequestError("stream is not allowed: nothing is generated", "stream")
    inputs, field = _count(path, fields)
    check_sequences(inputs, 1, _MAX_INPUTS, field)
    return InferenceBody(
        path=path,
        fields=fields,
        stream=False,
        n=1,
        max_tokens=1,
        forced_length=True,
        pools=True,
        estimated=field != "input" or any(fields.get(name) for name in _LIMITS),
        prompt_field=field,
    )


def pooling_prompts(path: str, fields: dict[str, Any]) -> list[Prompt]:
    """Return what is read.

    Raises:
        RequestError: If an input has a form that cannot be read.
    """
    if path in SCORES or path in RANKINGS:
        return list(_pairs(path, fields))
    if path == COHERE_EMBED:
        return [
            _plain(part)
            for name in ("texts", "images", "inputs")
            for part in fields.get(name) or []
        ]
    given = fields.get("messages") or fields["input"]
    if isinstance(given, list) and isinstance(given[0], dict):
        return [_conversation(given)]
    if isinstance(given, list) and isinstance(given[0], list) and isinstance(given[0][0], dict):
        return [_conversation(messages) for messages in given]
    return texts_or_ids(given, "input")


def _count(path: str, fields: dict[str, Any]) -> tuple[int, str]:
    """Return how many inputs there are, and the field that holds them."""
    if path in SCORES:
        first, second = _side_names(fields)
        return max(len(_as_list(fields[first])), len(_as_list(fields[second]))), second
    if path in RANKINGS:
        if not fields.get("query"):
            raise RequestError("query is missing: a text to rank documents by is needed", "query")
        return len(_several(fields, "documents")), "documents"
    if path == COHERE_EMBED:
        for name in ("texts", "images", "inputs"):
            if fields.get(name):
                return len(_several(fields, name)), name
        raise RequestError("texts is missing: a list of at least one text is needed", "texts")
    if fields.get("messages"):
        messages = fields["messages"]
        if isinstance(messages, list) and all(isinstance(one, list) and one for one in messages):
            return len(messages), "messages"
        objects(fields, "messages", "message")
        return 1, "messages"
    given = fields.get("input")
    if isinstance(given, str):
        return 1, "input"
    if not isinstance(given, list) or not given or given[0] == []:
        raise RequestError(
            "input must be a string, a list of strings, or token ids, and not empty", "input"
        )
    return 1 if isinstance(given[0], int | dict) else len(given), "input"


def _side_names(fields: dict[str, Any]) -> tuple[str, str]:
    for first, second in _SIDES:
        if fields.get(first) and fields.get(second):
            return first, second
    allowed = ", ".join(" and ".join(names) for names in _SIDES)
    raise RequestError(f"two sides are needed to score: {allowed}", "queries")


def _pairs(path: str, fields: dict[str, Any]) -> list[Pair]:
    """Return what is compared with what: all of one side with the first of the other, or in step.

    vLLM pairs a single first side with each of the second, and several with as many.
    """
    if path in RANKINGS:
        firsts, seconds = _as_list(fields["query"]), _as_list(fields["documents"])
    else:
        first, second = _side_names(fields)
        firsts, seconds = _as_list(fields[first]), _as_list(fields[second])
    if len(firsts) == 1:
        firsts = firsts * len(seconds)
    return [Pair(_plain(a), _plain(b)) for a, b in zip(firsts, seconds, strict=False)]


def _several(fields: dict[str, Any], name: str) -> list[Any]:
    found = _as_list(fields.get(name))
    if not found:
        raise RequestError(f"{name} is missing: a list of at least one is needed", name)
    return found


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _plain(part: Any) -> str:
    """Return what of one input is text; an image is left to the replica's count."""
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        return text_of(part.get("content"), "content") or str(part.get("text", ""))
    if isinstance(part, list):
        return " ".join(map(str, part))
    raise RequestError(f"an input must be a text, not {type(part).__name__}")


def _conversation(messages: list[dict[str, Any]]) -> Conversation:
    return Conversation(
        tuple(
            {"role": one.get("role", "user"), "content": text_of(one.get("content"), "messages")}
            for one in messages
        )
    )
