"""The simulator's model of live engines: fitted on some plays, it predicts others."""

import statistics
from dataclasses import replace

import pytest

from justitia_ray.bench.live_arms import FCFS, SRJF
from justitia_ray.bench.live_model import calls_at_replicas, fit_model, reading_s
from justitia_ray.bench.live_recorder import RecordedInference
from justitia_ray.bench.live_rows import PlayedApplication
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


def _at_speed(slowness: float) -> EngineProfile:
    """Return the engine on a machine that is so much slower."""
    return replace(ENGINE, iteration=ENGINE.iteration.scaled(slowness))


def _two_until(ended_at_s: float) -> list[PlayedApplication]:
    """Return two applications that are open from the start to then."""
    return [application(n, 0.0, [inference(0.0, ended_at_s)]) for n in (1, 2)]


def _later(rows: list[RecordedInference], by_s: float) -> list[RecordedInference]:
    """Return calls that were longer on their ways."""
    return [replace(row, finished_at_s=row.finished_at_s + by_s) for row in rows]


def test_model_fitted_on_one_play_predicts_another() -> None:
    """Engines of known costs stand for the live ones: whatever is lost in between shows here."""
    fitted_on, other = (simulated_play(ENGINE, 30, seed, 0.03) for seed in (1, 2))
    model = fit_model([fitted_on], (), START, 2)

    measured = statistics.fmean(one.record.jct_s for one in other.played)
    assert measured == pytest.approx(mean_jct(model.predict(other, ()).usual), rel=0.05)
    assert 0.9 < model.pace < 1.1


def test_prediction_goes_by_the_costs_that_the_service_predicted() -> None:
    """Under srjf the smaller prediction goes first, be it right or wrong: so must the model."""
    long, short = inference(0.1, 9.0, (3000, 400)), inference(0.1, 9.0, (3000, 20))
    blocked = [application(n, 0.0, [long]) for n in range(2)]
    told_wrong = [
        application(2, 0.01, [long], predicted=10.0),
        application(3, 0.01, [short], predicted=10_000_000.0),
    ]
    model = replace(fit_model([simulated_play(ENGINE, 20, 1, 0.0)], (), START, 2), replicas=1)

    result = model.predict(run(SRJF, [*blocked, *told_wrong]), ()).usual
    started = {i.application_id: i.dispatched_at_s for i in result.inferences}
    assert started["a002"] is not None
    assert started["a003"] is not None
    assert started["a002"] < started["a003"]


def test_prediction_goes_by_the_speed_of_the_machine_meanwhile() -> None:
    """The same work took a processor twice as long: the machine is half as fast."""
    play = simulated_play(ENGINE, 20, 1, 0.0)
    fitted_on, slowed = (replace(play, speed=((0.0, cpu_s),)) for cpu_s in (0.001, 0.002))
    model = fit_model([fitted_on], (), START, 2)
    usual, slow = (model.predict(r, ()) for r in (fitted_on, slowed))

    assert usual.slowness == 1.0
    assert mean_jct(usual.usual) == mean_jct(slow.usual)
    assert slow.slowness == pytest.approx(2.0)
    assert 1.8 < mean_jct(slow.result) / mean_jct(slow.usual) < 2.5


def test_speed_counts_while_applications_are_open() -> None:
    """A mean completion time is longer if the machine is slow while many wait, and not after."""
    play = run(FCFS, [application(0, 0.0, [inference(0.0, 4.0)]), *_two_until(2.0)])

    def reading(*cpu_s: float) -> float | None:
        return reading_s(replace(play, speed=tuple(enumerate(cpu_s))))

    assert reading(1.0, 1.0, 1.0, 1.0, 9.0) == 1.0
    assert reading(2.0, 2.0, 1.0, 1.0) == pytest.approx(2 ** (6 / 8))
    assert reading(1.0, 1.0, 2.0, 2.0) == pytest.approx(2 ** (2 / 8))
    assert reading() is None


def test_model_is_fitted_on_plays_of_different_speed() -> None:
    """What a play took on a slow machine says nothing of engines, if the speed is known."""
    plays = [
        replace(simulated_play(_at_speed(slowness), 30, 1, 0.0), speed=((0.0, slowness),))
        for slowness in (0.8, 1.25)
    ]
    model = fit_model(plays, (), START, 2)

    for play in plays:
        measured = statistics.fmean(one.record.jct_s for one in play.played)
        assert measured == pytest.approx(mean_jct(model.predict(play, ()).result), rel=0.06)


def test_without_a_speedometer_the_machine_is_always_equally_fast() -> None:
    """Also where only some of the plays have readings: they cannot be compared."""
    play = simulated_play(ENGINE, 20, 1, 0.0)
    with_readings = replace(play, speed=((0.0, 0.5),))

    assert fit_model([play], (), START, 2).predict(with_readings, ()).slowness == 1.0
    assert fit_model([with_readings, play], (), START, 2).predict(play, ()).slowness == 1.0


def test_what_calls_meet_on_their_ways_is_a_queue() -> None:
    """Those that come alone pass in the time of the tenth part that passes fastest."""
    alone = simulated_play(ENGINE, 30, 1, 0.02)
    played = [
        replace(one, recorded=replace(one.recorded, inferences=_later(one.inferences, 0.1)))
        if one.planned.number % 2
        else one
        for one in alone.played
        if one.recorded is not None
    ]
    near, far = (
        fit_model([alone], (), START, 2),
        fit_model([replace(alone, played=tuple(played))], (), START, 2),
    )

    assert near.front_end_s == pytest.approx(0.0, abs=1e-3)
    assert far.front_end_s > 0.005
    assert far.dispatch_s / far.pace == pytest.approx(near.dispatch_s / near.pace, abs=0.005)


def test_calls_that_do_not_say_where_they_ran_are_left_out_of_the_fit() -> None:
    """What ran beside them is not known."""
    rows = [inference(0.0, 2.0, waited_s=0.5), inference(0.0, 3.0, replica=None)]
    [call] = calls_at_replicas(run(FCFS, [application(0, 0.0, rows)]).played)

    assert CallAtReplica("r1", 0.5, 2.0, 100, 10) == call


def test_a_call_is_at_its_replica_between_the_ways_of_payload_and_answer() -> None:
    """What is lost on the ways is no cost of the engine, and holds no memory of it."""
    row = inference(0.0, 2.0, waited_s=0.5, ways_s=0.5, dispatch_s=0.25)
    [call] = calls_at_replicas(run(FCFS, [application(0, 0.0, [row])]).played)

    assert CallAtReplica("r1", 1.0, 1.75, 100, 10) == call


def test_ways_of_calls_are_not_taken_for_iterations() -> None:
    """Otherwise a shorter queue would seem to make engines faster."""
    near, far = (
        fit_model([simulated_play(ENGINE, 30, 1, way_s)], (), START, 2) for way_s in (0.0, 0.2)
    )

    assert 0.2 == pytest.approx(far.call_latency_s - near.call_latency_s, abs=0.02)
    assert 0.0 == pytest.approx(far.dispatch_s - near.dispatch_s, abs=0.02)


def test_memory_is_held_while_a_payload_is_under_way() -> None:
    """The lease's time at its replica, less the call's, says how long that is."""
    play = simulated_play(ENGINE, 30, 1, 0.02, dispatch_s=0.06)
    model = fit_model([play], (), START, 2)

    assert 0.06 == pytest.approx(model.dispatch_s, abs=0.02)
    assert 0.02 == pytest.approx(model.call_latency_s, abs=0.01)


def test_model_knows_that_many_short_calls_hold_engines_up() -> None:
    """Two policies on one load tell what calls cost from what tokens do; another load shows it."""
    busy = {"dispatch_s": 0.02, "hold_up_s": 0.01}
    plays = [simulated_play(ENGINE, 30, 1, 0.02, arm=arm, **busy) for arm in (FCFS, SRJF)]
    model = fit_model(plays, (), START, 2)

    assert 0.01 == pytest.approx(model.hold_up_s, rel=0.3)
    for arm in (FCFS, SRJF):
        other = simulated_play(ENGINE, 30, 2, 0.02, arm=arm, **busy)
        measured = statistics.fmean(one.record.jct_s for one in other.played)
        assert measured == pytest.approx(mean_jct(model.predict(other, ()).usual), rel=0.08)
