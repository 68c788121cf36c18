"""Coefficients from how long calls were at their replicas: known answers of simulated engines."""

from dataclasses import replace

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.sim.calibration.residence import CallAtReplica, fit_residence
from justitia_ray.sim.engine_profile import EngineProfile, IterationCost
from tests.unit.bench.live_made_up import simulated_play

ENGINE = EngineProfile(
    kv_tokens=7360,
    block_size=32,
    prefill="chunked",
    admission="peak",
    overflow="recompute",
    iteration=IterationCost(
        base_s=0.004,
        per_sequence_s=2e-4,
        per_context_token_s=4e-7,
        per_prefill_token_s=4e-5,
    ),
)


def calls_of(engine: EngineProfile, way_s: float, hold_up_s: float = 0.0) -> list[CallAtReplica]:
    """Return the calls of a play on two engines, which see to each for `way_s` besides."""
    return [
        CallAtReplica(
            str(row.replica),
            row.submitted_at_s + row.waited_s,
            row.finished_at_s,
            row.prompt_tokens,
            row.output_tokens,
        )
        for one in simulated_play(engine, 40, 1, way_s, hold_up_s=hold_up_s).played
        for row in one.inferences
    ]


def iteration_s(cost: IterationCost, sequences: int, context: int) -> float:
    """Return how long an iteration of a batch takes."""
    return cost.base_s + cost.per_sequence_s * sequences + cost.per_context_token_s * context


def test_fit_finds_what_iterations_and_prompts_cost() -> None:
    """Base, sequences and context trade against each other; what a usual batch takes is known."""
    fit = fit_residence([calls_of(ENGINE, 0.0)])

    assert iteration_s(ENGINE.iteration, 10, 5000) == pytest.approx(
        iteration_s(fit.cost, 10, 5000), rel=0.05
    )
    assert ENGINE.iteration.per_prefill_token_s * 400 == pytest.approx(
        fit.cost.per_prefill_token_s * 400 + fit.cost.prefill_base_s, rel=0.25
    )
    assert fit.residual < 0.06


def test_fit_tells_what_a_replica_does_besides_from_its_engine() -> None:
    """It is the same for long and short calls, and batches do not make it longer."""
    near, far = (fit_residence([calls_of(ENGINE, way_s)]) for way_s in (0.0, 0.08))

    assert 0.08 == pytest.approx(far.call_latency_s - near.call_latency_s, abs=0.02)


def test_slower_engines_are_found_slower_in_proportion() -> None:
    """A profile is of the machine it was fitted on."""
    cost = ENGINE.iteration
    half = replace(
        ENGINE,
        iteration=replace(
            cost,
            base_s=2 * cost.base_s,
            per_sequence_s=2 * cost.per_sequence_s,
            per_context_token_s=2 * cost.per_context_token_s,
            per_prefill_token_s=2 * cost.per_prefill_token_s,
        ),
    )
    fast, slow = (fit_residence([calls_of(engine, 0.0)]).cost for engine in (ENGINE, half))

    assert 2.0 == pytest.approx(iteration_s(slow, 10, 5000) / iteration_s(fast, 10, 5000), rel=0.06)


def test_what_calls_hold_up_is_told_from_what_tokens_cost() -> None:
    """Engines that share their cores with what serves them wait while calls come and go."""
    free, held_up = (
        fit_residence([calls_of(ENGINE, 0.0, hold_up_s)]) for hold_up_s in (0.0, 0.015)
    )

    assert 0.0 == pytest.approx(free.hold_up_s, abs=0.002)
    assert 0.015 == pytest.approx(held_up.hold_up_s, rel=0.2)
    assert iteration_s(ENGINE.iteration, 10, 5000) == pytest.approx(
        iteration_s(held_up.cost, 10, 5000), rel=0.1
    )


def test_too_few_calls_are_refused() -> None:
    """Seven coefficients of five calls would be noise that looks like a profile."""
    calls = calls_of(ENGINE, 0.0)

    with pytest.raises(ConfigError, match="at least 30 calls that took time, got 5"):
        fit_residence([calls[:2], calls[2:5]])
