"""Measurement of the cost of computing prompts, on fake engines in virtual time."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from justitia_ray import __version__
from justitia_ray.core.prefill_costs import MeasuredPrefill
from justitia_ray.protocol.engine import EngineCall, ResponseHead
from justitia_ray.serve.engines.fake_engine import FakeEngine
from justitia_ray.serve.replica.prefill_plan import measure_prefill
from tests.harness.simulation.virtual_loop import run_virtually

_KV = 40_000


def measure_engine(engine: FakeEngine) -> tuple[MeasuredPrefill | None, float]:
    """Return an engine's measured prefill cost, and the seconds of the measurement."""

    async def run_measurement() -> tuple[MeasuredPrefill | None, float]:
        capacity = await engine.start()
        began_at = asyncio.get_running_loop().time()
        try:
            found = await measure_prefill(engine, capacity, "fake")
            return found, asyncio.get_running_loop().time() - began_at
        finally:
            await engine.stop()

    return run_virtually(run_measurement())


def fake_engine_with(
    kind: type[FakeEngine] = FakeEngine, *, caching: bool = True, **options: float
) -> FakeEngine:
    return kind(
        "fake",
        _KV,
        max_model_len=20_000,
        iteration_s=0.02,
        max_num_batched_tokens=20_000,
        prefill_s_per_token=options.get("prefill_s_per_token", 1e-4),
        max_num_seqs=int(options.get("seats", 256)),
        enable_prefix_caching=caching,
    )


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("seats", [1, 256])
def test_measured_prefill_cost_equals_the_engines_true_cost(seats: int, *, caching: bool) -> None:
    """The engine takes 0.1 ms per prompt token and 20 ms per iteration."""
    found, took_s = measure_engine(fake_engine_with(caching=caching, seats=seats))

    assert found is not None
    assert found.release == __version__
    assert found.cost.per_token == pytest.approx(_KV * 1e-4 / 0.02, rel=1e-3)
    assert found.cost.per_pair == 0
    assert took_s < 10


@pytest.mark.parametrize("seed", range(10))
def test_prefill_measurement_ignores_calls_delayed_by_other_work(seed: int) -> None:
    """A third of all calls takes up to half a second more, as on a busy machine."""
    chance = random.Random(seed)

    class DelayedEngine(FakeEngine):
        async def call(self, call: EngineCall) -> AsyncGenerator[ResponseHead | bytes]:
            if chance.random() < 1 / 3:
                await asyncio.sleep(chance.uniform(0.05, 0.5))
            async with aclosing(super().call(call)) as items:
                async for item in items:
                    yield item

    found, took_s = measure_engine(fake_engine_with(DelayedEngine, prefill_s_per_token=2e-5))

    assert found is not None
    assert found.cost.per_token == pytest.approx(_KV * 2e-5 / 0.02, rel=0.05)
    assert took_s < 13


def test_measured_prefill_cost_is_zero_if_prompts_take_no_time() -> None:
    found, _ = measure_engine(fake_engine_with(prefill_s_per_token=0))

    assert found is not None
    assert found.cost.per_token == pytest.approx(0, abs=1e-6)


def test_prefill_cost_of_a_slow_engine_is_measured_with_shorter_prompts() -> None:
    """At 10 ms per token, a prompt of 10,000 tokens would take 100 s."""
    found, took_s = measure_engine(fake_engine_with(prefill_s_per_token=0.01))

    assert found is not None
    assert found.cost.per_token == pytest.approx(_KV * 0.01 / 0.02, rel=0.05)
    assert took_s < 15


def test_prefill_cost_of_a_too_slow_engine_is_not_measured(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found, took_s = measure_engine(fake_engine_with(prefill_s_per_token=1))

    assert found is None
    assert took_s == pytest.approx(60)
    assert "more than 60 s" in caplog.text


def test_prefill_cost_is_not_measured_if_the_engine_refuses_the_calls(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without a measurement, the replica serves under the paper's cost."""

    class RefusingEngine(FakeEngine):
        async def call(self, call: EngineCall) -> AsyncGenerator[ResponseHead | bytes]:
            yield ResponseHead(400, {})
            yield b"no such token"

    found, _ = measure_engine(RefusingEngine("fake", _KV))

    assert found is None
    assert "no such token" in caplog.text


def test_prefill_cost_of_a_very_short_context_is_not_measured() -> None:
    assert measure_engine(FakeEngine("fake", 100))[0] is None
