"""vLLM's other generating endpoints on its engine: metered, and continued after a cut.

The fake engine has only chats and completions, so only vLLM is tested here.
"""

import json
import re
from typing import Any

import pytest

from justitia_ray.protocol.engine import Engine, EngineCall
from justitia_ray.protocol.generation_bodies import COUNT_TOKENS, MESSAGES, RESPONSES
from tests.conformance.conftest import VLLM_ONLY
from tests.conformance.test_continuation import check_every_cut, parts_of
from tests.conformance.test_engines import LEASES, MODEL, answer_to, chat_of

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("started", VLLM_ONLY, indirect=True),
]

_BODIES: dict[str, dict[str, Any]] = {
    RESPONSES: {"input": "hi there", "max_output_tokens": 6},
    MESSAGES: {"messages": chat_of("hi there"), "max_tokens": 6},
}
_NAME = re.compile(
    r'"((?:(?:resp|msg|rs|fc|call|chatcmpl(?:-tool)?)[_-])?[0-9a-f-]{16,})"|"created_at":(\d+)'
)
_CACHED = re.compile(r'("cached_tokens":)\d+')


def leased_call(path: str, **more: Any) -> EngineCall:
    body = {"model": MODEL, "temperature": 0, **_BODIES[path], **more}
    return EngineCall(next(LEASES), 0, path, {}, json.dumps(body).encode())


def contents_of(stream: bytes) -> list[tuple[dict[str, Any], str | None]]:
    """Return the events of a stream, each with its piece of text (None without text).

    Each id is replaced by its order of appearance, and cached counts by 0: an attempt may find the
    previous attempt's tokens. Pieces of one text are joined, because an engine ahead of its reader
    delivers several tokens at once.
    """
    places: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        number = places.setdefault(found[0], len(places))
        return f'"name {number}"' if found[1] else f'"created_at":{number}'

    text = _CACHED.sub(r"\1 0", _NAME.sub(numbered, stream.decode()))
    lines = [line for line in text.splitlines() if line]
    events: list[dict[str, Any]] = []
    for kind, data in zip(lines[::2], lines[1::2], strict=True):
        events.append(json.loads(data.removeprefix("data: ")))
        assert kind == f"event: {events[-1]['type']}"
    numbers = [event.pop("sequence_number") for event in events if "sequence_number" in event]
    assert numbers == list(range(len(numbers)))
    joined: list[tuple[dict[str, Any], str | None]] = []
    for event in events:
        piece = _taken_piece(event)
        if piece is not None and joined and event == joined[-1][0]:
            joined[-1] = (event, f"{joined[-1][1]}{piece}")
        else:
            joined.append((event, piece))
    return joined


def _taken_piece(event: dict[str, Any]) -> str | None:
    """Remove the piece of text from an event, and return it (None without text)."""
    holder = event if isinstance(event.get("delta"), str) else event.get("delta") or {}
    for name in ("delta", "text", "partial_json"):
        if isinstance(holder.get(name), str):
            piece: str = holder.pop(name)
            return piece
    return None


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("path", _BODIES)
async def test_charged_tokens_equal_the_answers_usage_on_every_endpoint(
    engine: Engine, path: str, stream: bool
) -> None:
    """The tokens that are charged must equal the usage that the caller reads."""
    call = leased_call(path, stream=stream)
    head, body = await answer_to(engine, call)
    sizes = {
        name: int(re.findall(rf'"{name}":\s*(\d+)', body.decode())[-1])
        for name in ("input_tokens", "output_tokens")
    }

    assert 200 == head.status
    assert 0 < sizes["output_tokens"] <= 6
    used = engine.release(call.lease_id)
    assert sizes == {"input_tokens": used.prompt_tokens, "output_tokens": used.output_tokens}


@pytest.mark.parametrize("path", _BODIES)
async def test_continued_stream_equals_an_uninterrupted_stream_on_every_endpoint(
    engine: Engine, path: str
) -> None:
    """Events of the second engine must repeat the response and item ids of the first."""
    await check_every_cut(engine, leased_call(path, stream=True), contents_of)


@pytest.mark.parametrize("path", _BODIES)
async def test_stream_that_follows_a_grammar_cannot_be_continued(engine: Engine, path: str) -> None:
    """The grammar's parser state is lost with its engine."""
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    wanted = (
        {"text": {"format": {"type": "json_schema", "name": "s", "schema": schema}}}
        if path == RESPONSES
        else {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    )
    call = leased_call(path, stream=True, **wanted)
    parts = await parts_of(engine, call)

    assert "structured_outputs" in parts[-1].obstacle


async def test_tokenize_call_needs_no_lease(engine: Engine) -> None:
    """Tokenizing runs no inference, so it must not wait in the scheduler's queue."""
    call = leased_call(MESSAGES)
    await answer_to(engine, call)
    charged = engine.release(call.lease_id).prompt_tokens
    asked = {"model": MODEL, "messages": chat_of("hi there")}
    head, body = await engine.answer_unscheduled(COUNT_TOKENS, {}, json.dumps(asked).encode())

    assert (200, charged) == (head.status, json.loads(body)["input_tokens"])
    assert {RESPONSES, MESSAGES, COUNT_TOKENS, "/tokenize"} <= engine.paths()
    assert "/v1/embeddings" not in engine.paths()
