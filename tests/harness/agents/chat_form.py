"""A scripted turn as an answer of `/v1/chat/completions`, whole or streamed, with vLLM fields."""

from collections.abc import Callable
from typing import Any

from tests.harness.agents.exchange import Document
from tests.harness.agents.pieces import data_event, split_into_pieces
from tests.harness.agents.script import Turn

_USAGE = {"prompt_tokens": 10, "total_tokens": 20, "completion_tokens": 10}


def chat_completion(turn: Turn, asked: Document, new_id: Callable[[str], str]) -> Document:
    message: Document = {
        "role": "assistant",
        "content": turn.text or None,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": [
            {
                "id": new_id("chatcmpl-tool-"),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in turn.calls
        ],
        "reasoning": turn.reasoning or None,
    }
    if not turn.calls:
        del message["tool_calls"]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": _finish_reason(turn),
        "stop_reason": None,
        "token_ids": None,
    }
    return {
        "id": new_id("chatcmpl-"),
        "object": "chat.completion",
        "created": 1_800_000_000,
        "model": asked["model"],
        "choices": [choice],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": _USAGE | {"prompt_tokens_details": None},
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "kv_transfer_params": None,
    }


def chat_chunks(turn: Turn, asked: Document, new_id: Callable[[str], str]) -> list[bytes]:
    deltas: list[Document] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning": piece} for piece in split_into_pieces(turn.reasoning)]
    deltas += [{"content": piece} for piece in split_into_pieces(turn.text)]
    for index, call in enumerate(turn.calls):
        begun: Document = {"id": new_id("call_"), "type": "function", "index": index}
        deltas.append({"tool_calls": [begun | {"function": {"name": call.name}}]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            for piece in split_into_pieces(call.arguments)
        ]
    head = {
        "id": new_id("chatcmpl-"),
        "object": "chat.completion.chunk",
        "created": 1_800_000_000,
        "model": asked["model"],
    }

    def chunk_event(delta: Document, finish_reason: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return data_event(head | {"choices": [choice]})

    events = [chunk_event(delta, None) for delta in deltas]
    events.append(chunk_event({"content": ""}, _finish_reason(turn)))
    options: dict[str, Any] = asked.get("stream_options") or {}
    if options.get("include_usage"):
        events.append(data_event(head | {"choices": [], "usage": _USAGE}))
    return [*events, b"data: [DONE]\n\n"]


def _finish_reason(turn: Turn) -> str:
    return "tool_calls" if turn.calls else "stop"
