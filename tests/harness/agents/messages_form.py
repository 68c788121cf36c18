"""A scripted turn as an answer of `/v1/messages`, whole and streamed, with vLLM's fields."""

import json
from collections.abc import Callable

from tests.harness.agents.exchange import Document
from tests.harness.agents.pieces import named_event, split_into_pieces
from tests.harness.agents.script import Turn

_USAGE = {"input_tokens": 10, "output_tokens": 10}


def unary_message(turn: Turn, asked: Document, new_id: Callable[[str], str]) -> Document:
    blocks: list[Document] = []
    if turn.reasoning:
        blocks.append(
            {"type": "thinking", "thinking": turn.reasoning, "signature": new_id("")},
        )
    if turn.text:
        blocks.append({"type": "text", "text": turn.text})
    blocks += [
        {
            "type": "tool_use",
            "id": new_id("toolu_"),
            "name": call.name,
            "input": json.loads(call.arguments),
        }
        for call in turn.calls
    ]
    return {
        "id": new_id("msg_"),
        "type": "message",
        "role": "assistant",
        "content": blocks,
        "model": asked["model"],
        "stop_reason": _stop_reason(turn),
        "stop_sequence": None,
        "usage": _USAGE,
    }


def streamed_message_events(
    turn: Turn, asked: Document, new_id: Callable[[str], str]
) -> list[bytes]:
    whole = unary_message(turn, asked, new_id)
    started = whole | {"content": [], "stop_reason": None}
    events: list[Document] = [{"type": "message_start", "message": started}]
    calls = iter(turn.calls)
    for index, block in enumerate(whole["content"]):
        match block["type"]:
            case "thinking":
                begun: Document = {"type": "thinking", "thinking": ""}
                deltas: list[Document] = [
                    {"type": "thinking_delta", "thinking": piece}
                    for piece in split_into_pieces(block["thinking"])
                ]
                deltas.append({"type": "signature_delta", "signature": block["signature"]})
            case "text":
                begun = {"type": "text", "text": ""}
                deltas = [
                    {"type": "text_delta", "text": piece}
                    for piece in split_into_pieces(block["text"])
                ]
            case _:
                begun = block | {"input": {}}
                deltas = [
                    {"type": "input_json_delta", "partial_json": piece}
                    for piece in split_into_pieces(next(calls).arguments)
                ]
        events.append({"type": "content_block_start", "index": index, "content_block": begun})
        events += [
            {"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas
        ]
        events.append({"type": "content_block_stop", "index": index})
    ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": ended, "usage": _USAGE})
    events.append({"type": "message_stop"})
    return [named_event(event) for event in events]


def _stop_reason(turn: Turn) -> str:
    return "tool_use" if turn.calls else "end_turn"
