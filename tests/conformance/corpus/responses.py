"""Bodies of OpenAI's Responses: items of Codex and of the agents SDK, tools, efforts."""

from typing import Any

from tests.conformance.corpus.words import CONTEXT, FILLING, IMAGE, LONG, WEATHER

_HI: dict[str, Any] = {"input": "hi", "max_output_tokens": 2}
_FUNCTION = {"type": "function", "name": "weather", "parameters": WEATHER, "strict": False}


def _hi_response(**more: Any) -> dict[str, Any]:
    return _HI | more


def _response_of(*items: Any, **more: Any) -> dict[str, Any]:
    return {"input": list(items), "max_output_tokens": 2} | more


def _message_item(role: str = "user", content: Any = "hi", **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content} | more


_CALL = {
    "type": "function_call",
    "call_id": "c1",
    "name": "weather",
    "arguments": '{"city": "Bern"}',
}
_OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}

RESPONSES: dict[str, dict[str, Any]] = {
    "plain": _hi_response(),
    "streamed": _hi_response(stream=True),
    "instructions": _hi_response(instructions="Be brief."),
    "no length": {"input": "hi", "stop": ["a", "e", " "]},
    "input missing": {"max_output_tokens": 2},
    "input null": _hi_response(input=None),
    "input empty": _hi_response(input=""),
    "input no items": _response_of(),
    "input an object": _hi_response(input={"role": "user", "content": "x"}),
    "item a text": _response_of("hi"),
    "message": _response_of(_message_item()),
    "message without a type": _response_of({"role": "user", "content": "hi"}),
    "message in parts": _response_of(_message_item(content=[{"type": "input_text", "text": "hi"}])),
    "message in parts of chats": _response_of(
        _message_item(content=[{"type": "text", "text": "hi"}])
    ),
    "developer": _response_of(_message_item("developer", "Be brief."), _message_item()),
    "system between items": _response_of(
        _message_item(), _message_item("system", "x"), _message_item()
    ),
    "role unknown": _response_of(_message_item("critic")),
    "role missing": _response_of({"type": "message", "content": "hi"}),
    "image": _response_of(_message_item(content=[{"type": "input_image", "image_url": IMAGE}])),
    "answer of the turn before": _response_of(
        _message_item(),
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "x", "annotations": []}],
        },
        _message_item(),
    ),
    "answer without an id": _response_of(
        _message_item(),
        _message_item("assistant", [{"type": "output_text", "text": "x"}]),
        _message_item(),
    ),
    "call and output": _response_of(_message_item(), _CALL, _OUTPUT, tools=[_FUNCTION]),
    "output in parts": _response_of(
        _message_item(), _CALL, _OUTPUT | {"output": [{"type": "input_text", "text": "sunny"}]}
    ),
    "call without arguments": _response_of(
        _message_item(), {k: v for k, v in _CALL.items() if k != "arguments"}
    ),
    "custom call and output": _response_of(
        _message_item(),
        {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"},
    ),
    "reasoning": _response_of(
        _message_item(),
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
        _message_item(),
    ),
    "reasoning, encrypted": _response_of(
        _message_item(),
        {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"},
        _message_item(),
    ),
    "item_reference": _response_of({"type": "item_reference", "id": "msg_1"}, _message_item()),
    "web_search_call": _response_of(
        _message_item(),
        {
            "type": "web_search_call",
            "id": "w",
            "status": "completed",
            "action": {"type": "search", "query": "x"},
        },
        _message_item(),
    ),
    "local_shell_call": _response_of(
        _message_item(),
        {
            "type": "local_shell_call",
            "id": "l",
            "call_id": "c",
            "status": "completed",
            "action": {"type": "exec", "command": ["ls"], "env": {}},
        },
        _message_item(),
    ),
    "item of an unknown type": _response_of(_message_item(), {"type": "telepathy", "thought": "x"}),
    "tools": _hi_response(tools=[_FUNCTION]),
    "tools empty": _hi_response(tools=[]),
    "tools null": _hi_response(tools=None),
    "tool without strict": _hi_response(
        tools=[{"type": "function", "name": "f", "parameters": {}}]
    ),
    "tool of chats": _hi_response(tools=[{"type": "function", "function": {"name": "f"}}]),
    "web_search": _hi_response(tools=[{"type": "web_search"}]),
    "local_shell": _hi_response(tools=[{"type": "local_shell"}]),
    "custom tool": _hi_response(tools=[{"type": "custom", "name": "patch", "description": "x"}]),
    "custom tool with a grammar": _hi_response(
        tools=[
            {
                "type": "custom",
                "name": "apply_patch",
                "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
            }
        ]
    ),
    "tool of an unknown type": _hi_response(tools=[{"type": "telepathy"}]),
    "choice auto": _hi_response(tool_choice="auto"),
    "choice required without tools": _hi_response(tool_choice="required"),
    "choice of a tool": _hi_response(
        tools=[_FUNCTION], tool_choice={"type": "function", "name": "weather"}
    ),
    "choice of another tool": _hi_response(
        tools=[_FUNCTION], tool_choice={"type": "function", "name": "other"}
    ),
    "max_output_tokens of the context": _hi_response(
        max_output_tokens=CONTEXT, stop=["a", "e", " "]
    ),
    "max_output_tokens above the context": _hi_response(max_output_tokens=CONTEXT + 1),
    "max_output_tokens above what is left": _hi_response(
        input=FILLING, max_output_tokens=CONTEXT - 12, stop=["a", "e", " "]
    ),
    "max_output_tokens 0": _hi_response(max_output_tokens=0),
    "too long in items": _hi_response(input=LONG),
    "too long, truncated": _hi_response(input=LONG, truncation="auto"),
    "truncation of no kind": _hi_response(truncation="always"),
    "tier fast": _hi_response(service_tier="fast"),
    "tier scale": _hi_response(service_tier="scale"),
    "tier standard_only": _hi_response(service_tier="standard_only"),
    "tier null": _hi_response(service_tier=None),
    "effort low": _hi_response(reasoning={"effort": "low"}),
    "effort that the template refuses": _hi_response(reasoning={"effort": "minimal"}),
    "effort that no request may have": _hi_response(reasoning={"effort": "extreme"}),
    "reasoning null": _hi_response(reasoning=None),
    "include encrypted reasoning": _hi_response(
        include=["reasoning.encrypted_content"], store=False
    ),
    "include of no kind": _hi_response(include=["everything"]),
    "metadata": _hi_response(metadata={"a": "b"}),
    "metadata of numbers": _hi_response(metadata={"a": 1}),
    "format json_schema": _hi_response(
        text={"format": {"type": "json_schema", "name": "w", "schema": WEATHER}}
    ),
    "format of no type": _hi_response(text={"format": {"type": "xml"}}),
    "store false": _hi_response(store=False, parallel_tool_calls=False, prompt_cache_key="k"),
    "temperature a word": _hi_response(temperature="hot"),
    "presence_penalty beyond 2": _hi_response(presence_penalty=3),
}
