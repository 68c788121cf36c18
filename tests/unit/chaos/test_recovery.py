"""Times to recover, by hand."""

from dataclasses import replace

import pytest

from justitia_ray.chaos.kinds import Kind
from justitia_ray.chaos.notes import Ending, Notes
from justitia_ray.chaos.order import Window
from justitia_ray.chaos.recovery import (
    OVER_AFTER_S,
    elsewhere_s,
    hit_nothing,
    is_over,
    recovery_s,
    windows,
)
from tests.unit.chaos.made_up import call, hit, run, sample


def test_scheduler_is_back_with_the_first_run_of_its_epoch() -> None:
    """A run that the old one had granted may begin later still."""
    runs = [
        run("a.0", "4-9", 10.2),
        run("b.0", "5-1", 12.5),
        run("c.0", "5-2", 13.0),
    ]

    assert 2.5 == recovery_s(hit(Kind.SCHEDULER_KILLED, 10.0, epoch=4), Notes(), runs)


def test_stopped_scheduler_is_measured_from_when_it_goes_on() -> None:
    """While it stands still nothing can be granted."""
    runs = [run("a.0", "1-1", 9.0), run("b.0", "1-2", 13.5)]

    assert 0.5 == recovery_s(hit(Kind.SCHEDULER_STOPPED, 10.0, 13.0), Notes(), runs)


@pytest.mark.parametrize("kind", [Kind.REPLICA_KILLED, Kind.ENGINE_KILLED])
def test_replica_is_recovered_from_when_its_leases_are_taken_back(kind: Kind) -> None:
    """How full the others are, and whose turn it is, is not a matter of recovery."""
    runs = [run("a.0", "1-3", 9.0, pid=7, ended_at=None, complete=False)]
    samples = [
        sample(9.9, leases={}),
        sample(10.1, leases={"r": 2, "s": 1}),
        sample(11.5, leases={"r": 0, "s": 3}),
    ]
    struck = hit(kind, 10.0, pid=7, target="r")

    assert 1.5 == recovery_s(struck, Notes(samples=samples), runs)
    assert recovery_s(struck, Notes(samples=samples[:-1]), runs) is None
    assert recovery_s(struck, Notes(samples=samples), []) is None


@pytest.mark.parametrize("kind", [Kind.REPLICA_KILLED, Kind.ENGINE_KILLED])
def test_work_of_a_replica_goes_on_when_the_last_of_its_runs_begins_elsewhere(kind: Kind) -> None:
    """What ran on another replica, or had ended, does not count."""
    runs = [
        run("ended.0", "1-1", 8.0, pid=7),
        run("other.0", "1-2", 9.0, pid=8, ended_at=11.0),
        run("a.0", "1-3", 9.0, pid=7, ended_at=None, complete=False),
        run("b.0", "1-4", 9.5, pid=7, ended_at=10.1, complete=False),
        run("a.0", "1-5", 11.0, pid=8),
        run("b.0", "1-6", 13.0, pid=8),
    ]
    struck = hit(kind, 10.0, pid=7)

    assert 3.0 == elsewhere_s(struck, Notes(), runs)
    assert elsewhere_s(struck, Notes(), runs[:-1]) is None
    assert not hit_nothing(struck, Notes(), runs[:-1])
    assert elsewhere_s(hit(Kind.INGRESS_KILLED, 10.0, pid=7), Notes(), runs) is None


def test_what_was_left_by_its_caller_need_not_begin_again() -> None:
    """Two faults at once: the replica dies, and one of its callers leaves."""
    runs = [
        run("a.0", "1-3", 9.0, pid=7, ended_at=None, complete=False),
        run("b.0", "1-4", 9.0, pid=7, ended_at=None, complete=False),
        run("b.0", "1-6", 11.0, pid=8),
    ]
    notes = Notes(calls=[call("a.0", 8.0, 10.1, ending=Ending.LEFT)])

    assert 1.0 == elsewhere_s(hit(Kind.REPLICA_KILLED, 10.0, pid=7), notes, runs)


def test_replica_that_ran_nothing_leaves_nothing_to_recover() -> None:
    """Its time is not nought: there is none."""
    struck = hit(Kind.REPLICA_KILLED, 10.0, pid=7)

    assert recovery_s(struck, Notes(), []) is None
    assert hit_nothing(struck, Notes(), [])


def test_ingress_is_recovered_from_with_the_first_answer_to_a_later_call() -> None:
    """Calls made before may have gone to the other one."""
    notes = Notes(calls=[call("a.0", 9.0, 10.5), call("b.0", 10.2, 11.5), call("c.0", 10.1, 12.0)])

    assert 1.5 == recovery_s(hit(Kind.INGRESS_KILLED, 10.0), notes, [])


def test_predictor_costs_those_who_open_an_application() -> None:
    """The slowest of the next three openings, not the time until somebody opens one."""
    opened = [("z", 9.0, 9.9), ("a", 12.0, 12.1), ("b", 13.0, 13.4), ("c", 14.0, 14.1)]
    struck = hit(Kind.PREDICTOR_KILLED, 10.0)

    assert 0.4 == pytest.approx(recovery_s(struck, Notes(opened=opened), []))
    assert recovery_s(struck, Notes(opened=opened[:-1]), []) is None


def test_redis_is_back_with_the_next_save() -> None:
    """That it answers again is not enough."""
    samples = [
        sample(11.9, saves=5, degraded=True),
        sample(12.1, saves=5, degraded=True),
        sample(12.4, saves=5),
        sample(12.6, saves=6),
    ]

    assert 0.6 == pytest.approx(
        recovery_s(hit(Kind.REDIS_KILLED, 10.0, 12.0), Notes(samples=samples), [])
    )


def test_callers_who_left_are_rid_of_when_their_last_run_ends() -> None:
    """A run that goes on holds memory for nobody."""
    notes = Notes(
        calls=[
            call("a.0", 8.0, 10.1, ending=Ending.LEFT),
            call("b.0", 8.0, 10.1, ending=Ending.LEFT),
        ]
    )
    runs = [
        run("a.0", "1-1", 9.0, ended_at=10.2, complete=False),
        run("b.0", "1-2", 9.0, ended_at=10.7, complete=False),
        run("c.0", "1-3", 9.0, ended_at=15.0),
    ]
    struck = hit(Kind.CALLERS_LEFT, 10.0)

    assert 0.7 == pytest.approx(recovery_s(struck, notes, runs))
    assert recovery_s(struck, notes, [*runs, replace(runs[0], ended_at=None)]) is None
    assert hit_nothing(struck, Notes(), runs)


@pytest.mark.parametrize("kind", [Kind.GCS_KILLED, Kind.REDIS_EMPTIED, Kind.REDEPLOYED])
def test_what_only_the_striker_sees_is_taken_from_it(kind: Kind) -> None:
    """No note and no run shows it."""
    assert 4.0 == recovery_s(hit(kind, 10.0, 12.0, done_at=16.0), Notes(), [])
    assert recovery_s(hit(kind, 10.0, 12.0), Notes(), []) is None


def test_window_lasts_until_the_recovery_or_its_longest_time() -> None:
    """The order is not judged in it."""
    over, not_over = hit(Kind.GCS_KILLED, 5.0, 6.0, done_at=8.0), hit(Kind.SCHEDULER_KILLED, 10.0)
    notes = Notes(hits=[over, not_over])

    assert [
        Window(Kind.GCS_KILLED, 5.0, 8.0),
        Window(Kind.SCHEDULER_KILLED, 10.0, 10.0 + OVER_AFTER_S),
    ] == windows(notes, [])
    assert is_over(over, notes, [])
    assert not is_over(not_over, notes, [])


def test_run_that_died_with_its_process_is_not_running_later() -> None:
    """It has no end in the journal, and is nothing that a caller who leaves could end."""
    dead = hit(Kind.REPLICA_KILLED, 5.0, pid=7)
    notes = Notes(calls=[call("a.0", 1.0, 10.1, ending=Ending.LEFT)], hits=[dead])
    runs = [
        run("a.0", "1-1", 2.0, pid=7, ended_at=None, complete=False),
        run("a.0", "1-2", 6.0, pid=8, ended_at=10.3, complete=False),
    ]

    assert 0.3 == pytest.approx(recovery_s(hit(Kind.CALLERS_LEFT, 10.0), notes, runs))
