"""Grammars on vLLM are compiled in another process first, and used only if that succeeds."""

import asyncio
import json
import time
from typing import Any

import pytest

from justitia_ray.errors import StreamRefused
from justitia_ray.protocol.engine import Engine, EngineCall
from justitia_ray.protocol.generation_bodies import CHAT, MESSAGES, RESPONSES
from tests.conformance.conftest import VLLM_ONLY
from tests.conformance.test_engines import LEASES, MODEL, answer_json, answer_to, chat_of

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("started", VLLM_ONLY, indirect=True),
]

_SMALL = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 3}, "is_new": {"type": "boolean"}},
    "required": ["name", "is_new"],
    "additionalProperties": False,
}


def _nested_schema(depth: int) -> dict[str, Any]:
    """Return a deeply nested JSON schema that takes long to compile (1.25 MB for depth 13)."""
    if depth == 0:
        return {"type": "string"}
    inner = _nested_schema(depth - 1)
    return {
        "oneOf": [
            {
                "type": "object",
                "properties": {f"{name}{depth}": inner},
                "required": [f"{name}{depth}"],
                "additionalProperties": False,
            }
            for name in ("left", "right")
        ]
    }


def _response_format(schema: dict[str, Any]) -> dict[str, Any]:
    described = {"name": "s", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": described}}


def _leased_call(path: str, **fields: Any) -> EngineCall:
    body = {"model": MODEL, "temperature": 0, **fields}
    return EngineCall(next(LEASES), 0, path, {}, json.dumps(body).encode(), (), "a")


def _chat_call(**fields: Any) -> EngineCall:
    return _leased_call(CHAT, messages=chat_of("say something"), max_tokens=64, **fields)


async def _chat_content(engine: Engine, **fields: Any) -> str:
    status, said = await answer_json(engine, _chat_call(**fields))
    assert 200 == status, said
    return str(said["choices"][0]["message"]["content"])


async def test_output_follows_each_kind_of_grammar(engine: Engine) -> None:
    """VLLM's grammar backends enforce a grammar after a separate process has compiled it."""
    in_schema = json.loads(
        await _chat_content(engine, **_response_format({"enum": ["red", "blue"]}))
    )
    chosen = await _chat_content(engine, structured_outputs={"choice": ["yes", "no"]})
    matched = await _chat_content(engine, structured_outputs={"regex": "[ab]{3}"})
    grammar = 'root ::= "one" | "two"'
    derived = await _chat_content(engine, structured_outputs={"grammar": grammar})
    an_object = await _chat_content(engine, response_format={"type": "json_object"})

    assert in_schema in ("red", "blue")
    assert chosen in ("yes", "no")
    assert 3 == len(matched) == matched.count("a") + matched.count("b")
    assert derived in ("one", "two")
    assert an_object.lstrip().startswith("{")


async def test_grammar_that_vllm_refuses_gets_vllms_400_answer(engine: Engine) -> None:
    wrongs: tuple[dict[str, Any], ...] = (
        {"regex": "(a"},
        {"grammar": "root ::= ("},
        {"choice": []},
    )
    for wrong in wrongs:
        status, said = await answer_json(engine, _chat_call(structured_outputs=wrong))

        assert 400 == status, said


def _call_in_schema(path: str, schema: dict[str, Any], **fields: Any) -> EngineCall:
    if path == RESPONSES:
        described = {"type": "json_schema", "name": "s", "schema": schema, "strict": True}
        text = {"format": described}
        return _leased_call(path, input="a", max_output_tokens=9, text=text, **fields)
    if path == MESSAGES:
        form = {"format": {"type": "json_schema", "schema": schema}}
        messages = chat_of("a")
        return _leased_call(path, messages=messages, max_tokens=9, output_config=form, **fields)
    return _chat_call(**_response_format(schema), **fields)


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
async def test_slow_json_schema_is_refused_while_other_calls_continue(
    engine: Engine, path: str
) -> None:
    """Without a time limit, such a schema once blocked the replica's event loop for 30 s."""
    heavy = _call_in_schema(path, _nested_schema(13))
    await _chat_content(engine, **_response_format(_SMALL))  # starts the worker
    gaps: list[float] = []

    async def measure_gaps() -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.01)
            now = time.monotonic()
            gaps.append(now - last)
            last = now

    beating = asyncio.create_task(measure_gaps())
    refused = asyncio.create_task(answer_to(engine, heavy))
    await _chat_content(engine, ignore_eos=True)  # completes beside it
    head, body = await refused
    beating.cancel()

    assert 400 == head.status, body[:300]
    assert b"engine.grammar_timeout_s" in body
    assert max(gaps) < 2.0
    engine.check()


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
async def test_engine_that_refuses_a_streams_schema_stays_alive(engine: Engine, path: str) -> None:
    """VLLM refuses some schemas only after the response head, as an error event or an exception."""
    heavy = _call_in_schema(path, _nested_schema(13), stream=True)
    status, told = 400, ""
    try:
        head, body = await answer_to(engine, heavy)
        told = body.decode()
        assert 200 == head.status
    except StreamRefused as error:
        status, told = error.status, error.error["message"]

    assert 400 == status
    # VLLM's converter from chat events to message events drops the text of an error.
    assert ("event: error" if path == MESSAGES else "engine.grammar_timeout_s") in told
    engine.check()


async def test_json_schema_is_compiled_once(engine: Engine) -> None:
    """Compiled grammars are cached, both in the compiling process and in the engine."""
    schema = {**_SMALL, "title": "another one"}
    times = []
    for format_ in (
        {},
        _response_format(schema),
        _response_format(schema),
        _response_format({**schema, "title": "third"}),
    ):
        began_at = time.perf_counter()
        await _chat_content(engine, ignore_eos=True, **format_)
        times.append(round(1_000 * (time.perf_counter() - began_at), 1))
    without_ms, first_ms, known_ms, other_ms = times

    assert known_ms < without_ms + 1_000, times
    assert max(first_ms, other_ms) < without_ms + 5_000, times
