"""OpenAI's Responses: one text, or items of a conversation, and instructions before them.

Nothing of a response is kept: what would have to be found again on whichever replica is next is
refused.
"""

import json
from typing import Any

from justitia_ray.errors import RequestError, UnsupportedOperation
from justitia_ray.protocol.inference_body import (
    Conversation,
    InferenceBody,
    Prompt,
    longest_output,
    text_of,
)
from justitia_ray.protocol.json_body import boolean, integer, objects
from justitia_ray.units import Tokens

RESPONSES = "/v1/responses"


def parse_response(
    path: str, fields: dict[str, Any], max_model_len: Tokens | None
) -> InferenceBody:
    """Read the fields of a request for a response.

    Raises:
        RequestError: If a field is malformed or out of range; `param` names it.
        UnsupportedOperation: If it asks for what this service refuses.
    """
    _check_supported(fields)
    if not isinstance(fields.get("input"), str):
        objects(fields, "input", "item")
    return InferenceBody(
        path=path,
        fields=fields,
        stream=boolean(fields, "stream"),
        n=1,
        max_tokens=integer(fields, "max_output_tokens", 1, longest_output(max_model_len)),
        forced_length=fields.get("ignore_eos") is True and "max_output_tokens" in fields,
        estimated=True,
        prompt_field="input",
    )


def response_prompts(fields: dict[str, Any]) -> list[Prompt]:
    """Return the one prompt of a request, as the chat that vLLM makes of it.

    Raises:
        RequestError: If an item's content has another form than messages have.
    """
    instructions, given = fields.get("instructions"), fields["input"]
    messages = [_message("system", instructions)] if isinstance(instructions, str) else []
    if isinstance(given, str):
        messages.append(_message("user", given))
    else:
        messages += [_of_item(item) for item in given]
    return [Conversation(tuple(messages), _tools(fields.get("tools")))]


def _check_supported(fields: dict[str, Any]) -> None:
    for name, why in (
        ("previous_response_id", "responses are not kept; send the conversation as input"),
        ("background", "responses are not kept; ask for a stream instead"),
        ("conversation", "conversations are not kept; send the conversation as input"),
        ("prompt", "prompt templates are not kept; send the prompt as input"),
    ):
        if fields.get(name):
            raise UnsupportedOperation(f"{name} is not supported: {why}", name)


def _of_item(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item as a message: a call of a tool and its answer are texts too."""
    kind = item.get("type", "message")
    if kind == "function_call":
        return _message("assistant", f"{item.get('name')}{item.get('arguments')}")
    if kind == "function_call_output":
        output = item.get("output")
        return _message("tool", output if isinstance(output, str) else json.dumps(output))
    role = item.get("role")
    if role is not None and not isinstance(role, str):
        raise RequestError(f"input: role must be a string, not {type(role).__name__}", "input")
    return _message(role or "assistant", text_of(item.get("content"), "input"))


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": "system" if role == "developer" else role, "content": content}


def _tools(tools: Any) -> list[Any] | None:
    """Return tools as chats name them; those that are not functions take no prompt here."""
    if not isinstance(tools, list):
        return None
    functions = [tool for tool in tools if isinstance(tool, dict) and "name" in tool]
    return [{"type": "function", "function": tool} for tool in functions] or None
