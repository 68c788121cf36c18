"""What the queue reads of a request for a message in Anthropic's form."""

import json
from typing import Any

import pytest

from justitia_ray.errors import RequestError
from justitia_ray.protocol.endpoints import parse_body, prompt_text, prompts_of
from justitia_ray.protocol.inference_body import Conversation, InferenceBody
from justitia_ray.protocol.messages_body import MESSAGES

_CONTEXT = 100


def message(**fields: Any) -> InferenceBody:
    """Parse a request with these fields."""
    body = {"messages": [{"role": "user", "content": "a b"}], "max_tokens": 5, **fields}
    return parse_body(MESSAGES, json.dumps(body).encode(), ("m",), _CONTEXT)


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"max_tokens": None}, "max_tokens", "is missing"),
        ({"max_tokens": 0}, "max_tokens", "1 to 100"),
        ({"max_tokens": _CONTEXT + 1}, "max_tokens", "1 to 100"),
        ({"messages": []}, "messages", "at least one message"),
        ({"stream": 1}, "stream", "true or false"),
    ],
)
def test_malformed_field_is_named(fields: dict[str, Any], param: str, text: str) -> None:
    """Unlike in a chat, the length has to be said: Anthropic's API asks for it."""
    with pytest.raises(RequestError, match=text) as refused:
        message(**fields)

    assert param == refused.value.param


def test_blocks_become_the_conversation_that_the_engine_makes_of_them() -> None:
    """Text, what a tool was asked and what it said count; an image is the replica's to count."""
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
    (prompt,) = prompts_of(body)

    assert isinstance(prompt, Conversation)
    assert ["system", "user", "assistant", "user"] == [m["role"] for m in prompt.messages]
    assert 'be brief\n\nhow warm?\nlook{"at": 1}\n21' == prompt_text(body)
    assert prompt.tools is not None
    assert {"type": "object"} == prompt.tools[0]["function"]["parameters"]


@pytest.mark.parametrize("content", [3, ["text"], {"text": "a"}])
def test_content_of_another_form_is_the_callers_mistake(content: Any) -> None:
    """It must not become an error of ours when it is counted."""
    body = message(messages=[{"role": "user", "content": content}])

    with pytest.raises(RequestError, match="a list of blocks"):
        prompts_of(body)
