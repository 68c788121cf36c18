"""Streams as vLLM sends them on each path, one event per chunk."""

import json
from typing import Any

from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS, MESSAGES, RESPONSES

BODY: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "a"}],
    "max_tokens": 5,
    "stream": True,
}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: BODY,
    COMPLETIONS: {"model": "m", "prompt": "a", "max_tokens": 5, "stream": True},
    MESSAGES: BODY,
    RESPONSES: {"model": "m", "input": "a", "max_output_tokens": 5, "stream": True},
}
"""One request body for each path that generates text."""


def compact_json(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"))


def named_event(kind: str, **data: Any) -> bytes:
    return f"event: {kind}\ndata: {compact_json({**data, 'type': kind})}\n\n".encode()


def _completion_chunk(object_: str, **choice: Any) -> bytes:
    choices = [{"index": 0, **choice, "logprobs": None}]
    head = {"id": "engine-1", "object": object_, "created": 7, "model": "m"}
    return f"data: {compact_json({**head, 'choices': choices})}\n\n".encode()


def _response_object(status: str, *output: Any) -> dict[str, Any]:
    return {
        "id": "resp_engine",
        "created_at": 7,
        "metadata": {},
        "model": "m",
        "object": "response",
        "output": list(output),
        "parallel_tool_calls": True,
        "status": status,
        "tool_choice": "auto",
        "tools": [{"type": "function", "name": "f", "parameters": {"sequence_number": 3}}],
        "usage": {
            "input_tokens": 1,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 1,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 2,
        },
    }


_TEXT = 'hi "sequence_number":5'
_PART = {"type": "output_text", "text": _TEXT, "annotations": [], "logprobs": []}
_SAID = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [_PART],
}
_AT = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
_MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}

STREAMS: dict[str, list[bytes]] = {
    CHAT: [
        _completion_chunk("chat.completion.chunk", delta={"role": "assistant", "content": ""}),
        _completion_chunk("chat.completion.chunk", delta={"content": "hi"}),
        _completion_chunk("chat.completion.chunk", delta={}, finish_reason="stop"),
        b"data: [DONE]\n\n",
    ],
    COMPLETIONS: [
        _completion_chunk("text_completion", text="hi"),
        _completion_chunk("text_completion", text="", finish_reason="stop"),
        b"data: [DONE]\n\n",
    ],
    MESSAGES: [
        named_event(
            "message_start",
            message=_MESSAGE | {"usage": {"input_tokens": 1, "output_tokens": 0}},
        ),
        named_event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        named_event("content_block_delta", index=0, delta={"type": "text_delta", "text": "hi"}),
        named_event("content_block_stop", index=0),
        named_event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 1}),
        named_event("message_stop"),
    ],
    RESPONSES: [
        named_event(
            "response.created", response=_response_object("in_progress"), sequence_number=0
        ),
        named_event(
            "response.in_progress", response=_response_object("in_progress"), sequence_number=1
        ),
        named_event(
            "response.output_item.added",
            output_index=0,
            item=_SAID | {"content": [], "status": "in_progress"},
            sequence_number=2,
        ),
        named_event(
            "response.content_part.added", **_AT, part=_PART | {"text": ""}, sequence_number=3
        ),
        named_event(
            "response.output_text.delta", **_AT, delta=_TEXT, logprobs=[], sequence_number=4
        ),
        named_event("response.output_text.done", **_AT, text=_TEXT, logprobs=[], sequence_number=5),
        named_event("response.content_part.done", **_AT, part=_PART, sequence_number=6),
        named_event("response.output_item.done", output_index=0, item=_SAID, sequence_number=7),
        named_event(
            "response.completed", response=_response_object("completed", _SAID), sequence_number=8
        ),
    ],
}
"""One complete stream for each path, a chunk per event."""
PATHS = tuple(STREAMS)
HEAD = (200, {"content-type": "text/event-stream; charset=utf-8"})


def events_of(body: bytes) -> list[tuple[str | None, Any]]:
    """Return name and data of each event in a body, without comments; [DONE] is a string."""
    found = []
    for block in body.decode().split("\n\n"):
        name = data = None
        for line in block.split("\n"):
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                data = line[6:] if line == "data: [DONE]" else json.loads(line[6:])
        if data is not None:
            found.append((name, data))
    return found
