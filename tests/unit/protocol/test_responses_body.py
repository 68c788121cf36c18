"""What the queue reads of a request for a response, and what of it is refused."""

import json
from typing import Any

import pytest

from justitia_ray.errors import RequestError, UnsupportedOperation
from justitia_ray.protocol.endpoints import parse_body, prompt_text, prompts_of
from justitia_ray.protocol.inference_body import Conversation, InferenceBody, output_bound
from justitia_ray.protocol.responses_body import RESPONSES

_CONTEXT = 100
_ASKED = {"role": "user", "content": "and now?"}


def response(**fields: Any) -> InferenceBody:
    """Parse a request with these fields."""
    body = json.dumps({"input": "a b", **fields}).encode()
    return parse_body(RESPONSES, body, ("m",), _CONTEXT)


def test_its_own_names_of_length_and_input_are_read() -> None:
    """`max_tokens` means nothing here: the length would be taken for the whole context."""
    body = response(max_output_tokens=7, max_tokens=3, stream=True)

    assert (7, True, 1, False) == (body.max_tokens, body.stream, body.n, body.forced_length)
    assert response().max_tokens is None


@pytest.mark.parametrize("name", ["previous_response_id", "background", "conversation", "prompt"])
def test_what_would_need_an_earlier_response_is_refused(name: str) -> None:
    """It lies in the memory of one replica, and the next turn may run on any."""
    with pytest.raises(UnsupportedOperation, match="not kept") as refused:
        response(**{name: "resp_1"})

    assert name == refused.value.param
    assert response(**{name: None}).fields[name] is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a"]}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": _CONTEXT + 1}, "max_output_tokens"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_malformed_field_is_named(fields: dict[str, Any], param: str) -> None:
    """It would wait its turn first, and be refused then."""
    with pytest.raises(RequestError) as refused:
        response(**fields)

    assert param == refused.value.param


def test_items_become_the_conversation_that_the_engine_makes_of_them() -> None:
    """An agent's turn is mostly calls of tools and their answers: they are most of its size."""
    body = response(
        instructions="be brief",
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "how warm?"}]},
            {"type": "function_call", "name": "look", "arguments": '{"at": 1}', "call_id": "c"},
            {"type": "function_call_output", "call_id": "c", "output": "21"},
            _ASKED,
        ],
        tools=[{"type": "function", "name": "look", "parameters": {}}],
    )
    (prompt,) = prompts_of(body)

    assert isinstance(prompt, Conversation)
    assert ["system", "user", "assistant", "tool", "user"] == [m["role"] for m in prompt.messages]
    assert 'be brief\nhow warm?\nlook{"at": 1}\n21\nand now?' == prompt_text(body)
    assert prompt.tools is not None
    assert "look" == prompt.tools[0]["function"]["name"]


def test_output_is_cut_to_the_context_as_the_engine_cuts_it() -> None:
    """The prompt is an estimate: nothing may be refused by it that the engine would answer."""
    assert 10 == output_bound(response(max_output_tokens=50), 90, _CONTEXT)
    assert 50 == output_bound(response(max_output_tokens=50), 20, _CONTEXT)
    assert 1 == output_bound(response(), 130, _CONTEXT)
