"""Bodies of Anthropic's Messages: blocks of Claude Code, server tools, efforts."""

from typing import Any

from tests.conformance.corpus.words import CONTEXT, FILLING, LONG, WEATHER, turns, user

_HI: dict[str, Any] = {"messages": [user()], "max_tokens": 2}
_TOOL = {"name": "weather", "description": "Says the weather.", "input_schema": WEATHER}
_USE = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Bern"}}
_RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}


def _hi(**more: Any) -> dict[str, Any]:
    return _HI | more


def _said(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), "max_tokens": 2} | more


def _assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


MESSAGES: dict[str, dict[str, Any]] = {
    "plain": _hi(),
    "streamed": _hi(stream=True),
    "system": _hi(system="Be brief."),
    "system in blocks": _hi(
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        ]
    ),
    "system in the middle": _said(user(), {"role": "system", "content": "x"}, user()),
    "system an object": _hi(system={"type": "text", "text": "x"}),
    "tools": _hi(tools=[_TOOL]),
    "tools empty": _hi(tools=[]),
    "tools null": _hi(tools=None),
    "tool with cache_control": _hi(tools=[_TOOL | {"cache_control": {"type": "ephemeral"}}]),
    "tool custom": _hi(tools=[_TOOL | {"type": "custom"}]),
    "tool without a schema": _hi(tools=[{"name": "weather"}]),
    "web_search": _hi(tools=[{"type": "web_search_20250305", "name": "web_search"}]),
    "bash": _hi(tools=[{"type": "bash_20250124", "name": "bash"}]),
    "bash beside a function": _hi(tools=[_TOOL, {"type": "bash_20250124", "name": "bash"}]),
    "use and result": _said(*turns(_assistant(_USE), user([_RESULT])), tools=[_TOOL]),
    "result in blocks": _said(
        *turns(
            _assistant(_USE),
            user([_RESULT | {"content": [{"type": "text", "text": "sunny"}]}]),
        )
    ),
    "result with an error": _said(*turns(_assistant(_USE), user([_RESULT | {"is_error": True}]))),
    "result null": _said(*turns(_assistant(_USE), user([_RESULT | {"content": None}]))),
    "thinking in the history": _said(
        *turns(
            _assistant(
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "x"},
            ),
            user(),
        )
    ),
    "redacted thinking": _said(
        *turns(_assistant({"type": "redacted_thinking", "data": "x"}), user())
    ),
    "server tool in the history": _said(
        *turns(
            _assistant({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}),
            user(),
        )
    ),
    "search result in the history": _said(
        *turns(
            _assistant({"type": "web_search_tool_result", "tool_use_id": "s", "content": []}),
            user(),
        )
    ),
    "document": _said(user([{"type": "document", "source": {"type": "text", "data": "x"}}])),
    "image": _said(
        user(
            [
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": "x"},
                }
            ]
        )
    ),
    "text null": _said(user([{"type": "text", "text": None}])),
    "content null": _said(user(None)),
    "content missing": _said({"role": "user"}),
    "content no blocks": _said(user([])),
    "content of texts": _said(user(["x"])),
    "role tool": _said({"role": "tool", "content": "x"}),
    "role missing": _said({"content": "x"}),
    "messages empty": _said(),
    "max_tokens missing": {"messages": [user()]},
    "max_tokens 0": _hi(max_tokens=0),
    "max_tokens above what is left": _said(
        user(FILLING), max_tokens=CONTEXT - 12, stop_sequences=["a", "e", " "]
    ),
    "max_tokens above the context": _hi(max_tokens=32_000, stop_sequences=["a", "e", " "]),
    "max_tokens a text": _hi(max_tokens="2"),
    "too long in items": _said(user(LONG)),
    "tier fast": _hi(service_tier="fast"),
    "tier standard_only": _hi(service_tier="standard_only"),
    "tier a number": _hi(service_tier=1),
    "choice any": _hi(tools=[_TOOL], tool_choice={"type": "any"}, max_tokens=20),
    "choice auto": _hi(tools=[_TOOL], tool_choice={"type": "auto"}),
    "choice a word": _hi(tools=[_TOOL], tool_choice="auto"),
    "choice of another tool": _hi(tools=[_TOOL], tool_choice={"type": "tool", "name": "other"}),
    "choice of a tool without a name": _hi(tools=[_TOOL], tool_choice={"type": "tool"}),
    "choice without tools": _hi(tool_choice={"type": "auto"}),
    "thinking": _hi(thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2_000),
    "thinking beyond max_tokens": _hi(
        thinking={"type": "enabled", "budget_tokens": 2048}, max_tokens=300
    ),
    "thinking of a small budget": _hi(thinking={"type": "enabled", "budget_tokens": 5}),
    "thinking adaptive": _hi(thinking={"type": "adaptive"}),
    "thinking disabled": _hi(thinking={"type": "disabled"}),
    "effort low": _hi(output_config={"effort": "low"}),
    "effort that the template refuses": _hi(output_config={"effort": "max"}),
    "effort that no request may have": _hi(output_config={"effort": "extreme"}),
    "context_management": _hi(context_management={"edits": []}, betas=["x"]),
    "metadata": _hi(metadata={"user_id": "u"}),
    "metadata a text": _hi(metadata="u"),
    "temperature a word": _hi(temperature="hot"),
    "stop sequences": _hi(stop_sequences=["x"]),
    "stop sequences a text": _hi(stop_sequences="x"),
    "model empty": _hi(model=""),
}
