"""Chat bodies: agent histories, contents, lengths, sampling options, tools."""

from typing import Any

from tests.conformance.corpus.words import (
    CONTEXT,
    FILLING,
    IMAGE,
    LONG,
    TOLD,
    WEATHER,
    call,
    function,
    turns,
    user,
)

_HI: dict[str, Any] = {"messages": [user()], "max_tokens": 2}


def _said(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), "max_tokens": 2} | more


def _hi(**more: Any) -> dict[str, Any]:
    return _HI | more


HISTORIES: dict[str, dict[str, Any]] = {
    "arguments as JSON text": _said(*turns(call('{"a": 1}'), TOLD)),
    "arguments as an object": _said(*turns(call({"a": 1}), TOLD)),
    "arguments empty": _said(*turns(call(""), TOLD)),
    "arguments a JSON list": _said(*turns(call("[]"), TOLD)),
    "arguments a JSON number": _said(*turns(call("42"), TOLD)),
    "arguments cut off": _said(*turns(call('{"a": '), TOLD)),
    "arguments null": _said(*turns(call(None), TOLD)),
    "arguments nested": _said(*turns(call('{"a": {"b": [1, "x"]}, "c": null}'), TOLD)),
    "arguments with escapes": _said(*turns(call('{"a": "\\u00fc\\n\\"q\\""}'), TOLD)),
    "arguments streamed": _said(*turns(call('{"a": 1}'), TOLD), stream=True),
    "two calls in one turn": _said(
        *turns(
            {
                "role": "assistant",
                "tool_calls": [
                    {
                        "id": f"c{n}",
                        "type": "function",
                        "function": {"name": "f", "arguments": '{"n": 1}'},
                    }
                    for n in (1, 2)
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "1"},
            {"role": "tool", "tool_call_id": "c2", "content": "2"},
        )
    ),
    "call without content": _said(*turns({k: v for k, v in call("{}").items() if k != "content"})),
    "call without type": _said(
        *turns(
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}],
            }
        )
    ),
    "call without id": _said(
        *turns(
            {
                "role": "assistant",
                "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}],
            }
        )
    ),
    "call of a custom tool": _said(
        *turns(
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "c", "type": "custom", "custom": {"name": "patch", "input": "x"}}
                ],
            }
        )
    ),
    "call that is a text": _said(*turns({"role": "assistant", "tool_calls": ["f()"]})),
    "calls empty": _said(*turns({"role": "assistant", "content": "ok", "tool_calls": []})),
    "calls null": _said(*turns({"role": "assistant", "content": "ok", "tool_calls": None})),
    "calls an object": _said(*turns({"role": "assistant", "content": "ok", "tool_calls": {}})),
    "call with extra fields": _said(
        *turns(
            {
                "role": "assistant",
                "content": "",
                "annotations": [],
                "audio": None,
                "tool_calls": [
                    {
                        "id": "c",
                        "index": 0,
                        "type": "function",
                        "function": {"name": "f", "arguments": "{}"},
                    }
                ],
            }
        )
    ),
    "tool answers in parts": _said(
        *turns(call("{}"), TOLD | {"content": [{"type": "text", "text": "sunny"}]})
    ),
    "tool answers nothing": _said(*turns(call("{}"), TOLD | {"content": []})),
    "tool answers null": _said(*turns(call("{}"), TOLD | {"content": None})),
    "tool answers an object": _said(*turns(call("{}"), TOLD | {"content": {"a": 1}})),
    "tool without id": _said(*turns(call("{}"), {"role": "tool", "content": "sunny"})),
    "legacy function call": _said(
        *turns({"role": "assistant", "content": "x", "function_call": {"name": "f"}})
    ),
    "legacy function role": _said(*turns({"role": "function", "name": "f", "content": "x"})),
    "developer first": _said({"role": "developer", "content": "Be brief."}, user()),
    "developer after system": _said(
        {"role": "system", "content": "a"}, {"role": "developer", "content": "b"}, user()
    ),
    "developer last": _said(user(), {"role": "developer", "content": "b"}),
    "developer in parts": _said(
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}, user()
    ),
    "developer with tools": _said(
        {"role": "developer", "content": "x", "tools": [function()]}, user()
    ),
    "system in the middle": _said(user(), {"role": "system", "content": "x"}, user()),
    "system in parts": _said(
        {"role": "system", "content": [{"type": "text", "text": "x"}]}, user()
    ),
    "system with the line of Claude Code": _said(
        {"role": "system", "content": "x-anthropic-billing-header: cch=1;\nBe brief."}, user()
    ),
    "unknown role": _said({"role": "critic", "content": "x"}),
    "no role": _said({"content": "x"}),
    "role null": _said({"role": None, "content": "x"}),
    "role a number": _said({"role": 3, "content": "x"}),
    "role a list": _said({"role": ["user"], "content": "x"}),
    "reasoning of the turn before": _said(
        *turns({"role": "assistant", "content": "x", "reasoning_content": "because"}, user())
    ),
    "reasoning by its new name": _said(
        *turns({"role": "assistant", "content": "x", "reasoning": "because"}, user())
    ),
    "name of a user": _said({"role": "user", "name": "ann", "content": "x"}),
    "name a number": _said({"role": "user", "name": 3, "content": "x"}),
    "refusal of an assistant": _said(
        *turns({"role": "assistant", "content": None, "refusal": "no"}, user())
    ),
    "prefill, continued": _said(
        *turns({"role": "assistant", "content": "The"}),
        continue_final_message=True,
        add_generation_prompt=False,
    ),
    "prefill, both": _said(
        *turns({"role": "assistant", "content": "The"}),
        continue_final_message=True,
        add_generation_prompt=True,
    ),
    "prefill, continued alone": _said(
        *turns({"role": "assistant", "content": "The"}), continue_final_message=True
    ),
    "no generation prompt": _hi(add_generation_prompt=False),
}
CONTENTS: dict[str, dict[str, Any]] = {
    "text parts": _said(user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])),
    "a part with cache_control": _said(
        user([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}])
    ),
    "content null": _said(user(None)),
    "content missing": _said({"role": "user"}),
    "content empty": _said(user("")),
    "content no parts": _said(user([])),
    "content of texts": _said(user(["hello"])),
    "content an object": _said(user({"text": "x"})),
    "content a number": _said(user(7)),
    "assistant content no parts": _said(*turns({"role": "assistant", "content": []}, user())),
    "assistant content null": _said(*turns({"role": "assistant", "content": None}, user())),
    "assistant content missing": _said(*turns({"role": "assistant"}, user())),
    "thinking part": _said(
        *turns(
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm"},
                    {"type": "text", "text": "ok"},
                ],
            },
            user(),
        )
    ),
    "refusal part": _said(
        *turns({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, user())
    ),
    "input_text part": _said(user([{"type": "input_text", "text": "a"}])),
    "output_text part": _said(user([{"type": "output_text", "text": "a"}])),
    "text null": _said(user([{"type": "text", "text": None}, {"type": "text", "text": "a"}])),
    "text a number": _said(user([{"type": "text", "text": 5}])),
    "text missing": _said(user([{"type": "text"}])),
    "part without type": _said(user([{"text": "a"}])),
    "part of an unknown type": _said(user([{"type": "video_clip", "clip": "a"}])),
    "part of type null": _said(user([{"type": None, "text": "a"}])),
    "document part": _said(user([{"type": "document", "source": {}}])),
    "file part": _said(user([{"type": "file", "file": {"file_id": "f"}}])),
    "image": _said(user([{"type": "image_url", "image_url": {"url": IMAGE}}])),
    "image of Anthropic": _said(
        user([{"type": "image", "source": {"type": "base64", "data": "x"}}])
    ),
    "audio": _said(user([{"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}}])),
    "messages empty": {"messages": [], "max_tokens": 2},
    "messages missing": {"max_tokens": 2},
    "messages a text": {"messages": "hi", "max_tokens": 2},
    "messages an object": {"messages": user(), "max_tokens": 2},
    "message a text": {"messages": ["hi"], "max_tokens": 2},
    "message null": {"messages": [None], "max_tokens": 2},
}
LENGTHS: dict[str, dict[str, Any]] = {
    "max_tokens above what is left": _said(user(FILLING), max_tokens=CONTEXT - 12),
    "max_tokens of the context": _hi(max_tokens=CONTEXT, temperature=0, stop=["a", "e", " "]),
    "max_tokens above the context": _hi(max_tokens=CONTEXT + 1),
    "max_completion_tokens above the context": _hi(max_completion_tokens=32_000),
    "max_completion_tokens wins": _hi(max_tokens=0, max_completion_tokens=2),
    "max_tokens 0": _hi(max_tokens=0),
    "max_tokens negative": _hi(max_tokens=-1),
    "max_tokens a text of digits": _hi(max_tokens="2"),
    "max_tokens a float": _hi(max_tokens=2.0),
    "max_tokens a half": _hi(max_tokens=2.5),
    "max_tokens true": _hi(max_tokens=True),
    "max_tokens a word": _hi(max_tokens="two"),
    "max_tokens null": _hi(max_tokens=None, max_completion_tokens=2),
    "too long": _said(user(LONG)),
    "too long, cut to what fits": _said(user(LONG), truncate_prompt_tokens=-1),
    "too long, cut to a length": _said(user(LONG), truncate_prompt_tokens=100),
    "too long, cut on the left": _said(
        user(LONG), truncate_prompt_tokens=100, truncation_side="left"
    ),
    "too long, a side alone": _said(user(LONG), truncation_side="left"),
    "short, cut": _said(user("a b c d e f g h"), truncate_prompt_tokens=5),
    "cut beyond the context": _hi(truncate_prompt_tokens=CONTEXT + 1),
    "cut negative": _hi(truncate_prompt_tokens=-2),
    "cut on no side": _hi(truncation_side="middle", truncate_prompt_tokens=5),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": _hi(),
    "streamed": _hi(stream=True),
    "streamed with usage": _hi(stream=True, stream_options={"include_usage": True}),
    "stream options without a stream": _hi(stream_options={"include_usage": True}),
    "stream null": _hi(stream=None),
    "stream a word": _hi(stream="true"),
    "stream a number": _hi(stream=2),
    "two choices": _hi(n=2),
    "129 choices": _hi(n=129, max_tokens=1, temperature=1),
    "beam search": _hi(use_beam_search=True, n=2, temperature=0),
    "no choice": _hi(n=0),
    "n null": _hi(n=None),
    "n a text": _hi(n="2"),
    "temperature a text": _hi(temperature="0.5"),
    "temperature a word": _hi(temperature="hot"),
    "temperature negative": _hi(temperature=-1),
    "top_p above 1": _hi(top_p=1.5),
    "stop a text": _hi(stop="x"),
    "stop a list": _hi(stop=["x", "y"]),
    "stop a number": _hi(stop=3),
    "stop null": _hi(stop=None),
    "seed": _hi(seed=1, temperature=0.5),
    "seed beyond 64 bits": _hi(seed=2**70),
    "logprobs": _hi(logprobs=True, top_logprobs=2),
    "top_logprobs alone": _hi(top_logprobs=2),
    "logit_bias": _hi(logit_bias={"5": 1.0}),
    "logit_bias a list": _hi(logit_bias=[5]),
    "unknown fields": _hi(metadata={"a": "b"}, store=False, prompt_cache_key="k", foo=1),
    "user a number": _hi(user=5),
    "tier fast": _hi(service_tier="fast"),
    "tier scale": _hi(service_tier="scale"),
    "tier turbo": _hi(service_tier="turbo"),
    "tier null": _hi(service_tier=None),
    "tier a number": _hi(service_tier=1),
    "template in the request": _hi(chat_template="{{ messages }}"),
    "template among the arguments": _hi(chat_template_kwargs={"chat_template": "x"}),
    "arguments of the template": _hi(chat_template_kwargs={"enable_thinking": False}),
    "arguments of the template, a list": _hi(chat_template_kwargs=[1]),
    "effort low": _hi(reasoning_effort="low"),
    "effort null": _hi(reasoning_effort=None),
    "effort that the template refuses": _hi(reasoning_effort="xhigh"),
    "effort none": _hi(reasoning_effort="none"),
    "effort that no request may have": _hi(reasoning_effort="extreme"),
    "documents": _hi(documents=[{"title": "t", "text": "x"}]),
    "format json_object": _hi(response_format={"type": "json_object"}),
    "format json_schema": _hi(
        response_format={"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER}}
    ),
    "format json_schema without one": _hi(response_format={"type": "json_schema"}),
    "format of no type": _hi(response_format={"type": "xml"}),
    "format text": _hi(response_format={"type": "text"}),
    "format a word": _hi(response_format="json"),
    "cache salt empty": _hi(cache_salt=""),
    "cache salt": _hi(cache_salt="s"),
    "model a number": _hi(model=3),
    "echo of a chat": _hi(echo=True),
    "prompt_logprobs in a stream": _hi(prompt_logprobs=1, stream=True),
    "min_tokens above max_tokens": _hi(min_tokens=5),
    "allowed_token_ids": _hi(allowed_token_ids=[5, 6]),
    "allowed_token_ids of words": _hi(allowed_token_ids=["a"]),
    "bad_words": _hi(bad_words=["x"]),
    "parallel_tool_calls": _hi(parallel_tool_calls=True),
    "verbosity and modalities": _hi(verbosity="low", modalities=["text"]),
}
TOOLS: dict[str, dict[str, Any]] = {
    "tools": _hi(tools=[function()]),
    "tools with auto": _hi(tools=[function()], tool_choice="auto"),
    "tools with none": _hi(tools=[function()], tool_choice="none"),
    "tools required": _hi(tools=[function()], tool_choice="required", max_tokens=20),
    "tools empty": _hi(tools=[]),
    "tools empty, streamed": _hi(tools=[], stream=True),
    "tools null": _hi(tools=None),
    "tools an object": _hi(tools=function()),
    "tool a word": _hi(tools=["weather"]),
    "tool strict": _hi(tools=[function(strict=True)]),
    "tool without parameters": _hi(tools=[{"type": "function", "function": {"name": "f"}}]),
    "tool without a name": _hi(tools=[{"type": "function", "function": {}}]),
    "tool without a type": _hi(tools=[{"function": {"name": "f"}}]),
    "tool of Responses": _hi(tools=[{"type": "function", "name": "f", "parameters": WEATHER}]),
    "tool custom": _hi(tools=[{"type": "custom", "custom": {"name": "patch"}}]),
    "tool web_search": _hi(tools=[{"type": "web_search"}]),
    "tool with a parameter list": _hi(tools=[function(parameters=[])]),
    "choice auto without tools": _hi(tool_choice="auto"),
    "choice required without tools": _hi(tool_choice="required"),
    "choice none without tools": _hi(tool_choice="none"),
    "choice null without tools": _hi(tool_choice=None),
    "choice of a tool": _hi(
        tools=[function()], tool_choice={"type": "function", "function": {"name": "weather"}}
    ),
    "choice of another tool": _hi(
        tools=[function()], tool_choice={"type": "function", "function": {"name": "other"}}
    ),
    "choice of no function": _hi(tools=[function()], tool_choice={"type": "function"}),
    "choice any": _hi(tools=[function()], tool_choice="any"),
    "choice of allowed tools": _hi(
        tools=[function()],
        tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
    ),
}
CHATS = HISTORIES | CONTENTS | LENGTHS | OPTIONS | TOOLS
