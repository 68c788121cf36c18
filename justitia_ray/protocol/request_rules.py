"""Rules for requests that vLLM checks in code, not in a schema, and that clients often violate.

The rules are those of vLLM 0.32; comments name its source lines, in vllm/entrypoints unless stated
otherwise. A value of an unexpected type is left to the schema.
"""

import math
from collections.abc import Callable
from typing import Any

from justitia_ray.errors import RequestError, shown_short
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from justitia_ray.protocol.inference_body import boolean

Fields = dict[str, Any]
_RANGES: dict[str, tuple[str, Callable[[float], bool]]] = {
    # Ranges are from vllm/sampling_params.py:631; a round bracket excludes an end.
    "temperature": ("[0, 2]", lambda value: 0.0 <= value <= 2.0),
    "top_p": ("(0, 1]", lambda value: 0.0 < value <= 1.0),
    "top_k": ("[-1, ∞)", lambda value: value >= -1),
    "min_p": ("[0, 1]", lambda value: 0.0 <= value <= 1.0),
    "presence_penalty": ("[-2, 2]", lambda value: -2.0 <= value <= 2.0),
    "frequency_penalty": ("[-2, 2]", lambda value: -2.0 <= value <= 2.0),
    "repetition_penalty": ("(0, ∞)", lambda value: 0.0 < value < math.inf),
    "min_tokens": ("[0, ∞)", lambda value: value >= 0),
}
_SAMPLED = {
    # Sampling parameters that are checked by API path; a path ignores the others.
    CHAT: tuple(_RANGES),
    COMPLETIONS: tuple(_RANGES),
    RESPONSES: tuple(name for name in _RANGES if name != "min_tokens"),
    MESSAGES: ("temperature", "top_p", "top_k"),
}
_LIST_OF_TOOLS = "a list of at least one tool, or no such field"


def check_rules(path: str, fields: Fields) -> None:
    """Refuse a request that vLLM's own code for its path would refuse.

    Raises:
        RequestError: If a rule is violated; `param` names the field.
    """
    for name in _SAMPLED.get(path, ()):
        value = fields.get(name)
        allowed, is_allowed = _RANGES[name]
        if isinstance(value, int | float) and not is_allowed(value):
            raise _value_error(name, value, f"{allowed} is allowed")
    if (check := _OF_PATH.get(path)) is not None:
        check(fields)


def _value_error(name: str, value: Any, allowed: str) -> RequestError:
    return RequestError(f"{name} is {shown_short(value)}: {allowed}", name)


def _check_openai(fields: Fields) -> None:
    """Check the rules that chat and completion requests have in common."""
    streams = boolean(fields, "stream")
    if fields.get("stream_options") and not streams:  # vLLM: chat_completion/protocol.py:823
        raise RequestError("stream_options is allowed only with stream: true", "stream_options")
    logprobs = fields.get("prompt_logprobs")
    if streams and isinstance(logprobs, int) and (logprobs > 0 or logprobs == -1):  # :836
        raise _value_error("prompt_logprobs", logprobs, "a stream has none")
    for name in ("logprobs", "top_logprobs", "prompt_logprobs"):
        value = fields.get(name)
        if type(value) is int and value < -1:
            raise _value_error(name, value, "an integer of at least 0, or -1 for all, is allowed")
    chosen = fields.get("response_format")
    chosen = chosen if isinstance(chosen, dict) else {}
    if chosen.get("type") == "json_schema" and chosen.get("json_schema") is None:  # :790
        raise RequestError("response_format.json_schema is missing", "response_format")


def _check_shortest(fields: Fields, limit: str) -> None:
    least, most = fields.get("min_tokens"), fields.get(limit)
    if type(least) is int and type(most) is int and 0 < most < least:  # sampling_params.py:698
        raise _value_error("min_tokens", least, f"at most {limit}, {most}, is allowed")


def _check_completion(fields: Fields) -> None:
    _check_openai(fields)
    _check_shortest(fields, "max_tokens")


def _check_chat(fields: Fields) -> None:
    _check_openai(fields)
    longer = "max_completion_tokens"  # vLLM: chat_completion/protocol.py:658
    _check_shortest(fields, "max_tokens" if fields.get(longer) is None else longer)
    top = fields.get("top_logprobs")
    if type(top) is int and top and not fields.get("logprobs"):  # :836
        raise _value_error("top_logprobs", top, "it needs logprobs: true")
    if fields.get("continue_final_message") is True and (
        # The rule is in chat_completion/protocol.py:1023; the default is from transformers.
        fields.get("add_generation_prompt", True) is True
    ):
        raise RequestError(
            "continue_final_message is true: it needs add_generation_prompt: false",
            "continue_final_message",
        )
    tools, choice = fields.get("tools"), fields.get("tool_choice")
    if tools == []:  # :937
        raise _value_error("tools", tools, f"{_LIST_OF_TOOLS}, is allowed")
    if choice is None or choice == "none":
        return
    if tools is None:
        raise _value_error("tool_choice", choice, "it needs tools")
    if not isinstance(choice, dict):
        if choice not in ("auto", "required"):
            raise _value_error(
                "tool_choice", choice, "none, auto, required or a function is allowed"
            )
        return
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        form = "{'type': 'function', 'function': {'name': …}}"
        raise _value_error("tool_choice", choice, f"a function in the form {form} is allowed")
    names = [_tool_name(tool, "function") for tool in tools] if isinstance(tools, list) else [name]
    if name not in names:
        raise _value_error(
            "tool_choice", name, f"a function of tools is allowed: {_joined_names(names)}"
        )


def _tool_name(tool: Any, field: str) -> Any:
    holder = tool.get(field) if isinstance(tool, dict) else None
    return holder.get("name") if isinstance(holder, dict) else None


def _joined_names(names: list[Any]) -> str:
    return ", ".join(shown_short(name) for name in names[:20])


def _check_response(fields: Fields) -> None:
    """Check the tools of a Responses request, as vLLM does (responses/protocol.py:723, :751)."""
    tools, choice = fields.get("tools"), fields.get("tool_choice", "auto")
    described = (
        [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    )
    for position, tool in enumerate(described):
        form = tool.get("format")
        is_grammar = isinstance(form, dict) and form.get("type") == "grammar"
        if tool.get("type") == "custom" and is_grammar:
            raise RequestError(
                f"tools[{position}] is the custom tool {shown_short(tool.get('name'))} with a"
                " grammar: the engine takes custom tools of free text only",
                f"tools[{position}].format",
            )
    if not tools:
        is_named = isinstance(choice, dict) and choice.get("type") in ("function", "custom")
        if choice == "required" or is_named:
            raise _value_error("tool_choice", choice, "it needs tools")
        return
    if isinstance(choice, dict) and choice.get("type") in ("function", "custom"):
        spaces = any(tool.get("type") == "namespace" for tool in described)
        names = [tool.get("name") for tool in described]
        if not spaces and choice.get("name") not in names:
            raise _value_error(
                "tool_choice", choice, f"a tool of tools is allowed: {_joined_names(names)}"
            )


def _check_message(fields: Fields) -> None:
    """Check tool choice and thinking budget of an Anthropic Messages request.

    vLLM checks them in anthropic/protocol.py:155 and :332, and vllm/tool_parsers/utils.py:484. With
    some tool parsers only, vLLM refuses the choice of a tool that is not listed (the last rule);
    here it is always refused, as by OpenAI's and Anthropic's services.
    """
    choice = fields.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "tool":
        name, tools = choice.get("name"), fields.get("tools")
        if not name:
            raise RequestError(
                "tool_choice.name is missing: type 'tool' needs it", "tool_choice.name"
            )
        if isinstance(tools, list) and tools and not _adds_or_removes_tools(fields.get("messages")):
            names = [tool.get("name") for tool in tools if isinstance(tool, dict)]
            if name not in names:
                raise _value_error(
                    "tool_choice.name", name, f"one of tools is allowed: {_joined_names(names)}"
                )
    thinking, most = fields.get("thinking"), fields.get("max_tokens")
    if isinstance(thinking, dict) and thinking.get("type") == "enabled":
        budget = thinking.get("budget_tokens")
        if type(budget) is int and type(most) is int and budget >= most:
            raise _value_error(
                "thinking.budget_tokens", budget, f"less than max_tokens, {most}, is allowed"
            )


def _adds_or_removes_tools(messages: Any) -> bool:
    listed = messages if isinstance(messages, list) else []
    contents = [one.get("content") for one in listed if isinstance(one, dict)]
    return any(
        isinstance(block, dict) and block.get("type") in ("tool_addition", "tool_removal")
        for content in contents
        if isinstance(content, list)
        for block in content
    )


_OF_PATH: dict[str, Callable[[Fields], None]] = {
    CHAT: _check_chat,
    COMPLETIONS: _check_completion,
    RESPONSES: _check_response,
    MESSAGES: _check_message,
}
