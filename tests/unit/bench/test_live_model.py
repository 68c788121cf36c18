"""The simulator's model of live engines: fitted on one play, it predicts another."""

import statistics
from dataclasses import replace

import pytest

from justitia_ray.bench.live_arms import FCFS, SRJF
from justitia_ray.bench.live_model import calls_at_replicas, fit_model
from justitia_ray.sim.calibration.residence import CallAtReplica
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
    assert measured == pytest.approx(mean_jct(model.predict(other, ())), rel=0.05)
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

    result = model.predict(run(SRJF, [*blocked, *told_wrong]), ())
    started = {i.application_id: i.dispatched_at_s for i in result.inferences}
    assert started["a002"] is not None
    assert started["a003"] is not None
    assert started["a002"] < started["a003"]


def test_prediction_goes_by_the_speed_of_the_machine_meanwhile() -> None:
    """Nothing of the service is twice as slow, but the machine: it is no error of the model."""
    fitted_on = simulated_play(ENGINE, 20, 1, 0.0)
    model = fit_model(fitted_on, START, 2)
    at_once = [replace(a, record=replace(a.record, arrived_at_s=0.0)) for a in fitted_on.played]
    usual, slow = (
        model.predict(run(FCFS, at_once, computation_s), ()) for computation_s in (0.003, 0.006)
    )

    assert 2.0 == pytest.approx(mean_jct(slow) / mean_jct(usual), rel=0.1)


def test_what_each_call_passes_is_timed_by_its_processes() -> None:
    """The CPU time of those before the replicas, of a call, half of it each way."""
    fitted_on = simulated_play(ENGINE, 20, 1, 0.0)
    calls = sum(len(one.inferences) for one in fitted_on.played)
    cpu_s = {"proxy": 0.01 * calls, "ingress": 0.02 * calls, "engine": 5.0, "replica": 3.0}
    model = fit_model(replace(fitted_on, cpu_s=cpu_s), START, 2)

    assert 0.015 == pytest.approx(model.front_end_s / model.pace)


def test_calls_that_do_not_say_where_they_ran_are_left_out_of_the_fit() -> None:
    """What ran beside them is not known."""
    rows = [inference(0.0, 2.0, waited_s=0.5), inference(0.0, 3.0, replica=None)]
    [call] = calls_at_replicas(run(FCFS, [application(0, 0.0, rows)]).played)

    assert CallAtReplica("r1", 0.5, 2.0, 100, 10) == call


def test_a_call_is_at_its_replica_between_the_ways_of_payload_and_answer() -> None:
    """What is lost on the ways is no cost of the engine, and holds no memory of it."""
    row = inference(0.0, 2.0, waited_s=0.5, ways_s=0.5)
    [call] = calls_at_replicas(run(FCFS, [application(0, 0.0, [row])]).played)

    assert CallAtReplica("r1", 0.75, 1.75, 100, 10) == call


def test_ways_of_calls_lengthen_leases_and_not_iterations() -> None:
    """Were they taken for iterations, a shorter queue would seem to make engines faster."""
    near, far = (fit_model(simulated_play(ENGINE, 30, 1, way_s), START, 2) for way_s in (0.0, 0.2))

    assert 0.1 == pytest.approx(far.dispatch_s - near.dispatch_s, abs=0.03)
    assert 0.1 == pytest.approx(far.call_latency_s - near.call_latency_s, abs=0.01)
