"""Guarantees of the fake engine beyond the protocol: determinism, order and its token rule."""

import asyncio
import json
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from justitia_ray.errors import ConfigError, EngineError, RequestError
from justitia_ray.protocol.engine import EngineCall, Progress, ResponseHead
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS
from justitia_ray.protocol.inference_body import Conversation
from justitia_ray.serve.engines.cache_salts import CacheSalts
from justitia_ray.serve.engines.fake_engine import FakeEngine
from justitia_ray.serve.engines.fake_openai import count_prompt, parse_request
from tests.eventually import eventually


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    """Fake engine of 100 KV tokens whose iterations take no time."""
    engine = FakeEngine("fake", kv_tokens=100, iteration_s=0)
    await engine.start()
    yield engine
    await engine.stop()


def completion_call(lease_id: str, priority: int = 0, **body: Any) -> EngineCall:
    return EngineCall(lease_id, priority, COMPLETIONS, {}, json.dumps(body).encode())


async def choice_texts(engine: FakeEngine, called: EngineCall) -> list[str]:
    items = [item async for item in engine.call(called)]
    assert isinstance(items[0], ResponseHead)
    return [choice["text"] for choice in json.loads(items[1])["choices"]]  # type: ignore[arg-type]


async def test_fake_text_depends_only_on_prompt_choice_and_position(engine: FakeEngine) -> None:
    """Other tests compare answers across replicas, restarts and output lengths."""
    long, other_choice = await choice_texts(
        engine, completion_call("a", prompt="x y", n=2, max_tokens=9)
    )
    (short,) = await choice_texts(engine, completion_call("b", prompt="x y", max_tokens=4))
    (other_prompt,) = await choice_texts(engine, completion_call("c", prompt="x z", max_tokens=9))

    assert long.split()[:4] == short.split()
    assert len({long, other_choice, other_prompt}) == 3
    # The expected texts are written out, because hash() differs between processes.
    ids = [zlib.crc32(f"x y\0{0}\0{i}".encode()) % 1000 for i in range(4)]
    assert short == "".join(f"w{token} " for token in ids)


async def test_stopping_the_engine_ends_open_calls_with_an_error() -> None:
    engine = FakeEngine("fake", kv_tokens=100, iteration_s=60)
    await engine.start()
    open_call = asyncio.create_task(choice_texts(engine, completion_call("a", prompt="x")))
    await asyncio.sleep(0)  # lets the call be queued
    assert engine.progress("a").prompt_tokens == 1

    await engine.stop()

    with pytest.raises(EngineError, match="stopped"):
        await open_call


def test_kv_memory_of_less_than_a_block_is_refused() -> None:
    """An engine without a whole block of memory would never admit a request."""
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
def test_fake_engine_counts_prompt_tokens_by_the_documented_rule(
    path: str, body: dict[str, Any], tokens: int
) -> None:
    """By this rule the ingress predicts how many tokens the engine will charge."""
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
def test_fake_engine_refuses_a_body_without_a_prompt(path: str, body: dict[str, Any]) -> None:
    """A request without a prompt would be scheduled with a token count of zero."""
    with pytest.raises(RequestError):
        parse_request(path, json.dumps(body).encode(), "fake", 100)


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"prompt": "a b c"}, 3),
        ({"messages": [{"role": "user", "content": "a b"}]}, 6),
    ],
)
async def test_tokenize_counts_as_many_tokens_as_the_engine_charges(
    engine: FakeEngine, fields: dict[str, Any], count: int
) -> None:
    """A client that cuts its prompt to the context relies on the count."""
    body = json.dumps(fields).encode()
    head, answer = await engine.answer_unscheduled("/tokenize", {}, body)
    told = json.loads(answer)

    assert (200, count, 100) == (head.status, told["count"], told["max_model_len"])
    assert count == len(told["tokens"])


async def test_detokenized_text_equals_the_answer_text(engine: FakeEngine) -> None:
    _, answer = await engine.answer_unscheduled("/detokenize", {}, b'{"tokens": [7, 8]}')
    head, _ = await engine.answer_unscheduled("/detokenize", {}, b'{"tokens": "7"}')

    assert {"prompt": "w7 w8 "} == json.loads(answer)
    assert 400 == head.status


def cached_tokens_reported(answer: bytes) -> int:
    return int(json.loads(answer)["usage"]["prompt_tokens_details"]["cached_tokens"])


async def answer_bytes(engine: FakeEngine, called: EngineCall) -> bytes:
    items = [item async for item in engine.call(called)]
    assert isinstance(items[0], ResponseHead)
    assert 200 == items[0].status, items
    assert isinstance(items[1], bytes)
    return items[1]


@pytest.fixture
async def cache_reporting_engine() -> AsyncIterator[FakeEngine]:
    """Fake engine with blocks of four tokens that reports its cache hits."""
    engine = FakeEngine(
        "fake",
        kv_tokens=400,
        block_size=4,
        iteration_s=0,
        enable_prompt_tokens_details=True,
        cache_salts=CacheSalts("tenant", 9),
    )
    await engine.start()
    yield engine
    await engine.stop()


async def test_continued_conversation_is_fully_cached(cache_reporting_engine: FakeEngine) -> None:
    """Agents send their whole history with each turn, including earlier answers."""
    said = [{"role": "user", "content": "a b c d"}]
    first = await answer_bytes(
        cache_reporting_engine, EngineCall("1", 0, CHAT, {}, chat_body(said))
    )
    answer = json.loads(first)["choices"][0]["message"]["content"]
    said += [{"role": "assistant", "content": answer}, {"role": "user", "content": "e"}]
    second = await answer_bytes(
        cache_reporting_engine, EngineCall("2", 0, CHAT, {}, chat_body(said))
    )

    assert 0 == cached_tokens_reported(first)
    # 4 words, 4 tokens of chat markup and 8 answer tokens, of which the last was never computed
    assert 12 == cached_tokens_reported(second)
    assert Progress(8, 8, 0) == cache_reporting_engine.release("1")
    assert Progress(25, 8, 12) == cache_reporting_engine.release("2")
    assert (cache_reporting_engine.cache_queries, cache_reporting_engine.cache_hits) == (
        8 + (16 + 4 + 1 + 4),
        12,
    )


def chat_body(messages: list[dict[str, str]]) -> bytes:
    return json.dumps({"messages": messages, "max_tokens": 8}).encode()


@pytest.mark.parametrize(
    ("other", "cached"),
    [
        ({}, 8),
        ({"tenant": "b"}, 0),
        ({"cache_salt": "s"}, 0),
        ({"prompt_logprobs": 1}, 0),
        ({"echo": True, "logprobs": 1}, 0),
        ({"echo": True}, 8),
        ({"n": 3}, 8),
    ],
)
async def test_fake_prefix_cache_hits_equal_vllms(
    cache_reporting_engine: FakeEngine, other: dict[str, Any], cached: int
) -> None:
    """The cache is keyed by tenant and salt; requests for prompt log probabilities skip it."""
    tenant = other.pop("tenant", "a")
    prompt = " ".join("abcdefghi")
    body = {"prompt": prompt, "max_tokens": 2}
    for lease, more, whose in (("1", {}, "a"), ("2", other, tenant)):
        payload = json.dumps({**body, **more}).encode()
        answer = await answer_bytes(
            cache_reporting_engine, EngineCall(lease, 0, COMPLETIONS, {}, payload, (), whose)
        )

    assert cached == cached_tokens_reported(answer)


async def test_cache_salt_of_a_wrong_type_is_a_client_error(
    cache_reporting_engine: FakeEngine,
) -> None:
    items = [
        item
        async for item in cache_reporting_engine.call(
            completion_call("1", prompt="x", cache_salt=7)
        )
    ]

    assert isinstance(items[0], ResponseHead)
    assert 400 == items[0].status


async def test_cached_prompt_skips_its_prefill() -> None:
    lengths: list[float] = []
    engine = FakeEngine("fake", kv_tokens=400, iteration_s=0, prefill_s_per_token=1e-6)
    sleep = asyncio.sleep

    async def note_sleep(length_s: float) -> None:
        lengths.append(length_s)
        await sleep(0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("justitia_ray.serve.engines.fake_engine.asyncio.sleep", note_sleep)
        await engine.start()
        for lease, prompt in (("1", "a b c d"), ("2", "a b c d"), ("3", "a b x")):
            await answer_bytes(engine, completion_call(lease, prompt=prompt, max_tokens=1))
        await engine.stop()

    # Computed: all of the first prompt, the last token of the second, the third's differing one.
    assert [pytest.approx(n * 1e-6) for n in (4, 1, 1)] == lengths


@pytest.mark.parametrize("kv_tokens", [64, 65])
async def test_engine_continues_after_preempting_its_only_running_request(kv_tokens: int) -> None:
    """After the preemption, the engine plans an empty iteration, as vLLM does."""
    engine = FakeEngine("fake", kv_tokens=kv_tokens, iteration_s=0)
    await engine.start()
    last = asyncio.create_task(
        answer_bytes(engine, completion_call("1", 2, prompt="a b", max_tokens=60))
    )
    await eventually(lambda: engine.progress("1").output_tokens > 0, "it runs", every_s=0)
    first = asyncio.create_task(
        answer_bytes(engine, completion_call("2", 1, prompt="x y z", max_tokens=58))
    )

    async with asyncio.timeout(10.0):
        await asyncio.gather(first, last)
    await engine.stop()

    assert engine.preemptions() >= 1
    assert kv_tokens == engine.free_kv_tokens()


async def test_engine_without_a_prefix_cache_computes_every_prompt() -> None:
    engine = FakeEngine("fake", kv_tokens=400, iteration_s=0, enable_prefix_caching=False)
    await engine.start()
    for lease in ("1", "2"):
        await answer_bytes(engine, completion_call(lease, prompt="a b c d", max_tokens=1))
    await engine.stop()

    assert (engine.cache_queries, engine.cache_hits) == (0, 0)
    assert 400 == engine.free_kv_tokens()


def test_token_count_includes_ids_and_cut_positions_on_request() -> None:
    """The queue needs token ids and positions to count the memory of common prefixes once."""
    said = [("system", "be brief"), ("user", "a b"), ("assistant", "c"), ("tool", "d e f")]
    messages = tuple({"role": role, "content": text} for role, text in said)
    known = count_prompt(Conversation(messages), wants_ids=True)
    other = count_prompt(
        Conversation((*messages[:3], {"role": "tool", "content": "g"})), wants_ids=True
    )
    plain = count_prompt(Conversation(messages))

    assert (24, None, ()) == (plain.tokens, plain.ids, plain.cuts)
    assert (24, (6, 17)) == (known.tokens, known.cuts)
    assert known.ids is not None
    assert other.ids is not None
    assert known.ids[:17] == other.ids[:17]
    assert known.ids[17] != other.ids[17]
    assert () == count_prompt("a b", wants_ids=True).cuts
