"""The simulator's model of live engines: fitted on some runs, it predicts others."""

import statistics
from dataclasses import replace

import pytest

from justitia_ray.sim.engine_profile import EngineProfile, IterationCost
from justitia_ray.sim.results import RunResult
from scripts.bench.live_model import calls_at_replicas, fit_model
from scripts.bench.live_session import FCFS, SRJF
from scripts.bench.residence import CallAtReplica
from tests.unit.bench.live_fakes import (
    live_run,
    played_application,
    recorded_inference,
    simulated_run,
)

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


def mean_completion_time(result: RunResult) -> float:
    return statistics.fmean(a.jct_s for a in result.applications if a.jct_s is not None)


@pytest.mark.slow
def test_simulated_order_follows_the_predictions_of_the_service() -> None:
    """The policy srjf serves the smaller prediction first, even if the prediction is wrong."""
    long, short = (
        recorded_inference(0.1, 9.0, (3000, 400)),
        recorded_inference(0.1, 9.0, (3000, 20)),
    )
    blocked = [played_application(n, 0.0, [long]) for n in range(2)]
    told_wrong = [
        played_application(2, 0.01, [long], predicted=10.0),
        played_application(3, 0.01, [short], predicted=10_000_000.0),
    ]
    model = replace(fit_model([simulated_run(ENGINE, 20, 1, 0.0)], (), START, 2), replicas=1)

    result = model.predict(live_run(SRJF, [*blocked, *told_wrong]), ()).usual
    started = {i.application_id: i.dispatched_at_s for i in result.inferences}
    assert started["a002"] is not None
    assert started["a003"] is not None
    assert started["a002"] < started["a003"]


@pytest.mark.slow
def test_simulated_times_use_the_measured_speed_of_the_machine() -> None:
    """If the same work took twice the CPU time, the machine has half the speed."""
    play = simulated_run(ENGINE, 20, 1, 0.0)
    fitted_on, slowed = (replace(play, speed=((0.0, cpu_s),)) for cpu_s in (0.001, 0.002))
    model = fit_model([fitted_on], (), START, 2)
    usual, slow = (model.predict(r, ()) for r in (fitted_on, slowed))

    assert usual.slowness == 1.0
    assert mean_completion_time(usual.usual) == mean_completion_time(slow.usual)
    assert slow.slowness == pytest.approx(2.0)
    assert 1.8 < mean_completion_time(slow.result) / mean_completion_time(slow.usual) < 2.5


def test_simulated_call_excludes_transport_from_its_time_on_the_replica() -> None:
    """Transport takes no engine time and no KV memory."""
    row = recorded_inference(0.0, 2.0, waited_s=0.5, ways_s=0.5, dispatch_s=0.25)
    [call] = calls_at_replicas(live_run(FCFS, [played_application(0, 0.0, [row])]).played)

    assert CallAtReplica("r1", 1.0, 1.75, 100, 10) == call


@pytest.mark.slow
def test_simulation_includes_the_overhead_of_many_short_calls() -> None:
    busy = {"dispatch_s": 0.02, "hold_up_s": 0.01}
    plays = [simulated_run(ENGINE, 30, 1, 0.02, arm=arm, **busy) for arm in (FCFS, SRJF)]
    model = fit_model(plays, (), START, 2)

    assert 0.9 < model.pace < 1.1
    assert 0.01 == pytest.approx(model.hold_up_s, rel=0.3)
    for arm in (FCFS, SRJF):
        other = simulated_run(ENGINE, 30, 2, 0.02, arm=arm, **busy)
        measured = statistics.fmean(one.record.jct_s for one in other.played)
        assert measured == pytest.approx(
            mean_completion_time(model.predict(other, ()).usual), rel=0.08
        )
