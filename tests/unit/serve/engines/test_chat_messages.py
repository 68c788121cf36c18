"""Chat messages and template arguments, prepared as vLLM prepares them."""

from typing import Any

import pytest

from justitia_ray.errors import RequestError
from justitia_ray.serve.engines.chat_messages import (
    NotRendered,
    developers_as_system,
    template_arguments,
    template_messages,
    template_tools,
)


def user_message(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def template_message(message: dict[str, Any], *, parts_stay: bool = False) -> dict[str, Any]:
    (read,) = template_messages([message], parts_stay=parts_stay)
    return read


def tool_call_message(arguments: Any) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        *((given, {}) for given in ("", "[]", "42", '{"a": ', None, "null")),
    ],
)
def test_tool_call_arguments_become_an_object(given: Any, read: dict[str, Any]) -> None:
    """Chat templates iterate over the arguments of a tool call.

    SDKs send JSON text, cut off if the model's output was.
    """
    message = tool_call_message(given)
    (call,) = template_message(message)["tool_calls"]

    assert read == call["function"]["arguments"]
    assert given == message["tool_calls"][0]["function"]["arguments"], "the payload stays as it is"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("hi", "hi"),
        (None, ""),
        ([], ""),
        (["a", {"type": "text", "text": "b"}], "a\nb"),
        ([{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        ([{"type": "text", "text": "a"}, {"type": "output_text", "text": "b"}], "a\nb"),
        ([{"type": "thinking", "thinking": "a"}, {"type": "refusal", "refusal": "b"}], "a\nb"),
        ([{"type": "text", "text": None}, {"type": "text", "text": "a"}], "a"),
    ],
)
def test_text_parts_become_lines_of_one_text(content: Any, text: str) -> None:
    assert text == template_message(user_message(content))["content"]


def test_chat_templates_get_text_parts_except_in_tool_results() -> None:
    parts = [
        {"type": "text", "text": "a", "cache_control": {}},
        {"type": "input_text", "text": "b"},
    ]
    texts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    assert texts == template_message(user_message(parts), parts_stay=True)["content"]
    answer = {"role": "tool", "tool_call_id": "c", "content": parts}
    assert {"role": "tool", "tool_call_id": "c", "content": "a\nb"} == template_message(
        answer, parts_stay=True
    )


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "x"}},
        {"type": "tool_reference", "name": "f"},
        {"image_url": "x"},
        {"type": "thinking", "thinking": 3},
    ],
)
def test_message_with_fields_that_only_the_engine_reads_is_not_rendered(
    part: dict[str, Any],
) -> None:
    with pytest.raises(NotRendered):
        template_message(user_message([part]))


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"content": "x"}, "role is null: a string"),
        ({"role": 3, "content": "x"}, "role is 3"),
        (user_message(7), "content is 7: a string or a list"),
        (
            user_message([{"type": "document"}]),
            "has the type 'document': one of audio_embeds, .*text",
        ),
        (
            user_message([{"type": "text", "text": "a"}, {"text": "b"}]),
            "a content part has no type",
        ),
        *(
            (user_message([part]), "a string, or a list with a part of OpenAI's chats")
            for part in ("a", {"type": "text", "text": 3}, {"type": "input_text", "text": "a"})
        ),
        ({"role": "assistant", "tool_calls": ["f()"]}, "tool_calls holds 'f\\(\\)'"),
        (
            {"role": "assistant", "tool_calls": [{"type": "custom", "custom": {}}]},
            "objects of type 'function'",
        ),
    ],
)
def test_request_that_the_engine_always_refuses_is_refused(
    message: dict[str, Any], words: str
) -> None:
    with pytest.raises(RequestError, match=words) as refused:
        template_message(message)

    assert "messages" == refused.value.param


def test_empty_tool_calls_and_fields_of_other_services_are_removed() -> None:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "x",
        "tool_calls": [],
        "refusal": None,
        "audio": None,
    }

    assert {"role": "assistant", "content": "x"} == template_message(message)


def test_chat_template_gets_reasoning_under_both_field_names() -> None:
    """Templates read either name, and clients send the older one."""
    read = template_message({"role": "assistant", "content": "x", "reasoning_content": "because"})

    assert "because" == read["reasoning"] == read["reasoning_content"]


def test_billing_line_of_claude_code_is_removed() -> None:
    system = {"role": "system", "content": "x-anthropic-billing-header: cch=1;\nBe brief."}

    assert "Be brief." == template_message(system)["content"]
    assert system["content"] == template_message(user_message(system["content"]))["content"]


def test_developer_messages_become_a_system_message_for_templates_without_them() -> None:
    rules = [{"role": "system", "content": "a"}, {"role": "developer", "content": "b"}]
    messages = template_messages([*rules, user_message("x")], parts_stay=False)
    ordered = developers_as_system(messages, "{{ messages }}")

    assert [{"role": "system", "content": "a\n\nb"}, user_message("x")] == ordered
    assert messages == developers_as_system(messages, "{% if role == 'developer' %}")
    assert [user_message("x")] == developers_as_system([user_message("x")], "")
    late = developers_as_system([user_message("x"), rules[1]], "")
    assert [{"role": "system", "content": "b"}, user_message("x")] == late


def test_chat_template_gets_the_tool_fields_that_vllm_keeps() -> None:
    tool = {"type": "function", "function": {"name": "f", "strict": True, "x": 1}, "cache": {}}
    read = {"name": "f", "description": None, "parameters": None, "strict": True}

    assert [{"type": "function", "function": read}] == template_tools([tool])
    assert template_tools(None) is None
    with pytest.raises(NotRendered):
        template_tools(["f"])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"add_generation_prompt": True}),
        ({"add_generation_prompt": False}, {"add_generation_prompt": False}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
            {"reasoning_effort": "low", "enable_thinking": False},
        ),
        ({"chat_template_kwargs": {"a": 1, "b": None, "c": "auto"}}, {"a": 1}),
        ({"chat_template_kwargs": {"d": 2}}, {"d": 2}),
        ({"continue_final_message": True}, {"continue_final_message": True}),
    ],
)
def test_callers_template_arguments_override_the_operators(
    fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    read = template_arguments(fields, {"c": 0, "d": 0})

    usual = {"add_generation_prompt": True, "continue_final_message": False, "c": 0, "d": 0}
    assert usual | expected == read
