"""A tool call cut at any point continues in each of vLLM's protocols.

A model of random weights never chooses a tool. The first tokens are therefore given as outputs of
an earlier attempt: they open the call, and the model's next output is read as its arguments.
"""

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from justitia_ray.protocol.engine import Engine, EngineCall, Output
from justitia_ray.protocol.generation_bodies import MESSAGES, RESPONSES
from justitia_ray.protocol.stream_parts import Delivered, Part
from tests.conformance.conftest import VLLM_ONLY
from tests.conformance.test_continuation import check_every_cut, continue_stream, parts_of
from tests.conformance.test_engines import CHAT, LEASES, MODEL, chat_of, events_of
from tests.conformance.test_surface import contents_of

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("started", VLLM_ONLY, indirect=True),
]

_OPENED = '<tool_call>\n{"name": "weather", "arguments": {"city": "'
_CALL = _OPENED + 'Oslo"}}\n</tool_call>'
_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
_FUNCTION = {"name": "weather", "parameters": _SCHEMA}
_OWN_TOKENS = 6
"""Number of tokens that the model generates itself, after the given tool call."""
_BODIES: dict[str, tuple[dict[str, Any], str]] = {
    CHAT: (
        {"messages": chat_of("hi"), "tools": [{"type": "function", "function": _FUNCTION}]},
        "max_tokens",
    ),
    RESPONSES: ({"input": "hi", "tools": [{"type": "function", **_FUNCTION}]}, "max_output_tokens"),
    MESSAGES: (
        {"messages": chat_of("hi"), "tools": [{"name": "weather", "input_schema": _SCHEMA}]},
        "max_tokens",
    ),
}


async def outputs_for(engine: Engine, text: str) -> tuple[Output, ...]:
    """Return the outputs of an engine that has generated a text, one token each."""
    asked = {"model": MODEL, "prompt": text, "add_special_tokens": False}
    head, body = await engine.answer_unscheduled("/tokenize", {}, json.dumps(asked).encode())
    assert 200 == head.status
    return tuple(Output((token,)) for token in json.loads(body)["tokens"])


def with_regular_end(output: Output) -> Output:
    """Return an engine output that ends the generation regularly."""
    return output._replace(finish_reason="stop")


def leased_call(path: str, said: tuple[Output, ...], own_tokens: int) -> EngineCall:
    """Return a streamed call that continues after the earlier outputs `said`."""
    fields, limit = _BODIES[path]
    body = {"model": MODEL, "temperature": 0, "stream": True, "ignore_eos": True, **fields}
    body[limit] = len(said) + own_tokens
    return EngineCall(next(LEASES), 0, path, {}, json.dumps(body).encode(), said)


def tool_calls_in(path: str, stream: bytes) -> tuple[list[str], str]:
    lines = [line for line in stream.decode().splitlines() if line.startswith("data: {")]
    found = [json.loads(line.removeprefix("data: ")) for line in lines]
    if path == CHAT:
        deltas = [choice["delta"] for event in found for choice in event["choices"]]
        calls = [call["function"] for delta in deltas for call in delta.get("tool_calls") or []]
        names = [call["name"] for call in calls if call.get("name")]
        return names, "".join(call.get("arguments") or "" for call in calls)
    if path == RESPONSES:
        kinds = ("response.output_item.added", "response.function_call_arguments.delta")
        added, deltas = ([e for e in found if e["type"] == kind] for kind in kinds)
        items = [event["item"] for event in added if event["item"]["type"] == "function_call"]
        return [item["name"] for item in items], "".join(event["delta"] for event in deltas)
    blocks = [e["content_block"] for e in found if e["type"] == "content_block_start"]
    pieces = [event.get("delta", {}).get("partial_json") or "" for event in found]
    return [block["name"] for block in blocks if block["type"] == "tool_use"], "".join(pieces)


def content_of(path: str, stream: bytes) -> Any:
    """Return the text and tool calls of a stream, independent of chunk borders."""
    if path != CHAT:
        return contents_of(stream)
    choices = [choice for event in events_of(stream) for choice in event["choices"]]
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls") or []]
    names = {event["id"] for event in events_of(stream)} | {c["id"] for c in calls if c.get("id")}
    ends = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return tool_calls_in(path, stream), text, ends, len(names)


@pytest.mark.parametrize("path", _BODIES)
async def test_continued_tool_call_equals_an_uninterrupted_tool_call(
    engine: Engine, path: str
) -> None:
    """An agent fails on incomplete JSON, so a continued stream must complete the arguments.

    Name and id are sent once, and the arguments after the cut equal those of an uncut stream.
    """
    said = await outputs_for(engine, _OPENED)
    call = leased_call(path, said, _OWN_TOKENS)
    undisturbed = await check_every_cut(engine, call, partial(content_of, path))
    names, arguments = tool_calls_in(path, undisturbed)

    assert ["weather"] == names
    assert len(arguments) > len('{"city": "')


@pytest.mark.parametrize("path", _BODIES)
async def test_stream_cut_after_a_complete_tool_call_is_finished(engine: Engine, path: str) -> None:
    """The engine has nothing left to generate, but the caller still needs the end of the stream."""
    made = await outputs_for(engine, _CALL)
    said = (*made[:-1], with_regular_end(made[-1]))
    call = leased_call(path, said, 1)
    whole = await parts_of(engine, call)
    delivered = Delivered(names=path == RESPONSES)
    delivered.add_part(Part(b"", 0, said))
    delivered.add_part(whole[0])

    rest, _ = await continue_stream(engine, replace(call, earlier=()), delivered)

    undisturbed = b"".join(part.body for part in whole)
    assert (["weather"], '{"city": "Oslo"}') == tool_calls_in(path, undisturbed)
    assert content_of(path, undisturbed) == content_of(path, whole[0].body + rest)
