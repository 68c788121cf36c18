"""Checks of replicas that are added and removed: each violation is found in the records."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.config import AutoscalingSection
from tests.harness.chaos.fleet import (
    ANSWERS_WITHIN_S,
    COMES_BACK_S,
    COMES_DOWN_S,
    FleetLimits,
    measure_fleet,
)
from tests.harness.chaos.plan import FaultKind
from tests.harness.chaos.records import (
    Ending,
    EngineRun,
    FleetSample,
    JournalWriter,
    Load,
    RunRecords,
    read_loads,
)
from tests.unit.harness.made_up import call, fault, run, sample

LIMITS = FleetLimits(minimum=1, maximum=3, comes_down_s=5.0, loads_s=1.5)
PIDS = {"a": 1, "b": 2, "c": 3}
STOPPED = fault(FaultKind.SCHEDULER_STOPPED, 10.0, 30.0)
KILLED = fault(FaultKind.CONTROLLER_KILLED, 10.0, done_at=13.0)
LATE_S = ANSWERS_WITHIN_S + 1.0
BUSY = {"leases": {"a": 1}}


def seen(at: float, target: int, took_s: float = 0.0, **states: str) -> FleetSample:
    """Return an observation of Serve's replicas; without states, all wanted ones run."""
    found = states or dict.fromkeys(list(PIDS)[:target], "RUNNING")
    return FleetSample(at, at - took_s, target, found)


def case(told: str | None, *fleet: FleetSample, runs: Sequence[EngineRun] = (), **of: Any) -> Any:
    """Return samples, runs and other records with the flaw in them; None: there is none."""
    records = RunRecords(fleet=list(fleet), pids=PIDS, **of)
    return () if told is None else (told,), records, runs


DRAINED = seen(1.0, 2), seen(5.0, 1, a="RUNNING", b="STOPPING"), seen(9.0, 1)
CUT = "cut by a scale-down: x.0 on b"


@pytest.mark.parametrize(
    ("flaws", "records", "runs"),
    [
        case(None, seen(1.0, 1), seen(2.0, 3), seen(3.0, 1)),
        case("out of bounds: 0 replicas were wanted", seen(1.0, 0)),
        case("out of bounds: 4 replicas were wanted", seen(1.0, 4)),
        # A draining replica was removed, one found again after a restart was not.
        case(None, seen(1.0, 3, a="RUNNING", b="STARTING", c="RUNNING", d="STOPPING")),
        case(
            "out of bounds: there were 4 replicas",
            seen(1.0, 3, a="RUNNING", b="STARTING", c="RUNNING", d="RECOVERING"),
        ),
        # A leaving replica finishes its runs; its process must not end before.
        case(None, *DRAINED, runs=[run("x.0", "1-1", 4.0, pid=2)]),
        case(CUT, *DRAINED, runs=[run("x.0", "1-1", 4.0, pid=2, complete=False)]),
        case(CUT, *DRAINED, runs=[run("x.0", "1-1", 4.0, pid=2, complete=False, ended_at=None)]),
        case(None, *DRAINED, runs=[run("x.0", "1-1", 4.0, pid=1, complete=False)]),
        # A fault cut it, or its caller had left.
        case(
            None,
            *DRAINED,
            runs=[run("x.0", "1-1", 4.0, pid=2, complete=False, ended_at=None)],
            faults=[fault(FaultKind.DRAINING_KILLED, 6.0, pid=2)],
        ),
        case(
            None,
            *DRAINED,
            runs=[run("x.0", "1-1", 4.0, pid=2, complete=False, ended_at=None)],
            faults=[fault(FaultKind.ALL_REPLICAS_KILLED, 6.0, target="1 2 3")],
        ),
        case(
            None,
            *DRAINED,
            runs=[run("x.0", "1-1", 4.0, pid=2, complete=False)],
            calls=[call("x.0", 1.0, 5.0, ending=Ending.LEFT)],
        ),
        case(
            CUT,
            *DRAINED,
            runs=[run("x.0", "1-1", 4.0, pid=2, complete=False)],
            calls=[call("x.0", 1.0, 9.0, ending=Ending.LEFT)],
        ),
        case(
            None,
            *DRAINED,
            runs=[run("x.0", "1-1", 4.0, pid=2, complete=False)],
            faults=[fault(FaultKind.INGRESS_KILLED, 4.5)],
        ),
        # A policy that treats a missing answer as no demand.
        case(
            "fell without an answer: from 3 to 1 replicas wanted",
            seen(9.0, 3),
            seen(20.0, 1),
            seen(40.0, 1),
            faults=[STOPPED],
            samples=[sample(9.9, wanted=3, **BUSY), sample(30.1, wanted=3, **BUSY)],
        ),
        # The scheduler's last answer was 1 replica, and still applies.
        case(
            None,
            seen(9.0, 3),
            seen(20.0, 1),
            faults=[STOPPED],
            samples=[sample(9.9, wanted=1, **BUSY), sample(30.1, wanted=3, **BUSY)],
        ),
        # The restarted scheduler requests the change.
        case(
            None,
            seen(9.0, 3),
            seen(31.0, 1),
            faults=[STOPPED],
            samples=[sample(9.9, wanted=3, **BUSY), sample(30.1, wanted=1, **BUSY)],
        ),
        # A new scheduler that does not know the running work is no answer either.
        case(
            "fell without an answer: from 3 to 1 replicas wanted",
            seen(9.0, 3),
            seen(32.0, 1),
            faults=[STOPPED],
            samples=[
                sample(9.9, wanted=3, **BUSY),
                sample(30.1, ready=False),
                sample(33.0, wanted=1, **BUSY),
            ],
        ),
        # Each poll of the controller waits for the scheduler that is down.
        case(
            f"controller held up: half of its answers took {LATE_S:.1f} s or more,"
            " after scheduler-stopped",
            *(seen(at, 1) for at in (1.0, 2.0, 3.0, 32.0, 33.0)),
            *(seen(at, 1, took_s=LATE_S) for at in (16.0, 21.0, 26.0)),
            faults=[STOPPED],
            samples=[sample(9.9, wanted=1, **BUSY), sample(30.1, wanted=1, **BUSY)],
        ),
        case(
            f"controller held up: half of its answers took {LATE_S:.1f} s or more,"
            " after scheduler-stopped",
            *(seen(at, 1) for at in (1.0, 2.0, 3.0, 32.0, 33.0, 51.0, 52.0)),
            *(seen(at, 1, took_s=LATE_S) for at in (16.0, 21.0, 26.0)),
            faults=[STOPPED, fault(FaultKind.SCHEDULER_STOPPED, 50.0, 60.0)],
            samples=[sample(at, wanted=1, **BUSY) for at in (9.9, 30.1, 60.1)],
        ),
        case(
            f"controller held up: half of its answers took {LATE_S:.1f} s or more, over the run",
            seen(20.0, 1, took_s=LATE_S),
        ),
        # The machine was busy once, or the controller itself was down.
        case(
            None,
            seen(20.0, 1, took_s=LATE_S),
            seen(21.0, 1),
            seen(22.0, 1),
            faults=[STOPPED],
            samples=[sample(9.9, wanted=1, **BUSY), sample(30.1, wanted=1, **BUSY)],
        ),
        case(None, seen(12.0, 1, took_s=LATE_S), faults=[KILLED]),
        # In 5 s, plus the delays of Serve and of this machine.
        case(None, seen(5.0 + COMES_DOWN_S, 2), samples=[sample(0.0), sample(6.0 + COMES_DOWN_S)]),
        case(
            f"did not come down: 2 replicas were wanted {5.5 + COMES_DOWN_S:.1f} s after the last"
            " inference",
            seen(5.5 + COMES_DOWN_S, 2),
            samples=[sample(0.0), sample(6.0 + COMES_DOWN_S)],
        ),
        case(
            None,
            seen(5.5 + COMES_DOWN_S, 2),
            samples=[sample(0.0), sample(1.0, **BUSY), sample(2.0), sample(6.0 + COMES_DOWN_S)],
        ),
        case(
            f"did not come back: {COMES_BACK_S + 1.0:.1f} s without a replica",
            seen(1.0, 1),
            samples=[sample(1.0, waiting=2), sample(COMES_BACK_S + 2.0, waiting=2)],
        ),
        case(
            None,
            seen(1.0, 1),
            samples=[
                sample(1.0, waiting=2),
                sample(30.0, waiting=2, leases={"a": 0}),
                sample(COMES_BACK_S + 2.0, waiting=2),
            ],
        ),
        # A restarted controller counted the replicas that it found as newly loaded.
        case(
            "wrong loading time: 0.8 s, and a replica takes 1.5 s",
            seen(1.0, 1),
            samples=[sample(1.0, load_s=4.0, **BUSY), sample(2.0, load_s=0.8, **BUSY)],
        ),
    ],
)
def test_flaws_of_a_fleet_are_found(
    flaws: tuple[str, ...], records: RunRecords, runs: Sequence[EngineRun]
) -> None:
    """A run without findings means something only if these are found."""
    assert flaws == measure_fleet(LIMITS, records, runs, []).flaws


def test_replicas_that_came_and_went_are_counted() -> None:
    """A run without them would have tested nothing."""
    records = RunRecords(
        fleet=[seen(1.0, 1), seen(2.0, 3), seen(3.0, 1, a="RUNNING", b="STOPPING", c="STOPPING")],
        pids=PIDS,
        faults=[fault(FaultKind.DRAINING_KILLED, 3.5, pid=3)],
    )
    found = measure_fleet(LIMITS, records, [], [Load(1, 0.0, 1.0), Load(2, 1.0, None)])

    assert (1, 3, 1, 1, ()) == (
        found.fewest,
        found.most,
        found.loaded,
        found.taken_off,
        found.flaws,
    )


def test_replica_whose_drain_no_sample_shows_was_taken_off() -> None:
    """The removed replica had no run to finish. c still exists, and d was killed by a fault."""
    records = RunRecords(
        fleet=[
            seen(1.0, 3, a="RUNNING", b="RUNNING", c="RUNNING", d="RUNNING"),
            seen(2.0, 1, a="RUNNING", c="STARTING"),
        ],
        pids=PIDS | {"d": 4},
        faults=[fault(FaultKind.REPLICA_KILLED, 1.5, pid=4)],
    )

    assert 1 == measure_fleet(LIMITS, records, [], []).taken_off


@pytest.mark.parametrize(
    ("section", "comes_down_s"),
    [
        ({"min_replicas": 1}, 60.0 + 240.0),
        ({"min_replicas": 1, "downscale_delay_s": 4.0, "hold_s": 2.0}, 6.0),
        # The last one is removed after the others, by its own delay if it is set.
        ({"min_replicas": 0, "downscale_delay_s": 4.0, "hold_s": 2.0}, 10.0),
        (
            {
                "min_replicas": 0,
                "downscale_delay_s": 4.0,
                "hold_s": 2.0,
                "downscale_to_zero_delay_s": 9.0,
            },
            15.0,
        ),
    ],
)
def test_time_to_scale_down_follows_from_the_arguments(
    section: dict[str, Any], comes_down_s: float
) -> None:
    """`deployments/autoscaling.md`: idle demand counts for `hold_s`, then Serve delays."""
    limits = FleetLimits.of(AutoscalingSection(max_replicas=4, **section))

    assert (section["min_replicas"], 4) == (limits.minimum, limits.maximum)
    assert comes_down_s == limits.comes_down_s


def test_loadings_are_read_back(tmp_path: Path) -> None:
    """A replica that is killed while it loads leaves a start without an end."""
    file = tmp_path / "loads.jsonl"
    writer = JournalWriter(file)
    writer.loading(1.0)
    begun = read_loads(file)
    writer.loaded(2.5)

    assert [] == read_loads(tmp_path / "none")
    assert [(1.0, None)] == [(load.began_at, load.ended_at) for load in begun]
    assert [(1.0, 2.5)] == [(load.began_at, load.ended_at) for load in read_loads(file)]
