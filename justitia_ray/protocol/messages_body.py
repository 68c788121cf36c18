"""Anthropic's Messages: a system prompt, messages in blocks, tools by their input's schema."""

import json
from typing import Any

from justitia_ray.errors import RequestError
from justitia_ray.protocol.inference_body import (
    Conversation,
    InferenceBody,
    Prompt,
    longest_output,
)
from justitia_ray.protocol.json_body import boolean, integer, objects
from justitia_ray.units import Tokens

MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"


def parse_message(path: str, fields: dict[str, Any], max_model_len: Tokens | None) -> InferenceBody:
    """Read the fields of a request for a message.

    Raises:
        RequestError: If a field is malformed or out of range; `param` names it.
    """
    objects(fields, "messages", "message")
    max_tokens = integer(fields, "max_tokens", 1, longest_output(max_model_len))
    if max_tokens is None:
        raise RequestError(
            "max_tokens is missing: an integer of at least 1 is needed", "max_tokens"
        )
    return InferenceBody(
        path=path,
        fields=fields,
        stream=boolean(fields, "stream"),
        n=1,
        max_tokens=max_tokens,
        forced_length=False,
        estimated=True,
        prompt_field="messages",
    )


def message_prompts(fields: dict[str, Any]) -> list[Prompt]:
    """Return the one prompt of a request, as the chat that vLLM makes of it.

    Raises:
        RequestError: If a content has another form than messages have.
    """
    system = fields.get("system")
    messages = [] if not system else [{"role": "system", "content": _text(system, "system")}]
    messages += [
        {"role": message.get("role", "user"), "content": _text(message.get("content"), "messages")}
        for message in fields["messages"]
    ]
    return [Conversation(tuple(messages), _tools(fields.get("tools")))]


def _text(content: Any, field: str) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise RequestError(f"{field}: content must be a string or a list of blocks", field)
    return "\n".join(_text_of_block(block, field) for block in content)


def _text_of_block(block: dict[str, Any], field: str) -> str:
    """Return what of a block is text; an image is left to the replica's count."""
    kind = block.get("type")
    if kind == "tool_use":
        return f"{block.get('name')}{json.dumps(block.get('input'))}"
    if kind == "tool_result":
        return _text(block.get("content"), field)
    return str(block.get("text") or block.get("thinking") or "")


def _tools(tools: Any) -> list[Any] | None:
    """Return tools as chats name them."""
    if not isinstance(tools, list):
        return None
    return [
        {
            "type": "function",
            "function": {
                "name": tool.get("name"),
                "description": tool.get("description"),
                "parameters": tool.get("input_schema"),
            },
        }
        for tool in tools
        if isinstance(tool, dict)
    ] or None
