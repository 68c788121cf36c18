"""The simulator's model of live engines: fitted on one play, it predicts another."""

import statistics
from dataclasses import replace

import pytest

from justitia_ray.bench.live_arms import FCFS, SRJF
from justitia_ray.bench.live_model import fit_model, held_leases
from justitia_ray.sim.engine_profile import EngineProfile, IterationCost
from justitia_ray.sim.results import RunResult
from tests.unit.bench.live_made_up import application, inference, run, simulated_play

START = EngineProfile(
    kv_tokens=7360,
    block_size=32,
    prefill="chunked",
    max_batched_tokens=4096,
    admission="peak",
    overflow="recompute",
)
ENGINE = replace(
    START,
    iteration=IterationCost(
        base_s=0.004,
        per_sequence_s=2e-4,
        per_context_token_s=4e-7,
        per_prefill_token_s=4e-5,
    ),
)


def mean_jct(result: RunResult) -> float:
    """Return the mean completion time of what finished."""
    return statistics.fmean(a.jct_s for a in result.applications if a.jct_s is not None)


def test_model_fitted_on_one_play_predicts_another() -> None:
    """Engines of known costs stand for the live ones: whatever is lost in between shows here."""
    fitted_on, other = (simulated_play(ENGINE, 30, seed, 0.03) for seed in (1, 2))
    model = fit_model(fitted_on, START, 2)

    measured = statistics.fmean(one.record.jct_s for one in other.played)
    assert measured == pytest.approx(mean_jct(model.predict(FCFS, other.played, ())), rel=0.05)
    assert 0.9 < model.pace < 1.1


def test_prediction_goes_by_the_costs_that_the_service_predicted() -> None:
    """Under srjf the smaller prediction goes first, be it right or wrong: so must the model."""
    long, short = inference(0.1, 9.0, (3000, 400)), inference(0.1, 9.0, (3000, 20))
    blocked = [application(n, 0.0, [long]) for n in range(2)]
    told_wrong = [
        application(2, 0.01, [long], predicted=10.0),
        application(3, 0.01, [short], predicted=10_000_000.0),
    ]
    model = replace(fit_model(simulated_play(ENGINE, 20, 1, 0.0), START, 2), replicas=1)

    result = model.predict(SRJF, [*blocked, *told_wrong], ())
    started = {i.application_id: i.dispatched_at_s for i in result.inferences}
    assert started["a002"] is not None
    assert started["a003"] is not None
    assert started["a002"] < started["a003"]


def test_calls_that_do_not_say_where_they_ran_are_left_out_of_the_fit() -> None:
    """What ran beside them is not known."""
    rows = [inference(0.0, 2.0, waited_s=0.5), inference(0.0, 3.0, replica=None)]
    [lease] = held_leases(run(FCFS, [application(0, 0.0, rows)]).played)

    assert ("r1", 0.5, 2.0, 100, 10) == (
        lease.replica,
        lease.granted_at_s,
        lease.finished_at_s,
        lease.prompt_tokens,
        lease.output_tokens,
    )
