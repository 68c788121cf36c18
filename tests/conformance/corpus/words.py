"""Pieces of bodies that several corpora use."""

from typing import Any

CONTEXT = 512
"""Tokens of the model's context."""
LONG = "word " * 2_000
"""A text of more tokens than the context has."""
FILLING = "a " * 300
"""A text that leaves some of the context: 300 to 500 tokens."""
IMAGE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGA"
    "WjR9awAAAABJRU5ErkJggg=="
)
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}


def user(content: Any = "hi") -> dict[str, Any]:
    """Return a message of a user."""
    return {"role": "user", "content": content}


def function(name: str = "weather", **more: Any) -> dict[str, Any]:
    """Return a tool of a chat."""
    described = {"name": name, "description": "Says the weather.", "parameters": WEATHER}
    return {"type": "function", "function": described | more}


def call(arguments: Any, **more: Any) -> dict[str, Any]:
    """Return a message of an assistant that calls a tool."""
    called = {"name": "weather", "arguments": arguments}
    calls = [{"id": "call_1", "type": "function", "function": called}]
    return {"role": "assistant", "content": None, "tool_calls": calls} | more


TOLD = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}


def turns(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a conversation that begins with a user."""
    return [user(), *messages]
