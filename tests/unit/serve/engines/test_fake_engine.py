"""What the fake engine promises beyond the Protocol: determinism, order, its token rule."""

import asyncio
import json
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from justitia_ray.errors import ConfigError, EngineError, RequestError
from justitia_ray.protocol.engine import EngineCall, ResponseHead
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS
from justitia_ray.serve.engines.fake_engine import FakeBatch, FakeEngine, FakeSequence
from justitia_ray.serve.engines.fake_openai import parse_request


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    """An engine of 100 tokens whose iterations take no time."""
    engine = FakeEngine("fake", kv_tokens=100, iteration_s=0)
    await engine.start()
    yield engine
    await engine.stop()


def call(lease_id: str, priority: int = 0, **body: Any) -> EngineCall:
    """Return a completion call."""
    return EngineCall(lease_id, priority, COMPLETIONS, {}, json.dumps(body).encode())


async def choices(engine: FakeEngine, called: EngineCall) -> list[str]:
    """Return the texts of a unary answer."""
    items = [item async for item in engine.call(called)]
    assert isinstance(items[0], ResponseHead)
    return [choice["text"] for choice in json.loads(items[1])["choices"]]  # type: ignore[arg-type]


def sequence(arrival: int, prompt_tokens: int, max_tokens: int, priority: int = 0) -> FakeSequence:
    """Return a sequence whose lease is named after its arrival."""
    return FakeSequence(str(arrival), priority, arrival, prompt_tokens, max_tokens)


async def test_text_depends_on_prompt_choice_and_position_alone(engine: FakeEngine) -> None:
    """Tests compare answers across replicas, restarts and lengths."""
    long, other_choice = await choices(engine, call("a", prompt="x y", n=2, max_tokens=9))
    (short,) = await choices(engine, call("b", prompt="x y", max_tokens=4))
    (other_prompt,) = await choices(engine, call("c", prompt="x z", max_tokens=9))

    assert long.split()[:4] == short.split()
    assert len({long, other_choice, other_prompt}) == 3
    # The rule in one shot; no hash() in it, which differs from process to process.
    ids = [zlib.crc32(f"x y\0{0}\0{i}".encode()) % 1000 for i in range(4)]
    assert short == "".join(f"w{token} " for token in ids)


async def test_stop_ends_open_calls_with_an_error() -> None:
    """A replica that stops must not leave its callers waiting."""
    engine = FakeEngine("fake", kv_tokens=100, iteration_s=60)
    await engine.start()
    open_call = asyncio.create_task(choices(engine, call("a", prompt="x")))
    await asyncio.sleep(0)  # lets the call be queued
    assert engine.progress("a").prompt_tokens == 1

    await engine.stop()

    with pytest.raises(EngineError, match="stopped"):
        await open_call


def test_memory_of_less_than_a_block_is_refused() -> None:
    """It would make an engine that never admits anything; the schema knows the other bounds."""
    with pytest.raises(ConfigError, match="kv_tokens is 8; it must be at least 16"):
        FakeEngine("fake", kv_tokens=8, block_size=16)


@pytest.mark.parametrize(
    ("path", "body", "tokens"),
    [
        (COMPLETIONS, {"prompt": "one two  three\nfour"}, 4),
        (COMPLETIONS, {"prompt": ["one two", "three"]}, 3),
        (COMPLETIONS, {"prompt": [7, 8, 9]}, 3),
        (COMPLETIONS, {"prompt": [[7, 8], [9]]}, 3),
        (CHAT, {"messages": [{"role": "user", "content": "one two"}]}, 2 + 4),
        (
            CHAT,
            {
                "messages": [
                    {"role": "system", "content": "one"},
                    {"role": "user", "content": [{"type": "text", "text": "two three"}]},
                ]
            },
            3 + 2 * 4,
        ),
    ],
)
def test_prompt_tokens_follow_the_stated_rule(path: str, body: dict[str, Any], tokens: int) -> None:
    """The ingress predicts with this rule what the engine will charge."""
    request = parse_request(path, json.dumps(body).encode(), "fake", 100)

    assert tokens == sum(request.prompt_tokens)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "x"}),
        (COMPLETIONS, {}),
        (COMPLETIONS, {"prompt": ""}),
        (COMPLETIONS, {"prompt": []}),
        (COMPLETIONS, {"prompt": [1, "x"]}),
        (CHAT, {"messages": []}),
        (CHAT, {"messages": ["x"]}),
        (CHAT, {"messages": [{"content": "x"}]}),
    ],
)
def test_bodies_without_a_prompt_are_refused(path: str, body: dict[str, Any]) -> None:
    """A count of zero would be scheduled."""
    with pytest.raises(RequestError):
        parse_request(path, json.dumps(body).encode(), "fake", 100)


def test_admission_leaves_room_for_the_next_token_of_all() -> None:
    """The first of the constant-iteration engine's rules: used + prompt + 1 + running <= M."""
    batch = FakeBatch(kv_tokens=100, block_size=1, max_num_seqs=9)
    # 0: 40 + 1 <= 100. 1: 40 + 58 + 1 + 1 = 100 <= 100. 2: no room for one token.
    for arrival, prompt_tokens in enumerate((40, 58, 1)):
        batch.add_sequence(sequence(arrival, prompt_tokens, max_tokens=9))

    assert [admitted.arrival for admitted in batch.admit()] == [0, 1]
    assert batch.free_kv_tokens == 2


def test_overflow_preempts_the_last_in_order_and_keeps_its_tokens() -> None:
    """It is prefilled again with what it had, so no token is made twice."""
    batch = FakeBatch(kv_tokens=100, block_size=1, max_num_seqs=9)
    last, first = sequence(0, 49, 9, priority=2), sequence(1, 49, 9, priority=1)
    batch.add_sequence(last)
    batch.add_sequence(first)
    batch.admit()

    batch.step()  # 50 + 50 tokens: the next iteration would need 102

    assert batch.running == [first]
    assert batch.waiting == [last]
    assert (last.generated, last.context, batch.preemptions) == (1, 50, 1)
    assert batch.admit() == []  # 50 + 50 + 1 + 1 > 100


def test_kv_is_held_in_blocks() -> None:
    """A sequence of 33 tokens has two blocks of 32, as in vLLM."""
    batch = FakeBatch(kv_tokens=96, block_size=32, max_num_seqs=9)
    batch.add_sequence(sequence(0, 32, max_tokens=9))
    batch.add_sequence(sequence(1, 32, max_tokens=9))

    assert len(batch.admit()) == 1  # each will need a second block for its first token
    assert batch.free_kv_tokens == 64
    batch.step()
    assert batch.free_kv_tokens == 32


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"prompt": "a b c"}, 3),
        ({"messages": [{"role": "user", "content": "a b"}]}, 6),
    ],
)
async def test_tokens_are_counted_as_prompts_are(
    engine: FakeEngine, fields: dict[str, Any], count: int
) -> None:
    """A client that cuts its prompt to the context must count what will be charged."""
    body = json.dumps(fields).encode()
    head, answer = await engine.answer_unscheduled("/tokenize", {}, body)
    told = json.loads(answer)

    assert (200, count, 100) == (head.status, told["count"], told["max_model_len"])
    assert count == len(told["tokens"])


async def test_tokens_become_the_text_that_they_are_in_answers(engine: FakeEngine) -> None:
    """And what is no list of tokens is the caller's mistake."""
    _, answer = await engine.answer_unscheduled("/detokenize", {}, b'{"tokens": [7, 8]}')
    head, _ = await engine.answer_unscheduled("/detokenize", {}, b'{"tokens": "7"}')

    assert {"prompt": "w7 w8 "} == json.loads(answer)
    assert 400 == head.status
