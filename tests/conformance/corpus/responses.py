"""Bodies of OpenAI's Responses: items of Codex and of the agents SDK, tools, efforts."""

from typing import Any

from tests.conformance.corpus.words import CONTEXT, FILLING, IMAGE, LONG, WEATHER

_HI: dict[str, Any] = {"input": "hi", "max_output_tokens": 2}
_FUNCTION = {"type": "function", "name": "weather", "parameters": WEATHER, "strict": False}


def _hi(**more: Any) -> dict[str, Any]:
    return _HI | more


def _items(*items: Any, **more: Any) -> dict[str, Any]:
    return {"input": list(items), "max_output_tokens": 2} | more


def _message(role: str = "user", content: Any = "hi", **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content} | more


_CALL = {
    "type": "function_call",
    "call_id": "c1",
    "name": "weather",
    "arguments": '{"city": "Bern"}',
}
_OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}

RESPONSES: dict[str, dict[str, Any]] = {
    "plain": _hi(),
    "streamed": _hi(stream=True),
    "instructions": _hi(instructions="Be brief."),
    "no length": {"input": "hi", "stop": ["a", "e", " "]},
    "input missing": {"max_output_tokens": 2},
    "input null": _hi(input=None),
    "input empty": _hi(input=""),
    "input no items": _items(),
    "input an object": _hi(input={"role": "user", "content": "x"}),
    "item a text": _items("hi"),
    "message": _items(_message()),
    "message without a type": _items({"role": "user", "content": "hi"}),
    "message in parts": _items(_message(content=[{"type": "input_text", "text": "hi"}])),
    "message in parts of chats": _items(_message(content=[{"type": "text", "text": "hi"}])),
    "developer": _items(_message("developer", "Be brief."), _message()),
    "system between items": _items(_message(), _message("system", "x"), _message()),
    "role unknown": _items(_message("critic")),
    "role missing": _items({"type": "message", "content": "hi"}),
    "image": _items(_message(content=[{"type": "input_image", "image_url": IMAGE}])),
    "answer of the turn before": _items(
        _message(),
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "x", "annotations": []}],
        },
        _message(),
    ),
    "answer without an id": _items(
        _message(),
        _message("assistant", [{"type": "output_text", "text": "x"}]),
        _message(),
    ),
    "call and output": _items(_message(), _CALL, _OUTPUT, tools=[_FUNCTION]),
    "output in parts": _items(
        _message(), _CALL, _OUTPUT | {"output": [{"type": "input_text", "text": "sunny"}]}
    ),
    "call without arguments": _items(
        _message(), {k: v for k, v in _CALL.items() if k != "arguments"}
    ),
    "custom call and output": _items(
        _message(),
        {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"},
    ),
    "reasoning": _items(
        _message(),
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
        _message(),
    ),
    "reasoning, encrypted": _items(
        _message(),
        {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"},
        _message(),
    ),
    "item_reference": _items({"type": "item_reference", "id": "msg_1"}, _message()),
    "web_search_call": _items(
        _message(),
        {
            "type": "web_search_call",
            "id": "w",
            "status": "completed",
            "action": {"type": "search", "query": "x"},
        },
        _message(),
    ),
    "local_shell_call": _items(
        _message(),
        {
            "type": "local_shell_call",
            "id": "l",
            "call_id": "c",
            "status": "completed",
            "action": {"type": "exec", "command": ["ls"], "env": {}},
        },
        _message(),
    ),
    "item of an unknown type": _items(_message(), {"type": "telepathy", "thought": "x"}),
    "tools": _hi(tools=[_FUNCTION]),
    "tools empty": _hi(tools=[]),
    "tools null": _hi(tools=None),
    "tool without strict": _hi(tools=[{"type": "function", "name": "f", "parameters": {}}]),
    "tool of chats": _hi(tools=[{"type": "function", "function": {"name": "f"}}]),
    "web_search": _hi(tools=[{"type": "web_search"}]),
    "local_shell": _hi(tools=[{"type": "local_shell"}]),
    "custom tool": _hi(tools=[{"type": "custom", "name": "patch", "description": "x"}]),
    "custom tool with a grammar": _hi(
        tools=[
            {
                "type": "custom",
                "name": "apply_patch",
                "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
            }
        ]
    ),
    "tool of an unknown type": _hi(tools=[{"type": "telepathy"}]),
    "choice auto": _hi(tool_choice="auto"),
    "choice required without tools": _hi(tool_choice="required"),
    "choice of a tool": _hi(tools=[_FUNCTION], tool_choice={"type": "function", "name": "weather"}),
    "choice of another tool": _hi(
        tools=[_FUNCTION], tool_choice={"type": "function", "name": "other"}
    ),
    "max_output_tokens of the context": _hi(max_output_tokens=CONTEXT, stop=["a", "e", " "]),
    "max_output_tokens above the context": _hi(max_output_tokens=CONTEXT + 1),
    "max_output_tokens above what is left": _hi(
        input=FILLING, max_output_tokens=CONTEXT - 12, stop=["a", "e", " "]
    ),
    "max_output_tokens 0": _hi(max_output_tokens=0),
    "too long in items": _hi(input=LONG),
    "too long, truncated": _hi(input=LONG, truncation="auto"),
    "truncation of no kind": _hi(truncation="always"),
    "tier fast": _hi(service_tier="fast"),
    "tier scale": _hi(service_tier="scale"),
    "tier standard_only": _hi(service_tier="standard_only"),
    "tier null": _hi(service_tier=None),
    "effort low": _hi(reasoning={"effort": "low"}),
    "effort that the template refuses": _hi(reasoning={"effort": "minimal"}),
    "effort that no request may have": _hi(reasoning={"effort": "extreme"}),
    "reasoning null": _hi(reasoning=None),
    "include encrypted reasoning": _hi(include=["reasoning.encrypted_content"], store=False),
    "include of no kind": _hi(include=["everything"]),
    "metadata": _hi(metadata={"a": "b"}),
    "metadata of numbers": _hi(metadata={"a": 1}),
    "format json_schema": _hi(
        text={"format": {"type": "json_schema", "name": "w", "schema": WEATHER}}
    ),
    "format of no type": _hi(text={"format": {"type": "xml"}}),
    "store false": _hi(store=False, parallel_tool_calls=False, prompt_cache_key="k"),
    "temperature a word": _hi(temperature="hot"),
    "presence_penalty beyond 2": _hi(presence_penalty=3),
}
