"""Convert chat messages and other template arguments as vLLM does before it renders a chat.

The rules are those of vLLM 0.32; comments name its source lines (`renderers` is vllm/renderers).
They are reimplemented because importing vLLM would cost each ingress seconds of CPU and a gigabyte.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from justitia_ray.errors import RequestError, shown_short

_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "thinking": "thinking",
    "refusal": "refusal",
}
"""Field with the text of each type of content part that vLLM treats as text (vLLM's
renderers/chat_utils.py:1618).
"""
_NULL_ALLOWED = ("text", "refusal")
"""Types of content parts that vLLM skips if their text is null (renderers/chat_utils.py:1809)."""
_MEDIA_PARTS = frozenset(
    {
        *("audio_embeds", "audio_url", "image_embeds", "image_pil", "image_url", "input_audio"),
        *("input_image", "prompt_embeds", "video_embeds", "video_url"),
    }
)
_NAMES_OF_CONTENT = (*_MEDIA_PARTS - {"input_image"}, "tool_reference")
"""Fields that identify the type of a content part without `type` (vLLM's
renderers/chat_utils.py:1724).
"""
_ROLES = ("assistant", "developer", "system", "tool", "user")
_PART_TYPES = sorted({*_TEXT_PARTS, *_MEDIA_PARTS, "tool_reference"})
_BILLING_HEADER = "x-anthropic-billing-header"


class NotRendered(Exception):
    """The prompt contains something that only the engine can tokenize, such as an image."""


def template_messages(
    messages: Iterable[Mapping[str, Any]], *, parts_stay: bool
) -> list[dict[str, Any]]:
    """Return a chat's messages as a chat template reads them (vLLM's chat_utils.py:2074).

    Args:
        messages: Messages of a request; not modified.
        parts_stay: Whether the template reads contents as lists of parts instead of text.

    Raises:
        RequestError: If vLLM refuses a message with any template.
        NotRendered: If a message contains something that only the engine can tokenize.
    """
    return [_checked_message(message, parts_stay) for message in messages]


def _checked_message(message: Mapping[str, Any], parts_stay: bool) -> dict[str, Any]:
    role, given = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise RequestError(
            f"messages: role is {shown_short(role)}: a string such as 'user' is needed", "messages"
        )
    content = _content_parts(given)
    if isinstance(given, list):
        _check_parts(role, given)
    if role == "system":
        content = _without_billing_header(content)
    texts = [text for part in content if (text := _part_text(part)) is not None]
    as_list = parts_stay and role != "tool"
    rendered: dict[str, Any] = {
        "role": role,
        "content": [{"type": "text", "text": text} for text in texts]
        if as_list
        else "\n".join(texts),
    }
    if role == "assistant":
        if calls := _tool_calls(message.get("tool_calls")):
            rendered["tool_calls"] = calls
        reasoning = message.get("reasoning")
        if reasoning is None:  # Older clients send `reasoning_content`.
            reasoning = message.get("reasoning_content")
        if reasoning is not None:
            rendered["reasoning"] = rendered["reasoning_content"] = reasoning
    elif role == "tool" and "tool_call_id" in message:
        rendered["tool_call_id"] = message["tool_call_id"]
    elif role == "developer":
        rendered["tools"] = message.get("tools")
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            rendered[name] = message[name]
    return rendered


def _content_parts(content: Any) -> list[Any]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise RequestError(
            f"messages: content is {shown_short(content)}: a string or a list of parts is allowed",
            "messages",
        )
    return content


def _part_text(part: Any) -> str | None:
    """Return a content part's text; None if vLLM skips the part (renderers/chat_utils.py:1907)."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise NotRendered
    kind = part.get("type")
    if kind in (*_MEDIA_PARTS, "tool_reference") or part.get("uuid") is not None:
        raise NotRendered
    if kind is None and any(name in part for name in _NAMES_OF_CONTENT):
        raise NotRendered
    if kind is None:  # renderers/chat_utils.py:1794
        raise RequestError(
            f"messages: a content part has no type: one of {', '.join(_PART_TYPES)} is allowed",
            "messages",
        )
    text = part.get(_TEXT_PARTS[kind])
    if text is None and kind in _NULL_ALLOWED:
        return None
    if not isinstance(text, str):
        raise NotRendered
    return text


def _check_parts(role: str, parts: list[Any]) -> None:
    """Raise RequestError for content parts that vLLM refuses with any chat template."""
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind is not None and kind not in _PART_TYPES:  # renderers/chat_utils.py:2014
            raise RequestError(
                f"messages: a content part has the type {shown_short(kind)}: one of"
                f" {', '.join(_PART_TYPES)} is allowed",
                "messages",
            )
    # vLLM accepts malformed parts unless all are (openai/chat_completion/protocol.py:194).
    if role in _ROLES and parts and all(_is_malformed_part(part) for part in parts):
        raise RequestError(
            f"messages: a content is {shown_short(parts)}: a string, or a list with a part of"
            " OpenAI's chats, such as {'type': 'text', 'text': 'hi'}, is allowed",
            "messages",
        )


def _is_malformed_part(part: Any) -> bool:
    if not isinstance(part, dict):
        return True
    kind = part.get("type")
    if kind == "text":
        return not isinstance(part.get("text"), str)
    known = kind in ("refusal", "thinking", "tool_reference", *_MEDIA_PARTS)
    return not known and not any(name in part for name in _NAMES_OF_CONTENT)


def _without_billing_header(parts: list[Any]) -> list[Any]:
    """Remove Claude Code's billing line, which changes with each call, from a prompt."""
    kept = []
    for part in parts:
        is_text = isinstance(part, dict) and part.get("type") == "text"
        text = part.get("text") if is_text else part
        if isinstance(text, str) and text.startswith(_BILLING_HEADER):
            text = text.partition("\n")[2]
            if not text:
                continue
            part = {**part, "text": text} if is_text else text
        kept.append(part)
    return kept


def _tool_calls(calls: Any) -> list[dict[str, Any]]:
    """Return a message's tool calls, with arguments as objects (renderers/chat_utils.py:2153)."""
    if calls is None:
        return []
    if not isinstance(calls, list):
        raise NotRendered
    read = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or call.get("type", "function") != "function":
            raise RequestError(
                f"messages: tool_calls holds {shown_short(call)}: objects of type 'function' with"
                " a function are allowed",
                "messages",
            )
        read.append(call | {"function": function | {"arguments": _call_arguments(function)}})
    return read


def _call_arguments(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool call's arguments as an object; empty if they are not a JSON object."""
    given = function.get("arguments")
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return {}
    return given if isinstance(given, dict) else {}


def developers_as_system(messages: list[dict[str, Any]], template: str) -> list[dict[str, Any]]:
    """Turn developer messages into system messages if the chat template does not know the role.

    All system messages are merged into one at the start (renderers/hf.py:512, :516, :531).
    """
    knows_them = '"developer"' in template or "'developer'" in template
    if knows_them or not any(one["role"] == "developer" for one in messages):
        return messages
    rules = [one for one in messages if one["role"] in ("system", "developer")]
    if len(rules) == 1 and messages[0] is rules[0]:
        (only,) = rules
        system = {name: only[name] for name in only if name != "tools"} | {"role": "system"}
    else:
        texts = [_joined_text(one["content"]) for one in rules]
        system = {"role": "system", "content": "\n\n".join(filter(None, texts))}
    return [system, *(one for one in messages if one["role"] not in ("system", "developer"))]


def _joined_text(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def template_tools(tools: list[Any] | None) -> list[Any] | None:
    """Return a chat's tools with only the fields that vLLM passes to a chat template.

    See openai/chat_completion/protocol.py:171 and generate/base/protocol.py:298.
    """
    if not tools:
        return None
    return [_checked_tool(tool) for tool in tools]


def _checked_tool(tool: Any) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        raise NotRendered
    read = {name: function.get(name) for name in ("name", "description", "parameters")}
    if function.get("strict") is not None:
        read["strict"] = function["strict"]
    deferred = tool.get("defer_loading")
    inner = function.get("defer_loading", deferred)
    if inner is not None:
        read["defer_loading"] = inner
    rendered: dict[str, Any] = {"type": "function", "function": read}
    if deferred is not None:
        rendered["defer_loading"] = deferred
    return rendered


def template_arguments(fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return a chat template's arguments besides messages (openai/chat_completion/protocol.py:622).

    Args:
        fields: A chat's fields.
        defaults: The operator's `default_chat_template_kwargs`.
    """
    asked = fields.get("chat_template_kwargs")
    if not isinstance(asked, dict):
        asked = {}
    effort = fields.get("reasoning_effort")
    own: dict[str, Any] = {
        "add_generation_prompt": fields.get("add_generation_prompt", True),
        "continue_final_message": fields.get("continue_final_message", False),
        "documents": fields.get("documents"),
        "reasoning_effort": effort,
    }
    if effort is not None and "enable_thinking" not in asked:
        own["enable_thinking"] = effort != "none"
    given = {**asked, **{name: value for name, value in own.items() if value is not None}}
    # null and "auto" mean the default format (vLLM's renderers/params.py:33)
    given = {name: value for name, value in given.items() if value not in (None, "auto")}
    return {**defaults, **given}
