"""Which generation requests may enter the queue, and which are refused first."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from justitia_ray.errors import (
    ContextLengthExceeded,
    RequestError,
    UnknownModel,
    UnsupportedOperation,
)
from justitia_ray.protocol.endpoints import parse_body, prompt_text
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from justitia_ray.protocol.inference_body import Conversation, InferenceBody, output_bound

_CONTEXT = 100
_MESSAGES = [{"role": "user", "content": "a"}]


def body_reader(path: str, **usual: Any) -> Callable[..., InferenceBody]:
    """Return a function that parses a body of these fields and those in its arguments."""
    return lambda **fields: parse_body(path, json.dumps(usual | fields).encode(), ("m",), _CONTEXT)


chat = body_reader(CHAT, messages=_MESSAGES)
completion = body_reader(COMPLETIONS, prompt="a b")
response = body_reader(RESPONSES, input="a b")
message = body_reader(MESSAGES, messages=_MESSAGES, max_tokens=5)
"""Parser of Messages bodies, which must state their length, unlike chats."""


def test_engine_receives_the_body_with_the_served_models_name() -> None:
    """The engine also receives the fields that the queue does not read."""
    fields = chat(min_p=0.1).fields

    assert ("m", 0.1) == (fields["model"], fields["min_p"])


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
def test_default_output_length_follows_openai(body: InferenceBody, expected: int | None) -> None:
    """A chat without max_tokens may fill the context; a completion generates 16 tokens."""
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
def test_output_length_is_exact_only_if_nothing_can_end_it_early(
    body: InferenceBody, expected: bool
) -> None:
    assert expected == body.forced_length


@pytest.mark.parametrize(
    ("parse", "fields", "param", "text"),
    [
        (chat, {"model": 3}, "model", "model must be a string, not int"),
        (chat, {"messages": []}, "messages", "at least one message"),
        (chat, {"messages": "hi"}, "messages", "must be a list"),
        (chat, {"messages": ["hi"]}, "messages", "every message must be an object"),
        (chat, {"n": 0}, "n", "n is 0: an integer of 1 to 128 is allowed"),
        (chat, {"n": 129}, "n", "n is 129: an integer of 1 to 128"),
        (chat, {"n": "two"}, "n", "n is 'two': an integer"),
        (chat, {"max_tokens": -1}, "max_tokens", "max_tokens is -1: an integer of 1 to 100"),
        (chat, {"max_tokens": 101}, "max_tokens", "max_tokens is 101: an integer of 1 to 100"),
        (chat, {"max_tokens": 1.5}, "max_tokens", "max_tokens is 1.5: an integer"),
        (chat, {"max_completion_tokens": "9x"}, "max_completion_tokens", "'9x': an integer"),
        (chat, {"stream": 2}, "stream", "stream is 2: true or false is allowed"),
        (completion, {"prompt": None}, "prompt", "prompt must be a string"),
        (completion, {"prompt": []}, "prompt", "prompt must be a string"),
        (completion, {"prompt": 7}, "prompt", "prompt must be a string"),
        (completion, {"prompt": {"text": "a"}}, "prompt", "prompt must be a string"),
        *((completion, {"prompt": p}, "prompt", "") for p in (["a", 1], [[1], []], [{"text": 1}])),
        (completion, {"prompt": ["a"] * 100_000}, "prompt", ""),
        (completion, {"prompt": ["a"] * 9, "n": 128}, "prompt", ""),
        (completion, {"prompt": [[1]] * 1_025}, "prompt", ""),
        (completion, {"max_tokens": 10**4_000}, "max_tokens", ""),
        (completion, {"max_tokens": "9" * 100_000}, "max_tokens", ""),
        (completion, {"stream": "x" * 100_000}, "stream", ""),
        (completion, {"model": "x" * 100_000}, "model", ""),
        (response, {"input": None}, "input", ""),
        (response, {"input": []}, "input", ""),
        (response, {"input": ["a"]}, "input", "every item must be an object"),
        (response, {"max_output_tokens": 0}, "max_output_tokens", ""),
        (response, {"max_output_tokens": _CONTEXT + 1}, "max_output_tokens", ""),
        (response, {"stream": "maybe"}, "stream", ""),
        (message, {"max_tokens": None}, "max_tokens", "is missing"),
        (message, {"max_tokens": 0}, "max_tokens", "1 to 100"),
        (message, {"max_tokens": _CONTEXT + 1}, "max_tokens", "1 to 100"),
        (message, {"messages": []}, "messages", "at least one message"),
        (message, {"stream": []}, "stream", "true or false"),
    ],
    ids=lambda value: repr(value)[:40] if isinstance(value, dict) else None,
)
def test_error_names_the_invalid_field(
    parse: Callable[..., InferenceBody], fields: dict[str, Any], param: str, text: str
) -> None:
    """The caller learns the invalid field before the request waits in the queue.

    One request is one inference: a hundred thousand sequences would occupy a replica for hours.
    """
    with pytest.raises(RequestError, match=text or param) as refused:
        parse(**fields)

    assert param == refused.value.param
    assert len(str(refused.value)) < 300


def nested_body(depth: int) -> bytes:
    """Return a body with this nesting depth, counting the body itself."""
    lists = depth - 1
    return b'{"prompt": "a", "x": ' + b"[" * lists + b"]" * lists + b"}"


@pytest.mark.parametrize(
    ("parse", "param", "value", "error", "text"),
    [
        (chat, "model", "other", UnknownModel, "'other' does not exist; 'm' is served here"),
        # Beam search runs outside the engine's batch: 3 tokens took 14 s.
        (completion, "use_beam_search", True, UnsupportedOperation, "is not supported"),
        # A stored response is in one replica's memory; the next turn may run on another.
        (response, "previous_response_id", "resp_1", UnsupportedOperation, "not kept"),
        (response, "background", True, UnsupportedOperation, "not kept"),
        (response, "conversation", "conv_1", UnsupportedOperation, "not kept"),
        (response, "prompt", {"id": "p"}, UnsupportedOperation, "not kept"),
    ],
)
def test_unsupported_request_is_refused_with_a_reason(
    parse: Callable[..., InferenceBody],
    param: str,
    value: object,
    error: type[RequestError],
    text: str,
) -> None:
    """A request for a misspelt model must not be answered by another model.

    Options of vLLM are named as unsupported.
    """
    with pytest.raises(error, match=text) as refused:
        parse(**{param: value})

    assert param == refused.value.param
    assert parse(**{param: None}).prompts


@pytest.mark.parametrize(
    ("body", "prompt_tokens", "expected"),
    [
        (chat(), 40, 60),
        (chat(max_tokens=50), 40, 50),
        (chat(max_tokens=100), 40, 60),
        (completion(), 10, 16),
        (completion(), 90, 10),
    ],
)
def test_output_length_is_bounded_by_the_remaining_context(
    body: InferenceBody, prompt_tokens: int, expected: int
) -> None:
    """Admission reserves KV memory only for tokens that can be generated."""
    assert expected == output_bound(body, prompt_tokens, _CONTEXT)


@pytest.mark.parametrize(
    ("body", "prompt_tokens", "param"),
    [
        (chat(), 100, "messages"),
        (completion(), 200, "prompt"),
    ],
)
def test_request_beyond_the_context_is_refused_with_the_lengths(
    body: InferenceBody, prompt_tokens: int, param: str
) -> None:
    """The engine would refuse the request only after its wait in the queue."""
    with pytest.raises(ContextLengthExceeded, match=f"100 tokens.*{prompt_tokens}") as refused:
        output_bound(body, prompt_tokens, _CONTEXT)

    assert param == refused.value.param


def test_unknown_context_length_bounds_only_the_default_output_length() -> None:
    body = b'{"prompt": "a", "max_tokens": 999999}'

    assert 999_999 == output_bound(parse_body(COMPLETIONS, body, ("m",), None), 10**6, None)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        *((body, "the body") for body in (b"", b"{", b"\xff", b'"text"', b"[]", b"[" * 100_000)),
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
        (nested_body(129), "nests deeper than 128"),
        (nested_body(100_000), "nests deeper than 128"),
        (b"[1]", "must be a JSON object, not list"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_ambiguous_request_body_is_refused(path: str, body: bytes, says: str) -> None:
    """Queue, tokenizer and engine use different JSON parsers, which may read it differently.

    A failure in one of them would be a 500 with a logged traceback, or another request.
    """
    with pytest.raises(RequestError) as refused:
        parse_body(path, body, ("m",), _CONTEXT)

    assert says in str(refused.value)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "body",
    [
        nested_body(128),
        json.dumps({"prompt": '[{"' * 500 + "\\"}).encode(),
        b'{"prompt": "\\ud83d\\ude00"}',
        b'{"prompt": "a", "temperature": 1e-400, "x": -0.5E3}',
    ],
    ids=["deep", "brackets in a text", "a pair of surrogates", "numbers"],
)
def test_unusual_but_unambiguous_request_body_is_accepted(body: bytes) -> None:
    assert parse_body(COMPLETIONS, body, ("m",), _CONTEXT).fields["prompt"]


def test_maximum_number_of_sequences_is_accepted() -> None:
    """Evaluations send hundreds of prompts in one body; a list of token ids is one prompt."""
    assert 8 == len(completion(prompt=["a"] * 8, n=128).fields["prompt"])
    assert 2_000 == len(completion(prompt=[1] * 2_000).fields["prompt"])


def test_responses_request_gives_output_length_and_input() -> None:
    """The Responses API ignores `max_tokens`, so a length given there would be unbounded."""
    body = response(max_output_tokens=7, max_tokens=3, stream=True)

    assert (7, True, 1, False) == (body.max_tokens, body.stream, body.n, body.forced_length)
    assert response().max_tokens is None


def test_response_items_become_the_same_conversation_as_in_vllm() -> None:
    """An agent's turns consist mostly of tool calls and their results."""
    body = response(
        instructions="be brief",
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "how warm?"}]},
            {"type": "function_call", "name": "look", "arguments": '{"at": 1}', "call_id": "c"},
            {"type": "function_call_output", "call_id": "c", "output": "21"},
            {"role": "user", "content": "and now?"},
        ],
        tools=[{"type": "function", "name": "look", "parameters": {}}],
    )
    (prompt,) = body.prompts

    assert isinstance(prompt, Conversation)
    assert ["system", "user", "assistant", "tool", "user"] == [m["role"] for m in prompt.messages]
    assert 'be brief\nhow warm?\nlook{"at": 1}\n21\nand now?' == prompt_text(body)
    assert prompt.tools is not None
    assert "look" == prompt.tools[0]["function"]["name"]


def test_output_length_is_limited_to_the_context_as_in_vllm() -> None:
    """The prompt's length is an estimate, so it must not refuse a valid request."""
    assert 10 == output_bound(response(max_output_tokens=50), 90, _CONTEXT)
    assert 50 == output_bound(response(max_output_tokens=50), 20, _CONTEXT)
    assert 1 == output_bound(response(), 130, _CONTEXT)


def test_message_blocks_become_the_same_conversation_as_in_vllm() -> None:
    """The ingress counts text, tool inputs and results; the replica counts images."""
    body = message(
        system=[{"type": "text", "text": "be brief"}],
        messages=[
            {
                "role": "user",
                "content": [{"type": "image", "source": {}}, {"type": "text", "text": "how warm?"}],
            },
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {"at": 1}}],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t",
                        "content": [{"type": "text", "text": "21"}],
                    }
                ],
            },
        ],
        tools=[{"name": "look", "input_schema": {"type": "object"}}],
    )
    (prompt,) = body.prompts

    assert isinstance(prompt, Conversation)
    assert ["system", "user", "assistant", "user"] == [m["role"] for m in prompt.messages]
    assert 'be brief\n\nhow warm?\nlook{"at": 1}\n21' == prompt_text(body)
    assert prompt.tools is not None
    assert {"type": "object"} == prompt.tools[0]["function"]["parameters"]


@pytest.mark.parametrize("content", [3, ["text"], {"text": "a"}])
def test_malformed_message_content_is_a_client_error(content: Any) -> None:
    """Malformed content must not become an internal error of the token counter."""
    with pytest.raises(RequestError, match="a list of blocks"):
        message(messages=[{"role": "user", "content": content}])


def _assistant_message(*parts: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": part} for part in parts]
    return {"role": "assistant", "content": content, **more}


@pytest.mark.parametrize(
    ("item", "passed_on"),
    [
        (_assistant_message("a"), {"role": "assistant", "content": "a"}),
        (
            _assistant_message("a ", "b", id="msg_1"),
            {"role": "assistant", "content": "a b", "id": "msg_1"},
        ),
        (_assistant_message("a", type="message"), _assistant_message("a", type="message")),
        (_assistant_message(), _assistant_message()),
        (_assistant_message("a") | {"role": "user"}, _assistant_message("a") | {"role": "user"}),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        ),
    ],
)
def test_assistant_message_needs_no_type(item: dict[str, Any], passed_on: dict[str, Any]) -> None:
    """OpenCode omits the type, which OpenAI allows and vLLM refuses for lists of parts."""
    body = response(input=[item])

    assert [passed_on] == body.fields["input"] == json.loads(body.payload)["input"]


def test_responses_request_that_vllm_can_read_keeps_its_bytes() -> None:
    sent = json.dumps({"model": "m", "input": [_assistant_message("a", type="message")]}).encode()

    assert sent is parse_body(RESPONSES, sent, ("m",), _CONTEXT).payload
