"""Bodies of the generating endpoints: chats, completions, OpenAI's Responses, Anthropic's Messages.

Responses are not stored, so a request that refers to an earlier response is refused: it could reach
another replica.
"""

import json
from dataclasses import replace
from typing import Any

from justitia_ray.errors import RequestError, UnsupportedOperation
from justitia_ray.protocol.inference_body import (
    MAX_SEQUENCES,
    USUAL_OUTPUT,
    Conversation,
    InferenceBody,
    Prompt,
    boolean,
    check_sequences,
    integer,
    objects,
    text_of,
)
from justitia_ray.units import Tokens

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

_MAX_CHOICES = 128
"""Maximum number of choices `n` in OpenAI's API."""
_REFUSED = {"use_beam_search": "beam search runs outside the engine's batch"}


def parse_chat(path: str, fields: dict[str, Any], longest: Tokens) -> InferenceBody:
    """Parse the fields of a chat request. If they set no limit, the output may fill the context.

    Raises:
        RequestError: If a field is malformed or out of range; `param` names it.
        UnsupportedOperation: If a field asks for something that this service refuses.
    """
    _refuse_fields(fields, _REFUSED)
    messages = objects(fields, "messages", "message")
    for message in messages:
        text_of(message.get("content"), "messages")
    max_tokens = integer(fields, "max_completion_tokens", 1, longest)
    if max_tokens is None:  # vLLM prefers max_completion_tokens to max_tokens
        max_tokens = integer(fields, "max_tokens", 1, longest)
    tools = fields.get("tools")
    prompts: list[Prompt] = [
        Conversation(tuple(messages), tools if isinstance(tools, list) else None)
    ]
    return _new_body(path, fields, prompts, max_tokens, longest)


def parse_completion(path: str, fields: dict[str, Any], longest: Tokens) -> InferenceBody:
    """Parse the fields of a completion request; by default a prompt has 16 output tokens.

    Raises:
        RequestError: If a field is malformed or out of range; `param` names it.
        UnsupportedOperation: If a field asks for something that this service refuses.
    """
    _refuse_fields(fields, _REFUSED)
    prompt = fields.get("prompt")
    if not prompt and fields.get("prompt_embeds"):
        # Prompt embeddings have no text, so only the engine can count their tokens.
        prompts: list[Prompt] = [""]
    elif not prompt or not isinstance(prompt, str | list):
        raise RequestError(
            "prompt must be a string, a list of strings, or token ids, and not empty", "prompt"
        )
    else:
        prompts = texts_or_ids(prompt, "prompt")
    # With `echo` and no output, lm-eval requests the prompt's log probabilities.
    echoes = boolean(fields, "echo")
    max_tokens = integer(fields, "max_tokens", 0 if echoes else 1, longest)
    if max_tokens is None:
        max_tokens = USUAL_OUTPUT
    # vLLM generates a token even for max_tokens 0 (completion/protocol.py:396).
    body = _new_body(path, fields, prompts, max(1, max_tokens), longest)
    return replace(body, estimated="prompt_embeds" in fields)


def texts_or_ids(value: Any, field: str) -> list[Prompt]:
    """Return prompts given as a text, as token ids, or as a list of either.

    Raises:
        RequestError: If the value is anything else.
    """
    if isinstance(value, str):
        return [value]
    # Like pydantic, vLLM accepts 2.0 as a token id, but not 2.5.
    if all(isinstance(part, int | float) and part % 1 == 0 for part in value):
        return [value]
    for part in value:
        # In a list of token ids, vLLM also accepts strings of digits.
        is_ids = isinstance(part, list) and part and not isinstance(part[0], list | dict)
        if not (isinstance(part, str) or is_ids):
            raise RequestError(f"{field} must hold strings, or lists of token ids, only", field)
    return list(value)


def _refuse_fields(fields: dict[str, Any], reasons: dict[str, str]) -> None:
    for name, why in reasons.items():
        if fields.get(name):
            raise UnsupportedOperation(f"{name} is not supported: {why}", name)


def _new_body(
    path: str,
    fields: dict[str, Any],
    prompts: list[Prompt],
    max_tokens: Tokens | None,
    longest: Tokens,
) -> InferenceBody:
    keeps = integer(fields, "truncate_prompt_tokens", -1, longest)
    if keeps == 0:
        raise RequestError(
            "truncate_prompt_tokens is 0: nothing is left of the prompt; at least 1, or -1 for what"
            " fits, is allowed",
            "truncate_prompt_tokens",
        )
    if keeps == -1:  # -1 means the context length minus one token (vllm/renderers/params.py:222)
        keeps = longest - 1
    n = integer(fields, "n", 1, _MAX_CHOICES) or 1
    check_sequences(len(prompts), n, MAX_SEQUENCES, "prompt")
    forced = max_tokens is not None and (
        (fields.get("ignore_eos") is True and not fields.get("stop"))
        or fields.get("min_tokens") == max_tokens
    )
    return InferenceBody(
        fields,
        prompts,
        stream=boolean(fields, "stream"),
        n=n,
        max_tokens=max_tokens,
        keeps=keeps,
        forced_length=forced,
        prompt_field="messages" if path == CHAT else "prompt",
        effort_field="reasoning_effort" if path == CHAT else None,
    )


RESPONSES = "/v1/responses"

_REFUSED_RESPONSES = {
    "previous_response_id": "responses are not kept; send the conversation as input",
    "background": "responses are not kept; ask for a stream instead",
    "conversation": "conversations are not kept; send the conversation as input",
    "prompt": "prompt templates are not kept; send the prompt as input",
}


def join_assistant_texts(fields: dict[str, Any]) -> bool:
    """Convert assistant messages without `type` to plain text; return whether any was converted.

    OpenAI's API accepts lists of parts in these messages. vLLM accepts them only with a type or an
    id, and then reads only the first part.

    Args:
        fields: The fields of a Responses request; modified.
    """
    given, found = fields.get("input"), False
    for item in given if isinstance(given, list) else ():
        if isinstance(item, dict) and item.get("role") == "assistant" and "type" not in item:
            texts = [_output_text(part) for part in _list_or_empty(item.get("content"))]
            if texts and None not in texts:
                item["content"] = "".join(filter(None, texts))
                found = True
    return found


def _list_or_empty(content: Any) -> list[Any]:
    return content if isinstance(content, list) else []


def _output_text(part: Any) -> str | None:
    if not isinstance(part, dict) or part.get("type") != "output_text":
        return None
    text = part.get("text")
    return text if isinstance(text, str) else None


def parse_response(path: str, fields: dict[str, Any], longest: Tokens) -> InferenceBody:
    """Parse the fields of a request of OpenAI's Responses API.

    Raises:
        RequestError: If a field is malformed or out of range; `param` names it.
        UnsupportedOperation: If a field asks for something that this service refuses.
    """
    _refuse_fields(fields, _REFUSED_RESPONSES)
    instructions, given = fields.get("instructions"), fields.get("input")
    messages = [_chat_message("system", instructions)] if isinstance(instructions, str) else []
    if isinstance(given, str):
        messages.append(_chat_message("user", given))
    else:
        messages += map(_message_of_item, objects(fields, "input", "item"))
    return InferenceBody(
        fields,
        [Conversation(tuple(messages), _tools_of_response(fields.get("tools")))],
        stream=boolean(fields, "stream"),
        max_tokens=integer(fields, "max_output_tokens", 1, longest),
        forced_length=fields.get("ignore_eos") is True and "max_output_tokens" in fields,
        estimated=True,
        prompt_field="input",
        effort_field="reasoning.effort",
    )


def _message_of_item(item: dict[str, Any]) -> dict[str, Any]:
    """Convert an input item of the Responses API to a chat message; tool calls become text."""
    kind = item.get("type", "message")
    if kind == "function_call":
        return _chat_message("assistant", f"{item.get('name')}{item.get('arguments')}")
    if kind == "function_call_output":
        output = item.get("output")
        return _chat_message("tool", output if isinstance(output, str) else json.dumps(output))
    role = item.get("role")
    if role is not None and not isinstance(role, str):
        raise RequestError(f"input: role must be a string, not {type(role).__name__}", "input")
    return _chat_message(role or "assistant", text_of(item.get("content"), "input"))


def _chat_message(role: str, content: str) -> dict[str, Any]:
    return {"role": "system" if role == "developer" else role, "content": content}


def _tools_of_response(tools: Any) -> list[Any] | None:
    """Convert tools of the Responses API to the form of chats, without tools that have no name."""
    if not isinstance(tools, list):
        return None
    functions = [tool for tool in tools if isinstance(tool, dict) and "name" in tool]
    return [{"type": "function", "function": tool} for tool in functions] or None


MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"


def parse_message(path: str, fields: dict[str, Any], longest: Tokens) -> InferenceBody:
    """Parse the fields of a request of Anthropic's Messages API.

    Raises:
        RequestError: If a field is malformed or out of range; `param` names it.
    """
    messages = [
        {
            "role": message.get("role", "user"),
            "content": _content_text(message.get("content"), "messages"),
        }
        for message in objects(fields, "messages", "message")
    ]
    if system := fields.get("system"):
        messages.insert(0, {"role": "system", "content": _content_text(system, "system")})
    max_tokens = integer(fields, "max_tokens", 1, longest)
    if max_tokens is None:
        raise RequestError(
            "max_tokens is missing: an integer of at least 1 is needed", "max_tokens"
        )
    return InferenceBody(
        fields,
        [Conversation(tuple(messages), _tools_of_message(fields.get("tools")))],
        stream=boolean(fields, "stream"),
        max_tokens=max_tokens,
        estimated=True,
        prompt_field="messages",
        effort_field="output_config.effort",
    )


def _content_text(content: Any, field: str) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise RequestError(f"{field}: content must be a string or a list of blocks", field)
    return "\n".join(_block_text(block, field) for block in content)


def _block_text(block: dict[str, Any], field: str) -> str:
    """Return the text of a content block; images have none, and the engine counts their tokens."""
    kind = block.get("type")
    if kind == "tool_use":
        return f"{block.get('name')}{json.dumps(block.get('input'))}"
    if kind == "tool_result":
        return _content_text(block.get("content"), field)
    return str(block.get("text") or block.get("thinking") or "")


def _tools_of_message(tools: Any) -> list[Any] | None:
    """Convert tools of Anthropic's API to the form of OpenAI's chats."""
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
