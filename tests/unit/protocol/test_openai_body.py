"""What may wait in the queue, and what is refused before it does."""

import json
from typing import Any

import pytest

from justitia_ray.errors import (
    ContextLengthExceeded,
    RequestError,
    UnknownModel,
    UnsupportedOperation,
)
from justitia_ray.protocol.endpoints import parse_body
from justitia_ray.protocol.inference_body import InferenceBody, output_bound
from justitia_ray.protocol.openai_body import CHAT, COMPLETIONS

_CONTEXT = 100
_MESSAGES = [{"role": "user", "content": "a"}]


def chat(**fields: Any) -> InferenceBody:
    """Parse a chat with these fields."""
    body = json.dumps({"messages": _MESSAGES, **fields}).encode()
    return parse_body(CHAT, body, ("m",), _CONTEXT)


def completion(**fields: Any) -> InferenceBody:
    """Parse a completion with these fields."""
    body = json.dumps({"prompt": "a b", **fields}).encode()
    return parse_body(COMPLETIONS, body, ("m",), _CONTEXT)


def test_missing_model_is_the_one_served() -> None:
    """The engine is given the model's name either way."""
    assert "m" == chat().fields["model"]


def test_unknown_fields_are_passed_on() -> None:
    """The surface is vLLM's; this service reads only what the queue must know."""
    assert {"min_p": 0.1} == {"min_p": chat(min_p=0.1).fields["min_p"]}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (chat(), None),
        (chat(max_tokens=5), 5),
        (chat(max_tokens=5, max_completion_tokens=7), 7),
        (completion(), 16),
        (completion(max_tokens=5), 5),
        (completion(max_tokens=None), 16),
    ],
)
def test_output_asked_for_follows_openai(body: InferenceBody, expected: int | None) -> None:
    """A chat may fill the context, a completion makes 16 tokens unless it says more."""
    assert expected == body.max_tokens


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (completion(max_tokens=5), False),
        (completion(max_tokens=5, ignore_eos=True), True),
        (completion(max_tokens=5, ignore_eos=True, stop=["x"]), False),
        (completion(max_tokens=5, min_tokens=5), True),
        (completion(max_tokens=5, min_tokens=4), False),
        (chat(ignore_eos=True), False),
    ],
)
def test_length_is_forced_only_if_nothing_can_end_it_early(
    body: InferenceBody, expected: bool
) -> None:
    """A length taken for certain is not predicted."""
    assert expected == body.forced_length


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'"text"', b"[]", b"[" * 100_000])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_body_that_is_no_json_object_is_refused(path: str, body: bytes) -> None:
    """Deeply nested JSON must not be an internal error either."""
    with pytest.raises(RequestError, match="the body"):
        parse_body(path, body, ("m",), _CONTEXT)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"model": 3}, "model", "model must be a string, not int"),
        ({"messages": []}, "messages", "at least one message"),
        ({"messages": "hi"}, "messages", "must be a list"),
        ({"messages": ["hi"]}, "messages", "every message must be an object"),
        ({"n": 0}, "n", "n is 0: an integer of 1 to 128 is allowed"),
        ({"n": 129}, "n", "n is 129: an integer of 1 to 128"),
        ({"n": True}, "n", "n is True: an integer"),
        ({"max_tokens": -1}, "max_tokens", "max_tokens is -1: an integer of 1 to 100"),
        ({"max_tokens": 101}, "max_tokens", "max_tokens is 101: an integer of 1 to 100"),
        ({"max_tokens": 1.5}, "max_tokens", "max_tokens is 1.5: an integer"),
        ({"max_completion_tokens": "9"}, "max_completion_tokens", "'9': an integer"),
        ({"stream": 1}, "stream", "stream is 1: true or false is allowed"),
    ],
)
def test_field_out_of_range_is_named_with_what_is_allowed(
    fields: dict[str, Any], param: str, message: str
) -> None:
    """A caller can mend it without reading the source."""
    with pytest.raises(RequestError, match=message) as refused:
        chat(**fields)

    assert param == refused.value.param


@pytest.mark.parametrize("prompt", [None, [], 7, {"text": "a"}])
def test_completion_without_a_prompt_is_refused(prompt: Any) -> None:
    """It would wait its turn for nothing."""
    with pytest.raises(RequestError, match="prompt must be a string") as refused:
        completion(prompt=prompt)

    assert "prompt" == refused.value.param


def test_other_model_is_unknown() -> None:
    """A misspelt name must not be served by another model."""
    with pytest.raises(UnknownModel, match="'other' does not exist; 'm' is served here"):
        chat(model="other")


def test_beam_search_is_not_supported() -> None:
    """It runs outside the engine's batch: 14 s for 3 tokens when it was measured."""
    with pytest.raises(UnsupportedOperation, match="use_beam_search is not supported"):
        completion(use_beam_search=True)


@pytest.mark.parametrize(
    ("body", "prompt_tokens", "expected"),
    [(chat(), 40, 60), (chat(max_tokens=50), 40, 50), (completion(), 10, 16)],
)
def test_output_is_bounded_by_what_the_context_leaves(
    body: InferenceBody, prompt_tokens: int, expected: int
) -> None:
    """Admission sets KV aside for no more than can be made."""
    assert expected == output_bound(body, prompt_tokens, _CONTEXT)


@pytest.mark.parametrize(
    ("body", "prompt_tokens", "param"),
    [
        (chat(), 100, "messages"),
        (completion(), 200, "prompt"),
        (chat(max_tokens=61), 40, "max_tokens"),
    ],
)
def test_what_exceeds_the_context_is_refused_with_the_figures(
    body: InferenceBody, prompt_tokens: int, param: str
) -> None:
    """The engine would refuse it too, but only after its turn had come."""
    with pytest.raises(ContextLengthExceeded, match=f"100 tokens.*{prompt_tokens}") as refused:
        output_bound(body, prompt_tokens, _CONTEXT)

    assert param == refused.value.param


def test_unknown_context_bounds_nothing_but_the_default() -> None:
    """A model whose context is not configured is judged by its engine."""
    unbounded = parse_body(COMPLETIONS, b'{"prompt": "a", "max_tokens": 999999}', ("m",), None)

    assert 999_999 == output_bound(unbounded, 10**6, None)


def nested(depth: int) -> bytes:
    """Return a body that nests so deep, itself included."""
    lists = depth - 1
    return b'{"prompt": "a", "x": ' + b"[" * lists + b"]" * lists + b"}"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not valid JSON"),
        (b'{"prompt": "a"', "not valid JSON"),
        (b'{"prompt": "\xff"}', "not valid JSON: 'utf-8' codec"),
        (b'{"prompt": "\xed\xa0\x80"}', "not valid JSON: 'utf-8' codec"),
        (b'{"prompt": "\\ud800"}', "surrogates not allowed"),
        (b'{"prompt": "a", "temperature": NaN}', "NaN is no JSON number"),
        (b'{"prompt": "a", "temperature": -Infinity}', "-Infinity is no JSON number"),
        (b'{"prompt": "a", "temperature": 1e999}', "1e999 is too large a number"),
        (b'{"prompt": "a", "seed": ' + b"9" * 5_000 + b"}", "4300 digits"),
        (b'{"prompt": "a", "n": 1, "n": 2}', "it names 'n' twice"),
        (b'{"prompt": "a", "x": [{"y": 1, "y": 1}]}', "it names 'y' twice"),
        (nested(129), "nests deeper than 128"),
        (nested(100_000), "nests deeper than 128"),
        (b"[1]", "must be a JSON object, not list"),
    ],
)
def test_body_that_readers_would_take_differently_is_refused(body: bytes, says: str) -> None:
    """The queue, the tokenizer and the engine read it one after the other, each its own way.

    What one of them fails at becomes a 500 with a traceback in the log, or another request.
    """
    with pytest.raises(RequestError) as refused:
        parse_body(COMPLETIONS, body, ("m",), _CONTEXT)

    assert says in str(refused.value)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "body",
    [
        nested(128),
        json.dumps({"prompt": '[{"' * 500 + "\\"}).encode(),
        b'{"prompt": "\\ud83d\\ude00"}',
        b'{"prompt": "a", "temperature": 1e-400, "x": -0.5E3}',
    ],
    ids=["deep", "brackets in a text", "a pair of surrogates", "numbers"],
)
def test_unusual_body_that_all_read_alike_is_taken(body: bytes) -> None:
    """The refusals must not hit what is fine."""
    assert parse_body(COMPLETIONS, body, ("m",), _CONTEXT).fields["prompt"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["a"] * 100_000}, "prompt"),
        ({"prompt": ["a"] * 9, "n": 128}, "prompt"),
        ({"prompt": [[1]] * 1_025}, "prompt"),
        ({"prompt": "a", "max_tokens": 10**4_000}, "max_tokens"),
        ({"prompt": "a", "max_tokens": "9" * 100_000}, "max_tokens"),
        ({"prompt": "a", "stream": "x" * 100_000}, "stream"),
        ({"prompt": "a", "model": "x" * 100_000}, "model"),
    ],
    ids=["prompts", "prompts times n", "token ids", "max_tokens", "text", "stream", "model"],
)
def test_absurd_value_is_refused_in_few_words(fields: dict[str, Any], param: str) -> None:
    """One request is one inference: a hundred thousand sequences would hold a replica for hours."""
    with pytest.raises(RequestError) as refused:
        completion(**fields)

    assert param == refused.value.param
    assert len(str(refused.value)) < 300


def test_as_many_sequences_as_are_allowed_are_taken() -> None:
    """Evaluations send their prompts by hundreds, and token ids are one prompt."""
    assert 8 == len(completion(prompt=["a"] * 8, n=128).fields["prompt"])
    assert 2_000 == len(completion(prompt=[1] * 2_000).fields["prompt"])
