"""Parts of bodies that several corpora use."""

from typing import Any

CONTEXT = 512
"""Context length of the model, in tokens."""
LONG = "word " * 2_000
"""Text of more tokens than the model's context."""
FILLING = "a " * 300
"""Prompt of 300 to 500 tokens; it fits into the model's context and leaves room."""
IMAGE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGA"
    "WjR9awAAAABJRU5ErkJggg=="
)
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}


def user_message(content: Any = "hi") -> dict[str, Any]:
    return {"role": "user", "content": content}


def function_tool(name: str = "weather", **more: Any) -> dict[str, Any]:
    described = {"name": name, "description": "Says the weather.", "parameters": WEATHER}
    return {"type": "function", "function": described | more}


def tool_call_message(arguments: Any, **more: Any) -> dict[str, Any]:
    called = {"name": "weather", "arguments": arguments}
    calls = [{"id": "call_1", "type": "function", "function": called}]
    return {"role": "assistant", "content": None, "tool_calls": calls} | more


TOLD = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}


def conversation_with(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return [user_message(), *messages]
