"""A stream cut at any point continues on any engine with the same output.

Calls are greedy and run one at a time: another batch size may change vLLM's floating-point results,
and with them the tokens.
"""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from justitia_ray.protocol.engine import Engine, EngineCall, Output, Progress, ResponseHead
from justitia_ray.protocol.generation_bodies import RESPONSES
from justitia_ray.protocol.stream_parts import Delivered, Part, in_parts, without_delivered
from justitia_ray.serve.engines.fake_engine import FakeEngine
from tests.conformance.test_engines import (
    CHAT,
    COMPLETIONS,
    LEASES,
    answer_json,
    chat_of,
    events_of,
    leased_call,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

_USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
_BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": (COMPLETIONS, {"prompt": "a b c"}),
    "completion-usage": (COMPLETIONS, {"prompt": "a b c"} | _USAGE),
    "chat": (CHAT, {"messages": chat_of("hi there")}),
    "chat-usage": (CHAT, {"messages": chat_of("hi there")} | _USAGE),
    "echo": (COMPLETIONS, {"prompt": "a b c", "echo": True}),
    "one-token": (COMPLETIONS, {"prompt": "a b c", "max_tokens": 1} | _USAGE),
    "repetition": (COMPLETIONS, {"prompt": "a b c", "repetition_penalty": 1.3}),
    "min-tokens": (COMPLETIONS, {"prompt": "a b c", "min_tokens": 6, "ignore_eos": False}),
}


async def parts_of(engine: Engine, call: EngineCall) -> list[Part]:
    async with aclosing(in_parts(engine.call(call), engine, call.lease_id)) as items:
        return [item async for item in items if isinstance(item, Part)]


def next_attempt(call: EngineCall, earlier: tuple[Output, ...]) -> EngineCall:
    return replace(call, lease_id=next(LEASES), earlier=earlier)


async def continue_stream(
    engine: Engine, call: EngineCall, delivered: Delivered
) -> tuple[bytes, Progress]:
    """Continue a cut stream on the engine; return the new bytes and the progress."""
    resume = delivered.resume()
    assert resume is not None
    following = next_attempt(call, resume.outputs)
    parts = in_parts(engine.call(following), engine, following.lease_id)
    rest = b""
    async with aclosing(without_delivered(parts, resume)) as items:
        async for item in items:
            if isinstance(item, ResponseHead):
                assert 200 == item.status
            else:
                rest += item.body
    return rest, engine.release(following.lease_id)


def content_of(stream: bytes) -> tuple[Any, ...]:
    """Return the text of a stream, however it was cut; fail if a chunk has another id."""
    said = events_of(stream)
    assert 1 == len({(event["id"], event["created"]) for event in said})
    choices = [choice for event in said for choice in event["choices"]]
    text = "".join(c["delta"].get("content", "") if "delta" in c else c["text"] for c in choices)
    roles = [c["delta"]["role"] for c in choices if "role" in c.get("delta", {})]
    ends = [(c["finish_reason"], c.get("stop_reason")) for c in choices if c["finish_reason"]]
    return text, roles, ends, said[-1].get("usage")


async def check_every_cut(
    engine: Engine, call: EngineCall, told: Callable[[bytes], Any] = content_of, ahead: int = 0
) -> bytes:
    """Cut a stream after each chunk in turn, check each continuation, and return the uncut stream.

    Args:
        engine: The engine of all attempts.
        call: A call that streams.
        told: Returns what a stream says, however it is cut into chunks.
        ahead: Chunks by which the tokens are ahead.
    """
    whole = await parts_of(engine, call)
    final = engine.release(call.lease_id)
    undisturbed = b"".join(part.body for part in whole)
    assert len(whole) > 1
    assert {""} == {part.obstacle for part in whole}
    for cut in range(1, len(whole)):
        delivered = Delivered(names=call.path == RESPONSES)
        delivered.add_part(Part(b"", 0, call.earlier))
        for part in whole[:cut]:
            delivered.add_part(part)
        for part in whole[cut : cut + ahead]:
            delivered.add_part(part._replace(body=b"", chunks=0))

        rest, counted = await continue_stream(engine, call, delivered)

        begun = b"".join(part.body for part in whole[:cut])
        assert told(undisturbed) == told(begun + rest)
        # A repeated attempt may find the previous attempt's tokens in the prefix cache.
        assert final == replace(counted, cached_tokens=final.cached_tokens)
    return undisturbed


@pytest.mark.parametrize("kind", _BODIES)
async def test_continued_stream_equals_an_uninterrupted_stream(engine: Engine, kind: str) -> None:
    """Text, finish reason and usage are equal, wherever the stream was cut."""
    path, body = _BODIES[kind]

    await check_every_cut(engine, leased_call(body | {"stream": True}, path))


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_stream_continues_if_the_engine_reported_more_tokens_than_it_sent(
    engine: Engine, path: str
) -> None:
    """A replica may die after it has reported tokens whose chunks it has not yet sent."""
    body = {"messages": chat_of("hi")} if path == CHAT else {"prompt": "a b"}

    await check_every_cut(engine, leased_call(body | {"stream": True} | _USAGE, path), ahead=3)


@pytest.mark.parametrize("shown", [False, True], ids=["hidden", "shown"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_continued_stream_ends_at_the_stop_string(
    engine: Engine, path: str, shown: bool
) -> None:
    """VLLM holds text back that may begin a stop string, and a cut may split the stop string."""
    body = {"messages": chat_of("hi")} if path == CHAT else {"prompt": "a b"}
    _, unary = await answer_json(engine, leased_call(body | {"max_tokens": 12}, path))
    choice = unary["choices"][0]
    text = choice["message"]["content"] if path == CHAT else choice["text"]
    stop = {"stop": [text[8:13]], "include_stop_str_in_output": shown, "max_tokens": 12}

    await check_every_cut(engine, leased_call(body | stop | {"stream": True} | _USAGE, path))


async def test_continued_stream_ends_at_the_stop_token(engine: Engine) -> None:
    """The usage counts a stop token although the text does not contain it."""
    whole = await parts_of(engine, leased_call({"prompt": "a b", "stream": True}))
    made = [token for part in whole for output in part.outputs for token in output.tokens]
    stop = {"prompt": "a b", "stop_token_ids": [made[4]], "stream": True}

    await check_every_cut(engine, leased_call(stop | _USAGE))


async def test_output_before_the_cut_is_prefilled_and_counted_as_output(engine: Engine) -> None:
    """The tokens of a cut stream are prefilled by the next engine but charged as output."""
    call = leased_call({"prompt": [5] * 10, "max_tokens": 6, "stream": True})
    whole = await parts_of(engine, call)
    outputs = tuple(output for part in whole for output in part.outputs)
    following = next_attempt(call, outputs[:-1])
    items = engine.call(following)
    async with aclosing(items):
        await anext(items)
        await anext(items)
        early = engine.progress(following.lease_id)

    assert 6 == sum(len(output.tokens) for output in outputs)
    assert "length" == outputs[-1].finish_reason
    assert early.output_tokens >= 6 - len(outputs[-1].tokens)
    assert 10 == early.prompt_tokens


async def test_output_tokens_are_returned_once_and_dropped_with_the_lease(engine: Engine) -> None:
    """Token ids that stay in the engine after their lease would leak memory."""
    call = leased_call({"prompt": "a b", "stream": True})
    assert () == engine.take_outputs(call.lease_id)
    assert "" == engine.obstacle(call.lease_id)
    parts = await parts_of(engine, call)

    tokens = sum(len(output.tokens) for part in parts for output in part.outputs)
    assert 8 == tokens
    assert () == engine.take_outputs(call.lease_id)
    progress = engine.progress(call.lease_id)
    assert 8 == progress.output_tokens
    assert progress == engine.release(call.lease_id)
    assert () == engine.take_outputs(call.lease_id)


_OBSTACLES: list[tuple[str, dict[str, Any], str]] = [
    (COMPLETIONS, {"prompt": "a", "n": 2, "temperature": 1.0}, "more than one"),
    (COMPLETIONS, {"prompt": ["a", "b"]}, "more than one"),
    (COMPLETIONS, {"prompt": "a", "presence_penalty": 1.0}, "presence_penalty"),
    (COMPLETIONS, {"prompt": "a", "frequency_penalty": 1.0}, "frequency_penalty"),
    (COMPLETIONS, {"prompt": "a", "logprobs": 1}, "logprobs"),
    (COMPLETIONS, {"prompt": "a", "seed": 1, "temperature": 1.0}, "seed"),
    (CHAT, {"messages": chat_of("a"), "response_format": {"type": "json_object"}}, "structured"),
    (CHAT, {"messages": chat_of("a"), "logprobs": True}, "logprobs"),
]
_OF_EVERY_ENGINE = 2
"""Number of leading cases that the fake engine supports, too; the others need sampling."""


@pytest.mark.parametrize(("path", "body", "reason"), _OBSTACLES)
async def test_first_chunk_of_a_stream_names_the_obstacle_to_a_continuation(
    engine: Engine, path: str, body: dict[str, Any], reason: str
) -> None:
    """A continuation with sampling would not match the first half of the stream."""
    if isinstance(engine, FakeEngine) and (path, body, reason) not in _OBSTACLES[:_OF_EVERY_ENGINE]:
        pytest.skip("the fake engine knows no sampling")
    parts = await parts_of(engine, leased_call(body | {"stream": True, "max_tokens": 3}, path))

    assert reason in parts[0].obstacle
    assert not any(part.outputs for part in parts)


async def test_greedy_stream_with_a_seed_can_be_continued(engine: Engine) -> None:
    parts = await parts_of(engine, leased_call({"prompt": "a", "seed": 1, "stream": True}))

    assert {""} == {part.obstacle for part in parts}


async def test_call_answered_with_an_error_can_be_repeated(engine: Engine) -> None:
    """An error answer has no output tokens, so the next engine gives an equal error."""
    call = leased_call({"prompt": "a", "model": "nope", "stream": True})
    items: AsyncGenerator[ResponseHead | Part] = in_parts(engine.call(call), engine, call.lease_id)
    async with aclosing(items):
        head, body = [item async for item in items]

    assert isinstance(head, ResponseHead)
    assert 404 == head.status
    assert isinstance(body, Part)
    assert 404 == json.loads(body.body)["error"]["code"]
    assert (1, (), "") == body[1:]
