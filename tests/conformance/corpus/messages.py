"""Bodies of Anthropic's Messages: blocks of Claude Code, server tools, efforts."""

from typing import Any

from tests.conformance.corpus.words import (
    CONTEXT,
    FILLING,
    LONG,
    WEATHER,
    conversation_with,
    user_message,
)

_HI: dict[str, Any] = {"messages": [user_message()], "max_tokens": 2}
_TOOL = {"name": "weather", "description": "Says the weather.", "input_schema": WEATHER}
_USE = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Bern"}}
_RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}


def _hi_messages(**more: Any) -> dict[str, Any]:
    return _HI | more


def _messages_body(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), "max_tokens": 2} | more


def _assistant_message(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


MESSAGES: dict[str, dict[str, Any]] = {
    "plain": _hi_messages(),
    "streamed": _hi_messages(stream=True),
    "system": _hi_messages(system="Be brief."),
    "system in blocks": _hi_messages(
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        ]
    ),
    "system in the middle": _messages_body(
        user_message(), {"role": "system", "content": "x"}, user_message()
    ),
    "system an object": _hi_messages(system={"type": "text", "text": "x"}),
    "tools": _hi_messages(tools=[_TOOL]),
    "tools empty": _hi_messages(tools=[]),
    "tools null": _hi_messages(tools=None),
    "tool with cache_control": _hi_messages(
        tools=[_TOOL | {"cache_control": {"type": "ephemeral"}}]
    ),
    "tool custom": _hi_messages(tools=[_TOOL | {"type": "custom"}]),
    "tool without a schema": _hi_messages(tools=[{"name": "weather"}]),
    "web_search": _hi_messages(tools=[{"type": "web_search_20250305", "name": "web_search"}]),
    "bash": _hi_messages(tools=[{"type": "bash_20250124", "name": "bash"}]),
    "bash beside a function": _hi_messages(
        tools=[_TOOL, {"type": "bash_20250124", "name": "bash"}]
    ),
    "use and result": _messages_body(
        *conversation_with(_assistant_message(_USE), user_message([_RESULT])), tools=[_TOOL]
    ),
    "result in blocks": _messages_body(
        *conversation_with(
            _assistant_message(_USE),
            user_message([_RESULT | {"content": [{"type": "text", "text": "sunny"}]}]),
        )
    ),
    "result with an error": _messages_body(
        *conversation_with(_assistant_message(_USE), user_message([_RESULT | {"is_error": True}]))
    ),
    "result null": _messages_body(
        *conversation_with(_assistant_message(_USE), user_message([_RESULT | {"content": None}]))
    ),
    "thinking in the history": _messages_body(
        *conversation_with(
            _assistant_message(
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "x"},
            ),
            user_message(),
        )
    ),
    "redacted thinking": _messages_body(
        *conversation_with(
            _assistant_message({"type": "redacted_thinking", "data": "x"}), user_message()
        )
    ),
    "server tool in the history": _messages_body(
        *conversation_with(
            _assistant_message(
                {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
            ),
            user_message(),
        )
    ),
    "search result in the history": _messages_body(
        *conversation_with(
            _assistant_message(
                {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
            ),
            user_message(),
        )
    ),
    "document": _messages_body(
        user_message([{"type": "document", "source": {"type": "text", "data": "x"}}])
    ),
    "image": _messages_body(
        user_message(
            [
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": "x"},
                }
            ]
        )
    ),
    "text null": _messages_body(user_message([{"type": "text", "text": None}])),
    "content null": _messages_body(user_message(None)),
    "content missing": _messages_body({"role": "user"}),
    "content no blocks": _messages_body(user_message([])),
    "content of texts": _messages_body(user_message(["x"])),
    "role tool": _messages_body({"role": "tool", "content": "x"}),
    "role missing": _messages_body({"content": "x"}),
    "messages empty": _messages_body(),
    "max_tokens missing": {"messages": [user_message()]},
    "max_tokens 0": _hi_messages(max_tokens=0),
    "max_tokens above what is left": _messages_body(
        user_message(FILLING), max_tokens=CONTEXT - 12, stop_sequences=["a", "e", " "]
    ),
    "max_tokens above the context": _hi_messages(max_tokens=32_000, stop_sequences=["a", "e", " "]),
    "max_tokens a text": _hi_messages(max_tokens="2"),
    "too long in items": _messages_body(user_message(LONG)),
    "tier fast": _hi_messages(service_tier="fast"),
    "tier standard_only": _hi_messages(service_tier="standard_only"),
    "tier a number": _hi_messages(service_tier=1),
    "choice any": _hi_messages(tools=[_TOOL], tool_choice={"type": "any"}, max_tokens=20),
    "choice auto": _hi_messages(tools=[_TOOL], tool_choice={"type": "auto"}),
    "choice a word": _hi_messages(tools=[_TOOL], tool_choice="auto"),
    "choice of another tool": _hi_messages(
        tools=[_TOOL], tool_choice={"type": "tool", "name": "other"}
    ),
    "choice of a tool without a name": _hi_messages(tools=[_TOOL], tool_choice={"type": "tool"}),
    "choice without tools": _hi_messages(tool_choice={"type": "auto"}),
    "thinking": _hi_messages(thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2_000),
    "thinking beyond max_tokens": _hi_messages(
        thinking={"type": "enabled", "budget_tokens": 2048}, max_tokens=300
    ),
    "thinking of a small budget": _hi_messages(thinking={"type": "enabled", "budget_tokens": 5}),
    "thinking adaptive": _hi_messages(thinking={"type": "adaptive"}),
    "thinking disabled": _hi_messages(thinking={"type": "disabled"}),
    "effort low": _hi_messages(output_config={"effort": "low"}),
    "effort that the template refuses": _hi_messages(output_config={"effort": "max"}),
    "effort that no request may have": _hi_messages(output_config={"effort": "extreme"}),
    "context_management": _hi_messages(context_management={"edits": []}, betas=["x"]),
    "metadata": _hi_messages(metadata={"user_id": "u"}),
    "metadata a text": _hi_messages(metadata="u"),
    "temperature a word": _hi_messages(temperature="hot"),
    "stop sequences": _hi_messages(stop_sequences=["x"]),
    "stop sequences a text": _hi_messages(stop_sequences="x"),
    "model empty": _hi_messages(model=""),
}
