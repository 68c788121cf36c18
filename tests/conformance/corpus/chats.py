"""Chat bodies: agent histories, contents, lengths, sampling options, tools."""

from typing import Any

from tests.conformance.corpus.words import (
    CONTEXT,
    FILLING,
    IMAGE,
    LONG,
    TOLD,
    WEATHER,
    conversation_with,
    function_tool,
    tool_call_message,
    user_message,
)

_HI: dict[str, Any] = {"messages": [user_message()], "max_tokens": 2}


def _chat_of(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), "max_tokens": 2} | more


def _hi_chat(**more: Any) -> dict[str, Any]:
    return _HI | more


HISTORIES: dict[str, dict[str, Any]] = {
    "arguments as JSON text": _chat_of(*conversation_with(tool_call_message('{"a": 1}'), TOLD)),
    "arguments as an object": _chat_of(*conversation_with(tool_call_message({"a": 1}), TOLD)),
    "arguments empty": _chat_of(*conversation_with(tool_call_message(""), TOLD)),
    "arguments a JSON list": _chat_of(*conversation_with(tool_call_message("[]"), TOLD)),
    "arguments a JSON number": _chat_of(*conversation_with(tool_call_message("42"), TOLD)),
    "arguments cut off": _chat_of(*conversation_with(tool_call_message('{"a": '), TOLD)),
    "arguments null": _chat_of(*conversation_with(tool_call_message(None), TOLD)),
    "arguments nested": _chat_of(
        *conversation_with(tool_call_message('{"a": {"b": [1, "x"]}, "c": null}'), TOLD)
    ),
    "arguments with escapes": _chat_of(
        *conversation_with(tool_call_message('{"a": "\\u00fc\\n\\"q\\""}'), TOLD)
    ),
    "arguments streamed": _chat_of(
        *conversation_with(tool_call_message('{"a": 1}'), TOLD), stream=True
    ),
    "two calls in one turn": _chat_of(
        *conversation_with(
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
    "call without content": _chat_of(
        *conversation_with({k: v for k, v in tool_call_message("{}").items() if k != "content"})
    ),
    "call without type": _chat_of(
        *conversation_with(
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}],
            }
        )
    ),
    "call without id": _chat_of(
        *conversation_with(
            {
                "role": "assistant",
                "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}],
            }
        )
    ),
    "call of a custom tool": _chat_of(
        *conversation_with(
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "c", "type": "custom", "custom": {"name": "patch", "input": "x"}}
                ],
            }
        )
    ),
    "call that is a text": _chat_of(
        *conversation_with({"role": "assistant", "tool_calls": ["f()"]})
    ),
    "calls empty": _chat_of(
        *conversation_with({"role": "assistant", "content": "ok", "tool_calls": []})
    ),
    "calls null": _chat_of(
        *conversation_with({"role": "assistant", "content": "ok", "tool_calls": None})
    ),
    "calls an object": _chat_of(
        *conversation_with({"role": "assistant", "content": "ok", "tool_calls": {}})
    ),
    "call with extra fields": _chat_of(
        *conversation_with(
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
    "tool answers in parts": _chat_of(
        *conversation_with(
            tool_call_message("{}"), TOLD | {"content": [{"type": "text", "text": "sunny"}]}
        )
    ),
    "tool answers nothing": _chat_of(
        *conversation_with(tool_call_message("{}"), TOLD | {"content": []})
    ),
    "tool answers null": _chat_of(
        *conversation_with(tool_call_message("{}"), TOLD | {"content": None})
    ),
    "tool answers an object": _chat_of(
        *conversation_with(tool_call_message("{}"), TOLD | {"content": {"a": 1}})
    ),
    "tool without id": _chat_of(
        *conversation_with(tool_call_message("{}"), {"role": "tool", "content": "sunny"})
    ),
    "legacy function call": _chat_of(
        *conversation_with({"role": "assistant", "content": "x", "function_call": {"name": "f"}})
    ),
    "legacy function role": _chat_of(
        *conversation_with({"role": "function", "name": "f", "content": "x"})
    ),
    "developer first": _chat_of({"role": "developer", "content": "Be brief."}, user_message()),
    "developer after system": _chat_of(
        {"role": "system", "content": "a"}, {"role": "developer", "content": "b"}, user_message()
    ),
    "developer last": _chat_of(user_message(), {"role": "developer", "content": "b"}),
    "developer in parts": _chat_of(
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}, user_message()
    ),
    "developer with tools": _chat_of(
        {"role": "developer", "content": "x", "tools": [function_tool()]}, user_message()
    ),
    "system in the middle": _chat_of(
        user_message(), {"role": "system", "content": "x"}, user_message()
    ),
    "system in parts": _chat_of(
        {"role": "system", "content": [{"type": "text", "text": "x"}]}, user_message()
    ),
    "system with the line of Claude Code": _chat_of(
        {"role": "system", "content": "x-anthropic-billing-header: cch=1;\nBe brief."},
        user_message(),
    ),
    "unknown role": _chat_of({"role": "critic", "content": "x"}),
    "no role": _chat_of({"content": "x"}),
    "role null": _chat_of({"role": None, "content": "x"}),
    "role a number": _chat_of({"role": 3, "content": "x"}),
    "role a list": _chat_of({"role": ["user"], "content": "x"}),
    "reasoning of the turn before": _chat_of(
        *conversation_with(
            {"role": "assistant", "content": "x", "reasoning_content": "because"}, user_message()
        )
    ),
    "reasoning by its new name": _chat_of(
        *conversation_with(
            {"role": "assistant", "content": "x", "reasoning": "because"}, user_message()
        )
    ),
    "name of a user": _chat_of({"role": "user", "name": "ann", "content": "x"}),
    "name a number": _chat_of({"role": "user", "name": 3, "content": "x"}),
    "refusal of an assistant": _chat_of(
        *conversation_with({"role": "assistant", "content": None, "refusal": "no"}, user_message())
    ),
    "prefill, continued": _chat_of(
        *conversation_with({"role": "assistant", "content": "The"}),
        continue_final_message=True,
        add_generation_prompt=False,
    ),
    "prefill, both": _chat_of(
        *conversation_with({"role": "assistant", "content": "The"}),
        continue_final_message=True,
        add_generation_prompt=True,
    ),
    "prefill, continued alone": _chat_of(
        *conversation_with({"role": "assistant", "content": "The"}), continue_final_message=True
    ),
    "no generation prompt": _hi_chat(add_generation_prompt=False),
}
CONTENTS: dict[str, dict[str, Any]] = {
    "text parts": _chat_of(
        user_message([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
    ),
    "a part with cache_control": _chat_of(
        user_message([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}])
    ),
    "content null": _chat_of(user_message(None)),
    "content missing": _chat_of({"role": "user"}),
    "content empty": _chat_of(user_message("")),
    "content no parts": _chat_of(user_message([])),
    "content of texts": _chat_of(user_message(["hello"])),
    "content an object": _chat_of(user_message({"text": "x"})),
    "content a number": _chat_of(user_message(7)),
    "assistant content no parts": _chat_of(
        *conversation_with({"role": "assistant", "content": []}, user_message())
    ),
    "assistant content null": _chat_of(
        *conversation_with({"role": "assistant", "content": None}, user_message())
    ),
    "assistant content missing": _chat_of(
        *conversation_with({"role": "assistant"}, user_message())
    ),
    "thinking part": _chat_of(
        *conversation_with(
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm"},
                    {"type": "text", "text": "ok"},
                ],
            },
            user_message(),
        )
    ),
    "refusal part": _chat_of(
        *conversation_with(
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, user_message()
        )
    ),
    "input_text part": _chat_of(user_message([{"type": "input_text", "text": "a"}])),
    "output_text part": _chat_of(user_message([{"type": "output_text", "text": "a"}])),
    "text null": _chat_of(
        user_message([{"type": "text", "text": None}, {"type": "text", "text": "a"}])
    ),
    "text a number": _chat_of(user_message([{"type": "text", "text": 5}])),
    "text missing": _chat_of(user_message([{"type": "text"}])),
    "part without type": _chat_of(user_message([{"text": "a"}])),
    "part of an unknown type": _chat_of(user_message([{"type": "video_clip", "clip": "a"}])),
    "part of type null": _chat_of(user_message([{"type": None, "text": "a"}])),
    "document part": _chat_of(user_message([{"type": "document", "source": {}}])),
    "file part": _chat_of(user_message([{"type": "file", "file": {"file_id": "f"}}])),
    "image": _chat_of(user_message([{"type": "image_url", "image_url": {"url": IMAGE}}])),
    "image of Anthropic": _chat_of(
        user_message([{"type": "image", "source": {"type": "base64", "data": "x"}}])
    ),
    "audio": _chat_of(
        user_message([{"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}}])
    ),
    "messages empty": {"messages": [], "max_tokens": 2},
    "messages missing": {"max_tokens": 2},
    "messages a text": {"messages": "hi", "max_tokens": 2},
    "messages an object": {"messages": user_message(), "max_tokens": 2},
    "message a text": {"messages": ["hi"], "max_tokens": 2},
    "message null": {"messages": [None], "max_tokens": 2},
}
LENGTHS: dict[str, dict[str, Any]] = {
    "max_tokens above what is left": _chat_of(user_message(FILLING), max_tokens=CONTEXT - 12),
    "max_tokens of the context": _hi_chat(max_tokens=CONTEXT, temperature=0, stop=["a", "e", " "]),
    "max_tokens above the context": _hi_chat(max_tokens=CONTEXT + 1),
    "max_completion_tokens above the context": _hi_chat(max_completion_tokens=32_000),
    "max_completion_tokens wins": _hi_chat(max_tokens=0, max_completion_tokens=2),
    "max_tokens 0": _hi_chat(max_tokens=0),
    "max_tokens negative": _hi_chat(max_tokens=-1),
    "max_tokens a text of digits": _hi_chat(max_tokens="2"),
    "max_tokens a float": _hi_chat(max_tokens=2.0),
    "max_tokens a half": _hi_chat(max_tokens=2.5),
    "max_tokens true": _hi_chat(max_tokens=True),
    "max_tokens a word": _hi_chat(max_tokens="two"),
    "max_tokens null": _hi_chat(max_tokens=None, max_completion_tokens=2),
    "too long": _chat_of(user_message(LONG)),
    "too long, cut to what fits": _chat_of(user_message(LONG), truncate_prompt_tokens=-1),
    "too long, cut to a length": _chat_of(user_message(LONG), truncate_prompt_tokens=100),
    "too long, cut on the left": _chat_of(
        user_message(LONG), truncate_prompt_tokens=100, truncation_side="left"
    ),
    "too long, a side alone": _chat_of(user_message(LONG), truncation_side="left"),
    "short, cut": _chat_of(user_message("a b c d e f g h"), truncate_prompt_tokens=5),
    "cut beyond the context": _hi_chat(truncate_prompt_tokens=CONTEXT + 1),
    "cut negative": _hi_chat(truncate_prompt_tokens=-2),
    "cut on no side": _hi_chat(truncation_side="middle", truncate_prompt_tokens=5),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": _hi_chat(),
    "streamed": _hi_chat(stream=True),
    "streamed with usage": _hi_chat(stream=True, stream_options={"include_usage": True}),
    "stream options without a stream": _hi_chat(stream_options={"include_usage": True}),
    "stream null": _hi_chat(stream=None),
    "stream a word": _hi_chat(stream="true"),
    "stream a number": _hi_chat(stream=2),
    "two choices": _hi_chat(n=2),
    "129 choices": _hi_chat(n=129, max_tokens=1, temperature=1),
    "beam search": _hi_chat(use_beam_search=True, n=2, temperature=0),
    "no choice": _hi_chat(n=0),
    "n null": _hi_chat(n=None),
    "n a text": _hi_chat(n="2"),
    "temperature a text": _hi_chat(temperature="0.5"),
    "temperature a word": _hi_chat(temperature="hot"),
    "temperature negative": _hi_chat(temperature=-1),
    "top_p above 1": _hi_chat(top_p=1.5),
    "stop a text": _hi_chat(stop="x"),
    "stop a list": _hi_chat(stop=["x", "y"]),
    "stop a number": _hi_chat(stop=3),
    "stop null": _hi_chat(stop=None),
    "seed": _hi_chat(seed=1, temperature=0.5),
    "seed beyond 64 bits": _hi_chat(seed=2**70),
    "logprobs": _hi_chat(logprobs=True, top_logprobs=2),
    "top_logprobs alone": _hi_chat(top_logprobs=2),
    "logit_bias": _hi_chat(logit_bias={"5": 1.0}),
    "logit_bias a list": _hi_chat(logit_bias=[5]),
    "unknown fields": _hi_chat(metadata={"a": "b"}, store=False, prompt_cache_key="k", foo=1),
    "user a number": _hi_chat(user=5),
    "tier fast": _hi_chat(service_tier="fast"),
    "tier scale": _hi_chat(service_tier="scale"),
    "tier turbo": _hi_chat(service_tier="turbo"),
    "tier null": _hi_chat(service_tier=None),
    "tier a number": _hi_chat(service_tier=1),
    "template in the request": _hi_chat(chat_template="{{ messages }}"),
    "template among the arguments": _hi_chat(chat_template_kwargs={"chat_template": "x"}),
    "arguments of the template": _hi_chat(chat_template_kwargs={"enable_thinking": False}),
    "arguments of the template, a list": _hi_chat(chat_template_kwargs=[1]),
    "effort low": _hi_chat(reasoning_effort="low"),
    "effort null": _hi_chat(reasoning_effort=None),
    "effort that the template refuses": _hi_chat(reasoning_effort="xhigh"),
    "effort none": _hi_chat(reasoning_effort="none"),
    "effort that no request may have": _hi_chat(reasoning_effort="extreme"),
    "documents": _hi_chat(documents=[{"title": "t", "text": "x"}]),
    "format json_object": _hi_chat(response_format={"type": "json_object"}),
    "format json_schema": _hi_chat(
        response_format={"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER}}
    ),
    "format json_schema without one": _hi_chat(response_format={"type": "json_schema"}),
    "format of no type": _hi_chat(response_format={"type": "xml"}),
    "format text": _hi_chat(response_format={"type": "text"}),
    "format a word": _hi_chat(response_format="json"),
    "cache salt empty": _hi_chat(cache_salt=""),
    "cache salt": _hi_chat(cache_salt="s"),
    "model a number": _hi_chat(model=3),
    "echo of a chat": _hi_chat(echo=True),
    "prompt_logprobs in a stream": _hi_chat(prompt_logprobs=1, stream=True),
    "min_tokens above max_tokens": _hi_chat(min_tokens=5),
    "allowed_token_ids": _hi_chat(allowed_token_ids=[5, 6]),
    "allowed_token_ids of words": _hi_chat(allowed_token_ids=["a"]),
    "bad_words": _hi_chat(bad_words=["x"]),
    "parallel_tool_calls": _hi_chat(parallel_tool_calls=True),
    "verbosity and modalities": _hi_chat(verbosity="low", modalities=["text"]),
}
TOOLS: dict[str, dict[str, Any]] = {
    "tools": _hi_chat(tools=[function_tool()]),
    "tools with auto": _hi_chat(tools=[function_tool()], tool_choice="auto"),
    "tools with none": _hi_chat(tools=[function_tool()], tool_choice="none"),
    "tools required": _hi_chat(tools=[function_tool()], tool_choice="required", max_tokens=20),
    "tools empty": _hi_chat(tools=[]),
    "tools empty, streamed": _hi_chat(tools=[], stream=True),
    "tools null": _hi_chat(tools=None),
    "tools an object": _hi_chat(tools=function_tool()),
    "tool a word": _hi_chat(tools=["weather"]),
    "tool strict": _hi_chat(tools=[function_tool(strict=True)]),
    "tool without parameters": _hi_chat(tools=[{"type": "function", "function": {"name": "f"}}]),
    "tool without a name": _hi_chat(tools=[{"type": "function", "function": {}}]),
    "tool without a type": _hi_chat(tools=[{"function": {"name": "f"}}]),
    "tool of Responses": _hi_chat(tools=[{"type": "function", "name": "f", "parameters": WEATHER}]),
    "tool custom": _hi_chat(tools=[{"type": "custom", "custom": {"name": "patch"}}]),
    "tool web_search": _hi_chat(tools=[{"type": "web_search"}]),
    "tool with a parameter list": _hi_chat(tools=[function_tool(parameters=[])]),
    "choice auto without tools": _hi_chat(tool_choice="auto"),
    "choice required without tools": _hi_chat(tool_choice="required"),
    "choice none without tools": _hi_chat(tool_choice="none"),
    "choice null without tools": _hi_chat(tool_choice=None),
    "choice of a tool": _hi_chat(
        tools=[function_tool()], tool_choice={"type": "function", "function": {"name": "weather"}}
    ),
    "choice of another tool": _hi_chat(
        tools=[function_tool()], tool_choice={"type": "function", "function": {"name": "other"}}
    ),
    "choice of no function": _hi_chat(tools=[function_tool()], tool_choice={"type": "function"}),
    "choice any": _hi_chat(tools=[function_tool()], tool_choice="any"),
    "choice of allowed tools": _hi_chat(
        tools=[function_tool()],
        tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
    ),
}
CHATS = HISTORIES | CONTENTS | LENGTHS | OPTIONS | TOOLS
