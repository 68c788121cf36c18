"""Held contexts in vLLM's prefix cache: evicted after all others, and never in a prompt's way.

The interface of vLLM's KV connectors is experimental: these tests show whether a release still
behaves as `justitia_ray.serve.engines.held_contexts` assumes.
"""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from justitia_ray.protocol.engine import EngineCall, EngineCapacity, Hold, KeptKv
from justitia_ray.protocol.generation_bodies import COMPLETIONS
from justitia_ray.serve.engines.vllm_engine import VllmEngine
from tests.conformance.conftest import VLLM_ONLY
from tests.conformance.test_engines import LEASES, MODEL, answer_json

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    *VLLM_ONLY[0].marks,
]

_BLOCK = 32
_BLOCKS = 64
_FOREVER = 1000.0
_CONTEXT = 16 * _BLOCK
NONE_HELD = KeptKv(held_contexts=0, held_kv_tokens=0)
_WORDS = itertools.count()


def prompt_of(tokens: int) -> list[int]:
    """Return a prompt that shares no prefix with the prompts of other tests."""
    return [100 + (next(_WORDS) * 7919) % 1900 for _ in range(tokens)]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def holding_engine(model_path: str) -> AsyncIterator[tuple[VllmEngine, EngineCapacity]]:
    """Running vLLM engine with 64 KV blocks that keeps idle contexts in the prefix cache."""
    engine = VllmEngine(
        model_path,
        MODEL,
        {
            "dtype": "float32",
            "enforce_eager": True,
            "block_size": _BLOCK,
            "num_gpu_blocks_override": _BLOCKS + 1,  # plus vLLM's null block
            "max_model_len": _BLOCKS * _BLOCK,
            "max_num_seqs": 16,
            "enable_prefix_caching": True,
            "enable_prompt_tokens_details": True,
        },
        holds_contexts=True,
    )
    capacity = await engine.start()
    yield engine, capacity
    await engine.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def engine(holding_engine: tuple[VllmEngine, EngineCapacity]) -> VllmEngine:
    """Engine with an empty prefix cache and no held contexts."""
    assert await holding_engine[0]._llm.reset_prefix_cache(), "blocks are still in use"
    return holding_engine[0]


async def complete_prompt(
    engine: VllmEngine,
    prompt: list[int],
    hold: Hold | None = None,
    *,
    output: int = 1,
    **fields: Any,
) -> int:
    """Complete a prompt, and return how many of its tokens were cached."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": output, "ignore_eos": True, **fields}
    call = EngineCall(next(LEASES), 0, COMPLETIONS, {}, json.dumps(body).encode(), hold=hold)
    status, answered = await answer_json(engine, call)
    engine.release(call.lease_id)
    assert 200 == status, answered
    details = answered["usage"].get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


async def fill_cache(engine: VllmEngine, calls: int = 24) -> None:
    """Complete enough unrelated prompts to fill one and a half times the KV memory."""
    for _ in range(calls):
        await complete_prompt(engine, prompt_of(4 * _BLOCK - 1))


async def test_engine_reports_that_it_can_hold_contexts(
    holding_engine: tuple[VllmEngine, EngineCapacity],
) -> None:
    assert holding_engine[1].holds_contexts
    assert holding_engine[1].caches_prefixes


async def test_context_without_a_hold_is_evicted_by_later_single_calls(engine: VllmEngine) -> None:
    """Without holds, vLLM evicts the context of an agent while it runs a tool."""
    agent = prompt_of(_CONTEXT)
    await complete_prompt(engine, agent)
    await fill_cache(engine)

    assert 0 == await complete_prompt(engine, [*agent, *prompt_of(40)])


async def test_held_context_survives_later_single_calls(engine: VllmEngine) -> None:
    agent = prompt_of(_CONTEXT)
    await complete_prompt(engine, agent, Hold("agent", _FOREVER))
    await fill_cache(engine, 60)

    assert _CONTEXT == await complete_prompt(engine, [*agent, *prompt_of(40)])


async def test_two_parallel_contexts_of_an_application_are_held(engine: VllmEngine) -> None:
    common = prompt_of(4 * _BLOCK)
    sides = [[*common, *prompt_of(4 * _BLOCK)] for _ in range(2)]
    for side in sides:
        await complete_prompt(engine, side, Hold("agent", _FOREVER))
    await fill_cache(engine)

    assert [8 * _BLOCK] * 2 == [await complete_prompt(engine, [*side, 100]) for side in sides]


async def test_free_kv_blocks_stay_free_while_contexts_are_held(
    engine: VllmEngine, holding_engine: tuple[VllmEngine, EngineCapacity]
) -> None:
    """Admission relies on vLLM's count of free blocks, so held blocks must count as free."""
    for name in "abc":
        await complete_prompt(engine, prompt_of(_CONTEXT), Hold(name, _FOREVER))

    assert holding_engine[1].kv_tokens == engine.free_kv_tokens()


async def test_idle_engine_gives_all_of_its_memory_to_the_next_prompt(engine: VllmEngine) -> None:
    """An idle engine runs no steps, so held memory must become free without a step."""
    before = engine.preemptions()
    for name in "abcd":
        await complete_prompt(engine, prompt_of(_CONTEXT), Hold(name, _FOREVER))
    large = prompt_of(_BLOCKS * _BLOCK - 40)

    assert 0 == await complete_prompt(engine, large, output=32)
    assert before == engine.preemptions()


async def test_running_inferences_are_not_preempted_for_held_contexts(engine: VllmEngine) -> None:
    """VLLM could not reuse blocks that a connector references, and would preempt inferences."""
    before = engine.preemptions()
    for name in "abcd":
        await complete_prompt(engine, prompt_of(_CONTEXT), Hold(name, _FOREVER))
    half = [prompt_of(20 * _BLOCK) for _ in range(2)]
    await asyncio.gather(*(complete_prompt(engine, one, output=10 * _BLOCK) for one in half))

    assert before == engine.preemptions()


async def test_prefix_cache_is_reset_while_contexts_are_held(engine: VllmEngine) -> None:
    agent = prompt_of(_CONTEXT)
    await complete_prompt(engine, agent, Hold("agent", _FOREVER))

    assert await engine._llm.reset_prefix_cache()
    assert 0 == await complete_prompt(engine, [*agent, 100])


async def test_engine_reports_a_held_context_until_the_hold_ends(engine: VllmEngine) -> None:
    """The engine is idle after the inference, so it sends no later report."""
    await complete_prompt(engine, prompt_of(_CONTEXT), Hold("agent", _FOREVER))
    gauge = engine._gauges.connector
    assert gauge is not None

    assert KeptKv(held_contexts=1, held_kv_tokens=_CONTEXT) == engine.kept_kv()
    assert NONE_HELD == gauge.read(time.monotonic() + _FOREVER)


async def test_common_tokens_of_held_contexts_are_reported_once(engine: VllmEngine) -> None:
    common = prompt_of(4 * _BLOCK)
    for name in "ab":
        side = [*common, *prompt_of(4 * _BLOCK)]
        await complete_prompt(engine, side, Hold(name, _FOREVER))

    assert KeptKv(held_contexts=2, held_kv_tokens=12 * _BLOCK) == engine.kept_kv()


async def test_continued_and_released_contexts_are_not_reported_as_held(engine: VllmEngine) -> None:
    agent = prompt_of(_CONTEXT)
    await complete_prompt(engine, agent, Hold("agent", _FOREVER))
    await complete_prompt(engine, prompt_of(8 * _BLOCK), Hold("other", _FOREVER))
    await complete_prompt(engine, [*agent, 100], Hold("", 0.0, ("other",)))

    assert NONE_HELD == engine.kept_kv()


async def test_memory_taken_from_held_contexts_is_not_reported_as_held(engine: VllmEngine) -> None:
    for name in "abc":
        await complete_prompt(engine, prompt_of(_CONTEXT), Hold(name, _FOREVER))
    before = engine.kept_kv().held_kv_tokens
    await complete_prompt(engine, prompt_of((_BLOCKS - 8) * _BLOCK - 1))
    after = engine.kept_kv()

    assert 3 * _CONTEXT == before
    assert (1, 8 * _BLOCK) == (after.held_contexts, after.held_kv_tokens)


async def test_hold_of_a_context_ends_with_its_application(engine: VllmEngine) -> None:
    """The engine learns that an application has ended from the next call of any application."""
    agent = prompt_of(_CONTEXT)
    await complete_prompt(engine, agent, Hold("agent", _FOREVER))
    await complete_prompt(engine, prompt_of(40), Hold("", 0.0, ("agent",)))
    await fill_cache(engine)

    assert 0 == await complete_prompt(engine, [*agent, 100])


async def test_context_with_an_expired_hold_is_evicted_like_any_other_context(
    engine: VllmEngine,
) -> None:
    agent = prompt_of(_CONTEXT)
    await complete_prompt(engine, agent, Hold("agent", 1e-9))
    await fill_cache(engine)

    assert 0 == await complete_prompt(engine, [*agent, 100])


async def test_next_turn_of_an_agent_replaces_the_hold_of_the_agents_context(
    engine: VllmEngine,
) -> None:
    agent = prompt_of(_CONTEXT)
    for turn in range(5):
        found = await complete_prompt(engine, agent, Hold("agent", _FOREVER))
        assert (_CONTEXT + (turn - 1) * 2 * _BLOCK if turn else 0) == found
        agent = [*agent, *prompt_of(2 * _BLOCK)]
        await fill_cache(engine, 8)

    assert _CONTEXT + 8 * _BLOCK == await complete_prompt(engine, agent)


async def test_caller_cannot_hold_contexts(engine: VllmEngine) -> None:
    agent = prompt_of(_CONTEXT)
    own = {"application_id": "x", "for_s": _FOREVER, "ended": []}
    await complete_prompt(engine, agent, kv_transfer_params=own)
    await fill_cache(engine)

    assert 0 == await complete_prompt(engine, [*agent, 100])


async def text_of(engine: VllmEngine, prompt: list[int], hold: Hold | None = None) -> str:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 16, "temperature": 0}
    call = EngineCall(next(LEASES), 0, COMPLETIONS, {}, json.dumps(body).encode(), hold=hold)
    _, answered = await answer_json(engine, call)
    engine.release(call.lease_id)
    return str(answered["choices"][0]["text"])


async def test_outputs_are_equal_with_and_without_held_contexts(engine: VllmEngine) -> None:
    agent = prompt_of(_CONTEXT)
    computed = await text_of(engine, agent, Hold("agent", _FOREVER))
    await fill_cache(engine)
    found = await text_of(engine, agent)
    await engine._llm.reset_prefix_cache()

    assert computed == found == await text_of(engine, agent)


async def test_vllm_releases_that_corrupt_recurrent_models_refuse_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some vLLM releases compute wrong recurrent states beside any KV connector (vllm#53505)."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorBase_V1,
        KVConnectorRole,
    )

    from justitia_ray.serve.engines.hold_connector import ContextHoldConnector

    name = "supports_divergent_local_hybrid_hits"
    monkeypatch.delattr(KVConnectorBase_V1, name, raising=False)
    config: Any = SimpleNamespace(model_config=SimpleNamespace(is_hybrid=True))
    with pytest.raises(ValueError, match=r"engine\.hold_contexts: .*vllm#53505"):
        ContextHoldConnector(config, KVConnectorRole.SCHEDULER, None)


async def test_engine_stops_while_contexts_are_held(engine: VllmEngine) -> None:
    """The shared engine is stopped here, so this test must stay the last of the module."""
    await complete_prompt(engine, prompt_of(_CONTEXT), Hold("agent", _FOREVER))
    processes = list(engine._process_tree)
    held = engine.kept_kv()
    await engine.stop()

    assert KeptKv(held_contexts=1, held_kv_tokens=_CONTEXT) == held
    assert processes
    assert not [process for process in processes if process.is_running()]
