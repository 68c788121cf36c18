"""A scripted turn as an answer of `/v1/responses`, whole and streamed, with vLLM's fields."""

from collections.abc import Callable

from tests.harness.agents.exchange import Document
from tests.harness.agents.pieces import named_event, split_into_pieces
from tests.harness.agents.script import Turn


def unary_response(turn: Turn, asked: Document, new_id: Callable[[str], str]) -> Document:
    items: list[Document] = []
    if turn.reasoning:
        items.append(
            {
                "id": new_id("rs_"),
                "summary": [],
                "type": "reasoning",
                "content": [{"text": turn.reasoning, "type": "reasoning_text"}],
                "encrypted_content": None,
                "status": None,
            }
        )
    if turn.text:
        part: Document = {
            "annotations": [],
            "text": turn.text,
            "type": "output_text",
            "logprobs": None,
        }
        items.append(
            {
                "id": new_id("msg_"),
                "content": [part],
                "role": "assistant",
                "status": "completed",
                "type": "message",
                "phase": None,
            }
        )
    items += [
        {
            "arguments": call.arguments,
            "call_id": new_id("call_"),
            "name": call.name,
            "type": "function_call",
            "id": new_id("fc_"),
            "namespace": None,
            "status": "completed",
        }
        for call in turn.calls
    ]
    return {
        "id": new_id("resp_"),
        "created_at": 1_800_000_000,
        "incomplete_details": None,
        "instructions": asked.get("instructions"),
        "metadata": None,
        "model": asked["model"],
        "object": "response",
        "output": items,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": asked.get("tools", []),
        "top_p": 1.0,
        "background": False,
        "max_output_tokens": 100,
        "previous_response_id": None,
        "reasoning": None,
        "service_tier": "auto",
        "status": "completed",
        "text": None,
        "truncation": "disabled",
        "usage": {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 10,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 20,
        },
        "user": None,
    }


def streamed_response_events(
    turn: Turn, asked: Document, new_id: Callable[[str], str]
) -> list[bytes]:
    whole = unary_response(turn, asked, new_id)
    begun = whole | {"output": [], "status": "in_progress", "usage": None}
    events: list[Document] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for index, item in enumerate(whole["output"]):
        events += _output_item_events(item, index)
    events.append({"type": "response.completed", "response": whole})
    return [named_event(event | {"sequence_number": number}) for number, event in enumerate(events)]


def _output_item_events(item: Document, index: int) -> list[Document]:
    of_item: Document = {"output_index": index, "item_id": item["id"]}
    if item["type"] == "function_call":
        empty: Document = {"arguments": ""}
        inner = _text_delta_events(
            "response.function_call_arguments",
            item["arguments"],
            {"arguments": item["arguments"], "name": item["name"]},
        )
    else:
        empty = {"content": []}
        part: Document = item["content"][0]
        of_item["content_index"] = 0
        inner = [
            {"type": "response.content_part.added", "part": part | {"text": ""}},
            *_text_delta_events(
                f"response.{part['type']}", part["text"], {"text": part["text"], "logprobs": []}
            ),
            {"type": "response.content_part.done", "part": part},
        ]
    begun = item | empty | {"status": "in_progress"}
    return [
        {"type": "response.output_item.added", "item": begun, "output_index": index},
        *(event | of_item for event in inner),
        {"type": "response.output_item.done", "item": item, "output_index": index},
    ]


def _text_delta_events(name: str, text: str, done: Document) -> list[Document]:
    deltas: list[Document] = [
        {"type": f"{name}.delta", "delta": piece, "logprobs": []}
        for piece in split_into_pieces(text)
    ]
    return [*deltas, {"type": f"{name}.done"} | done]
