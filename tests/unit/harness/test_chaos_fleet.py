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
    ReplicaLoading,
    RunRecords,
    read_loadings,
)
from tests.unit.harness.made_up import (
    answered_call,
    completed_run,
    injected_fault,
    scheduler_sample,
)

LIMITS = FleetLimits(minimum=1, maximum=3, comes_down_s=5.0, loads_s=1.5)
PIDS = {"a": 1, "b": 2, "c": 3}
STOPPED = injected_fault(FaultKind.SCHEDULER_STOPPED, 10.0, 30.0)
KILLED = injected_fault(FaultKind.CONTROLLER_KILLED, 10.0, done_at=13.0)
LATE_S = ANSWERS_WITHIN_S + 1.0
BUSY = {"leases": {"a": 1}}


def fleet_sample(at: float, target: int, took_s: float = 0.0, **states: str) -> FleetSample:
    """Return a sample of replica states; by default all `target` replicas are running."""
    found = states or dict.fromkeys(list(PIDS)[:target], "RUNNING")
    return FleetSample(at, at - took_s, target, found)


def fleet_case(
    told: str | None, *fleet: FleetSample, runs: Sequence[EngineRun] = (), **of: Any
) -> Any:
    """Return samples, runs and records of a test case, with the expected error or None."""
    records = RunRecords(fleet=list(fleet), pids=PIDS, **of)
    return () if told is None else (told,), records, runs


DRAINED = (
    fleet_sample(1.0, 2),
    fleet_sample(5.0, 1, a="RUNNING", b="STOPPING"),
    fleet_sample(9.0, 1),
)
CUT = "cut by a scale-down: x.0 on b"


@pytest.mark.parametrize(
    ("flaws", "records", "runs"),
    [
        fleet_case(None, fleet_sample(1.0, 1), fleet_sample(2.0, 3), fleet_sample(3.0, 1)),
        fleet_case("out of bounds: 0 replicas were wanted", fleet_sample(1.0, 0)),
        fleet_case("out of bounds: 4 replicas were wanted", fleet_sample(1.0, 4)),
        # A draining replica was removed, and another was missing after a restart.
        fleet_case(
            None, fleet_sample(1.0, 3, a="RUNNING", b="STARTING", c="RUNNING", d="STOPPING")
        ),
        fleet_case(
            "out of bounds: there were 4 replicas",
            fleet_sample(1.0, 3, a="RUNNING", b="STARTING", c="RUNNING", d="RECOVERING"),
        ),
        # A replica that is removed must finish its runs before its process ends.
        fleet_case(None, *DRAINED, runs=[completed_run("x.0", "1-1", 4.0, pid=2)]),
        fleet_case(CUT, *DRAINED, runs=[completed_run("x.0", "1-1", 4.0, pid=2, complete=False)]),
        fleet_case(
            CUT,
            *DRAINED,
            runs=[completed_run("x.0", "1-1", 4.0, pid=2, complete=False, ended_at=None)],
        ),
        fleet_case(None, *DRAINED, runs=[completed_run("x.0", "1-1", 4.0, pid=1, complete=False)]),
        # A fault cut the run, or its caller had disconnected.
        fleet_case(
            None,
            *DRAINED,
            runs=[completed_run("x.0", "1-1", 4.0, pid=2, complete=False, ended_at=None)],
            faults=[injected_fault(FaultKind.DRAINING_KILLED, 6.0, pid=2)],
        ),
        fleet_case(
            None,
            *DRAINED,
            runs=[completed_run("x.0", "1-1", 4.0, pid=2, complete=False, ended_at=None)],
            faults=[injected_fault(FaultKind.ALL_REPLICAS_KILLED, 6.0, target="1 2 3")],
        ),
        fleet_case(
            None,
            *DRAINED,
            runs=[completed_run("x.0", "1-1", 4.0, pid=2, complete=False)],
            calls=[answered_call("x.0", 1.0, 5.0, ending=Ending.LEFT)],
        ),
        fleet_case(
            CUT,
            *DRAINED,
            runs=[completed_run("x.0", "1-1", 4.0, pid=2, complete=False)],
            calls=[answered_call("x.0", 1.0, 9.0, ending=Ending.LEFT)],
        ),
        fleet_case(
            None,
            *DRAINED,
            runs=[completed_run("x.0", "1-1", 4.0, pid=2, complete=False)],
            faults=[injected_fault(FaultKind.INGRESS_KILLED, 4.5)],
        ),
        # Without an answer from the scheduler, the number of replicas must stay.
        fleet_case(
            "fell without an answer: from 3 to 1 replicas wanted",
            fleet_sample(9.0, 3),
            fleet_sample(20.0, 1),
            fleet_sample(40.0, 1),
            faults=[STOPPED],
            samples=[
                scheduler_sample(9.9, wanted=3, **BUSY),
                scheduler_sample(30.1, wanted=3, **BUSY),
            ],
        ),
        # The scheduler's last answer, one replica, still applies.
        fleet_case(
            None,
            fleet_sample(9.0, 3),
            fleet_sample(20.0, 1),
            faults=[STOPPED],
            samples=[
                scheduler_sample(9.9, wanted=1, **BUSY),
                scheduler_sample(30.1, wanted=3, **BUSY),
            ],
        ),
        # A restarted scheduler requests the change of the number of replicas.
        fleet_case(
            None,
            fleet_sample(9.0, 3),
            fleet_sample(31.0, 1),
            faults=[STOPPED],
            samples=[
                scheduler_sample(9.9, wanted=3, **BUSY),
                scheduler_sample(30.1, wanted=1, **BUSY),
            ],
        ),
        # A new scheduler's first answer does not count: it does not know the running work yet.
        fleet_case(
            "fell without an answer: from 3 to 1 replicas wanted",
            fleet_sample(9.0, 3),
            fleet_sample(32.0, 1),
            faults=[STOPPED],
            samples=[
                scheduler_sample(9.9, wanted=3, **BUSY),
                scheduler_sample(30.1, ready=False),
                scheduler_sample(33.0, wanted=1, **BUSY),
            ],
        ),
        # Each poll by the controller waits for the dead scheduler.
        fleet_case(
            f"controller held up: half of its answers took {LATE_S:.1f} s or more,"
            " after scheduler-stopped",
            *(fleet_sample(at, 1) for at in (1.0, 2.0, 3.0, 32.0, 33.0)),
            *(fleet_sample(at, 1, took_s=LATE_S) for at in (16.0, 21.0, 26.0)),
            faults=[STOPPED],
            samples=[
                scheduler_sample(9.9, wanted=1, **BUSY),
                scheduler_sample(30.1, wanted=1, **BUSY),
            ],
        ),
        fleet_case(
            f"controller held up: half of its answers took {LATE_S:.1f} s or more,"
            " after scheduler-stopped",
            *(fleet_sample(at, 1) for at in (1.0, 2.0, 3.0, 32.0, 33.0, 51.0, 52.0)),
            *(fleet_sample(at, 1, took_s=LATE_S) for at in (16.0, 21.0, 26.0)),
            faults=[STOPPED, injected_fault(FaultKind.SCHEDULER_STOPPED, 50.0, 60.0)],
            samples=[scheduler_sample(at, wanted=1, **BUSY) for at in (9.9, 30.1, 60.1)],
        ),
        fleet_case(
            f"controller held up: half of its answers took {LATE_S:.1f} s or more, over the run",
            fleet_sample(20.0, 1, took_s=LATE_S),
        ),
        # The machine was busy once, or the controller itself was down.
        fleet_case(
            None,
            fleet_sample(20.0, 1, took_s=LATE_S),
            fleet_sample(21.0, 1),
            fleet_sample(22.0, 1),
            faults=[STOPPED],
            samples=[
                scheduler_sample(9.9, wanted=1, **BUSY),
                scheduler_sample(30.1, wanted=1, **BUSY),
            ],
        ),
        fleet_case(None, fleet_sample(12.0, 1, took_s=LATE_S), faults=[KILLED]),
        # Within 5 s, plus the delays of Serve and of this machine.
        fleet_case(
            None,
            fleet_sample(5.0 + COMES_DOWN_S, 2),
            samples=[scheduler_sample(0.0), scheduler_sample(6.0 + COMES_DOWN_S)],
        ),
        fleet_case(
            f"did not come down: 2 replicas were wanted {5.5 + COMES_DOWN_S:.1f} s after the last"
            " inference",
            fleet_sample(5.5 + COMES_DOWN_S, 2),
            samples=[scheduler_sample(0.0), scheduler_sample(6.0 + COMES_DOWN_S)],
        ),
        fleet_case(
            None,
            fleet_sample(5.5 + COMES_DOWN_S, 2),
            samples=[
                scheduler_sample(0.0),
                scheduler_sample(1.0, **BUSY),
                scheduler_sample(2.0),
                scheduler_sample(6.0 + COMES_DOWN_S),
            ],
        ),
        fleet_case(
            f"did not come back: {COMES_BACK_S + 1.0:.1f} s without a replica",
            fleet_sample(1.0, 1),
            samples=[
                scheduler_sample(1.0, waiting=2),
                scheduler_sample(COMES_BACK_S + 2.0, waiting=2),
            ],
        ),
        fleet_case(
            None,
            fleet_sample(1.0, 1),
            samples=[
                scheduler_sample(1.0, waiting=2),
                scheduler_sample(30.0, waiting=2, leases={"a": 0}),
                scheduler_sample(COMES_BACK_S + 2.0, waiting=2),
            ],
        ),
        # A restarted controller counted existing replicas as newly loaded.
        fleet_case(
            "wrong loading time: 0.8 s, and a replica takes 1.5 s",
            fleet_sample(1.0, 1),
            samples=[
                scheduler_sample(1.0, load_s=4.0, **BUSY),
                scheduler_sample(2.0, load_s=0.8, **BUSY),
            ],
        ),
    ],
)
def test_each_error_of_autoscaling_is_detected(
    flaws: tuple[str, ...], records: RunRecords, runs: Sequence[EngineRun]
) -> None:
    """If these errors could go unnoticed, a run without findings would mean nothing."""
    assert flaws == measure_fleet(LIMITS, records, runs, []).flaws


def test_chaos_run_counts_started_and_stopped_replicas() -> None:
    records = RunRecords(
        fleet=[
            fleet_sample(1.0, 1),
            fleet_sample(2.0, 3),
            fleet_sample(3.0, 1, a="RUNNING", b="STOPPING", c="STOPPING"),
        ],
        pids=PIDS,
        faults=[injected_fault(FaultKind.DRAINING_KILLED, 3.5, pid=3)],
    )
    found = measure_fleet(
        LIMITS, records, [], [ReplicaLoading(1, 0.0, 1.0), ReplicaLoading(2, 1.0, None)]
    )

    assert (1, 3, 1, 1, ()) == (
        found.fewest,
        found.most,
        found.loaded,
        found.taken_off,
        found.flaws,
    )


def test_replica_that_vanishes_between_two_samples_counts_as_removed() -> None:
    records = RunRecords(
        fleet=[
            fleet_sample(1.0, 3, a="RUNNING", b="RUNNING", c="RUNNING", d="RUNNING"),
            fleet_sample(2.0, 1, a="RUNNING", c="STARTING"),
        ],
        pids=PIDS | {"d": 4},
        faults=[injected_fault(FaultKind.REPLICA_KILLED, 1.5, pid=4)],
    )

    assert 1 == measure_fleet(LIMITS, records, [], []).taken_off


@pytest.mark.parametrize(
    ("section", "comes_down_s"),
    [
        ({"min_replicas": 1}, 60.0 + 240.0),
        ({"min_replicas": 1, "downscale_delay_s": 4.0, "hold_s": 2.0}, 6.0),
        # The last replica is removed after its own, longer delay.
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
def test_scale_down_time_is_computed_from_the_arguments(
    section: dict[str, Any], comes_down_s: float
) -> None:
    """Demand counts for `hold_s` after its end, and then Serve's delay follows."""
    limits = FleetLimits.from_autoscaling(AutoscalingSection(max_replicas=4, **section))

    assert (section["min_replicas"], 4) == (limits.minimum, limits.maximum)
    assert comes_down_s == limits.comes_down_s


def test_loading_times_are_read_from_the_journal(tmp_path: Path) -> None:
    """A replica that is killed while it loads leaves a start without an end."""
    file = tmp_path / "loads.jsonl"
    writer = JournalWriter(file)
    writer.write_loading(1.0)
    begun = read_loadings(file)
    writer.write_loaded(2.5)

    assert [] == read_loadings(tmp_path / "none")
    assert [(1.0, None)] == [(load.began_at, load.ended_at) for load in begun]
    assert [(1.0, 2.5)] == [(load.began_at, load.ended_at) for load in read_loadings(file)]
