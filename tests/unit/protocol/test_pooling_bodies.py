"""Input counts and lengths of requests that generate nothing, such as embeddings."""

import json
from typing import Any

import pytest

from justitia_ray.errors import ContextLengthExceeded, RequestError
from justitia_ray.protocol.endpoints import parse_body
from justitia_ray.protocol.inference_body import Conversation, InferenceBody, Pair, output_bound
from justitia_ray.protocol.pooling_bodies import (
    CLASSIFY,
    COHERE_EMBED,
    EMBEDDINGS,
    POOLING,
    RANKINGS,
    SCORES,
)

_CONTEXT = 100
_MESSAGES = [{"role": "user", "content": "a"}]


def parse_fields(path: str, **fields: Any) -> InferenceBody:
    return parse_body(path, json.dumps(fields).encode(), ("m",), _CONTEXT)


@pytest.mark.parametrize("path", [EMBEDDINGS, POOLING, CLASSIFY])
@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("a b", ["a b"]),
        (["a", "b c"], ["a", "b c"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        (_MESSAGES, [Conversation((_MESSAGES[0],))]),
        ([_MESSAGES, _MESSAGES], [Conversation((_MESSAGES[0],))] * 2),
    ],
)
def test_each_input_of_an_embedding_request_is_a_prompt(
    path: str, given: Any, prompts: list[Any]
) -> None:
    """The cost covers all inputs, in every format that vLLM accepts."""
    assert prompts == parse_fields(path, input=given).prompts


@pytest.mark.parametrize("path", SCORES)
@pytest.mark.parametrize(
    "names",
    [("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2")],
)
def test_score_body_becomes_pairs_of_texts(path: str, names: tuple[str, str]) -> None:
    """One text is compared with a list, or two lists are compared pairwise."""
    first, second = names
    one = parse_fields(path, **{first: "q", second: ["a", "b"]})
    many = parse_fields(path, **{first: ["q", "r"], second: ["a", "b"]})

    assert [Pair("q", "a"), Pair("q", "b")] == one.prompts
    assert [Pair("q", "a"), Pair("r", "b")] == many.prompts


@pytest.mark.parametrize("path", RANKINGS)
def test_ranking_body_becomes_pairs_of_the_query_and_each_document(path: str) -> None:
    body = parse_fields(path, query="q", documents=["a", {"text": "b"}])

    assert [Pair("q", "a"), Pair("q", "b")] == body.prompts


def test_texts_of_cohere_requests_are_prompts() -> None:
    assert ["a", "b"] == parse_fields(COHERE_EMBED, texts=["a", "b"]).prompts


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (EMBEDDINGS, {}, "input"),
        (EMBEDDINGS, {"input": []}, "input"),
        (EMBEDDINGS, {"input": [[]]}, "input"),
        *((EMBEDDINGS, {"input": given}, "input") for given in (["a", 1], [[1], "a", []], [1.5])),
        (EMBEDDINGS, {"input": [*_MESSAGES, "a"]}, "input"),
        (POOLING, {"messages": [[*_MESSAGES, "a"]]}, "messages"),
        (EMBEDDINGS, {"input": "a", "stream": True}, "stream"),
        (EMBEDDINGS, {"input": ["a"] * 2_049}, "input"),
        (SCORES[0], {"queries": "q"}, "queries"),
        (RANKINGS[0], {"documents": ["a"]}, "query"),
        (RANKINGS[0], {"query": "q", "documents": []}, "documents"),
        (COHERE_EMBED, {"input": "a"}, "texts"),
    ],
)
def test_request_without_an_input_is_refused(path: str, fields: dict[str, Any], param: str) -> None:
    """The error must name the missing field."""
    with pytest.raises(RequestError) as refused:
        parse_fields(path, **fields)

    assert param == refused.value.param


def test_pooling_input_may_fill_the_context() -> None:
    """An embedding generates nothing, but the protocol charges one output token."""
    body = parse_fields(EMBEDDINGS, input="a")

    assert 1 == output_bound(body, _CONTEXT, _CONTEXT)
    assert 1 == output_bound(body, 10**6, None)
    with pytest.raises(ContextLengthExceeded) as refused:
        output_bound(body, _CONTEXT + 1, _CONTEXT)
    assert "input" == refused.value.param


@pytest.mark.parametrize(
    "body",
    [
        parse_fields(EMBEDDINGS, input="a", truncate_prompt_tokens=10),
        parse_fields(SCORES[0], text_1="a", text_2="b"),
        parse_fields(RANKINGS[0], query="a", documents=["b"]),
    ],
)
def test_pooling_input_beyond_the_context_is_accepted_if_truncatable(body: InferenceBody) -> None:
    """The engine truncates such an input and answers."""
    assert 1 == output_bound(body, _CONTEXT + 1, _CONTEXT)
