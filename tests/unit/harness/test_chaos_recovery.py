"""Recovery times, by hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.harness.chaos.counts import Counts
from tests.harness.chaos.order import FaultWindow, OrderMeasure
from tests.harness.chaos.plan import FaultKind
from tests.harness.chaos.records import (
    Ending,
    EngineRun,
    FleetSample,
    InjectedFault,
    RunRecords,
)
from tests.harness.chaos.recovery import (
    OVER_AFTER_S,
    fault_windows,
    had_no_effect,
    is_over,
    recovery_s,
    rerun_elsewhere_s,
)
from tests.harness.chaos.report import ChaosResult, FaultOutcome, result_document
from tests.unit.harness.made_up import (
    answered_call,
    completed_run,
    injected_fault,
    scheduler_sample,
)

OF_ONE_REPLICA = (FaultKind.REPLICA_KILLED, FaultKind.ENGINE_KILLED, FaultKind.DRAINING_KILLED)
LOST = completed_run("a.0", "1-3", 9.0, pid=7, ended_at=None, complete=False)
OPENED = [("z", 9.0, 9.9), ("a", 12.0, 12.1), ("b", 13.0, 13.4), ("c", 14.0, 14.1)]
LEFT = [answered_call(name, 8.0, 10.1, ending=Ending.LEFT) for name in ("a.0", "b.0")]
LEFT_RUNS = [
    completed_run("a.0", "1-1", 9.0, ended_at=10.2, complete=False),
    completed_run("b.0", "1-2", 9.0, ended_at=10.7, complete=False),
    completed_run("c.0", "1-3", 9.0, ended_at=15.0),
]


def recovery_case(
    seconds: float | None, hit: InjectedFault, *runs: EngineRun, **records: Any
) -> Any:
    """Return a fault with its records and runs, and the time of the recovery from it."""
    return seconds, hit, RunRecords(**records), runs


@pytest.mark.parametrize(
    ("seconds", "hit", "records", "runs"),
    [
        # The recovery ends with the first run that the new scheduler has granted.
        # later
        recovery_case(
            2.5,
            injected_fault(FaultKind.SCHEDULER_KILLED, 10.0, epoch=4),
            *(
                completed_run("a.0", "4-9", 10.2),
                completed_run("b.0", "5-1", 12.5),
                completed_run("c.0", "5-2", 13.0),
            ),
        ),
        # A suspended scheduler cannot grant, so the recovery counts from its resumption.
        recovery_case(
            0.5,
            injected_fault(FaultKind.SCHEDULER_STOPPED, 10.0, 13.0),
            *(completed_run("a.0", "1-1", 9.0), completed_run("b.0", "1-2", 13.5)),
        ),
        # The recovery ends with the first answer to a later call, through any ingress.
        # ingress
        recovery_case(
            1.5,
            injected_fault(FaultKind.INGRESS_KILLED, 10.0),
            calls=[
                answered_call("a.0", 9.0, 10.5),
                answered_call("b.0", 10.2, 11.5),
                answered_call("c.0", 10.1, 12.0),
            ],
        ),
        # The recovery ends with the slowest of the next three calls that open an application.
        recovery_case(0.4, injected_fault(FaultKind.PREDICTOR_KILLED, 10.0), opened=OPENED),
        recovery_case(None, injected_fault(FaultKind.PREDICTOR_KILLED, 10.0), opened=OPENED[:-1]),
        # The recovery ends with the next save, not with the next answer.
        recovery_case(
            0.6,
            injected_fault(FaultKind.REDIS_KILLED, 10.0, 12.0),
            samples=[
                *(scheduler_sample(at, saves=5, degraded=True) for at in (11.9, 12.1)),
                *(scheduler_sample(12.4, saves=5), scheduler_sample(12.6, saves=6)),
            ],
        ),
        # The recovery ends with the last run of the callers that disconnected.
        recovery_case(0.7, injected_fault(FaultKind.CALLERS_LEFT, 10.0), *LEFT_RUNS, calls=LEFT),
        recovery_case(
            None,
            injected_fault(FaultKind.CALLERS_LEFT, 10.0),
            *(*LEFT_RUNS, replace(LEFT_RUNS[0], ended_at=None)),
            calls=LEFT,
        ),
        # A run that died with its process has no end in the journal.
        recovery_case(
            0.3,
            injected_fault(FaultKind.CALLERS_LEFT, 10.0),
            completed_run("a.0", "1-1", 2.0, pid=7, ended_at=None, complete=False),
            completed_run("a.0", "1-2", 6.0, pid=8, ended_at=10.3, complete=False),
            calls=LEFT[:1],
            faults=[injected_fault(FaultKind.REPLICA_KILLED, 5.0, pid=7)],
        ),
        # The recovery ends when an inference runs on the replica that was disconnected.
        recovery_case(
            0.8,
            injected_fault(FaultKind.PORT_BLOCKED, 10.0, 13.0, pid=7),
            *(
                completed_run("a.0", "1-1", at, pid=pid)
                for at, pid in ((10.5, 7), (13.1, 8), (13.8, 7))
            ),
        ),
        # No record shows this recovery, so the observation of the fault injector counts.
        recovery_case(4.0, injected_fault(FaultKind.GCS_KILLED, 10.0, 12.0, done_at=16.0)),
        recovery_case(4.0, injected_fault(FaultKind.REDIS_EMPTIED, 10.0, 12.0, done_at=16.0)),
        recovery_case(None, injected_fault(FaultKind.REDEPLOYED, 10.0, 12.0)),
        recovery_case(2.0, injected_fault(FaultKind.CONTROLLER_KILLED, 10.0, done_at=12.0)),
        recovery_case(
            2.0, injected_fault(FaultKind.CONTROLLER_KILLED_IN_DRAIN, 10.0, done_at=12.0)
        ),
        recovery_case(
            3.0,
            injected_fault(FaultKind.ALL_REPLICAS_KILLED, 10.0),
            *(completed_run("a.0", "1-1", 9.0), completed_run("b.0", "1-2", 13.0)),
        ),
        # The recovery ends when all wanted replicas run, without the dead one.
        # lists for a time
        recovery_case(
            4.0,
            injected_fault(FaultKind.LOADING_KILLED, 10.0, target="b"),
            fleet=[
                FleetSample(9.0, 9.0, 1, {"a": "RUNNING"}),
                FleetSample(10.5, 10.5, 2, {"a": "RUNNING", "b": "RUNNING"}),
                FleetSample(11.0, 11.0, 2, {"a": "RUNNING", "c": "STARTING"}),
                FleetSample(14.0, 14.0, 2, {"a": "RUNNING", "c": "RUNNING"}),
            ],
        ),
    ],
)
def test_recovery_time_of_each_kind_of_fault_ends_at_its_defined_record(
    seconds: float | None, hit: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> None:
    """A target in seconds needs a definition of the recovery's end."""
    assert pytest.approx(seconds) == recovery_s(hit, records, runs)


@pytest.mark.parametrize("kind", OF_ONE_REPLICA)
def test_recovery_time_of_a_replica_ends_when_its_leases_are_revoked(kind: FaultKind) -> None:
    """The load of other replicas and the order of the queue do not count."""
    samples = [
        scheduler_sample(9.9, leases={}),
        scheduler_sample(10.1, leases={"r": 2, "s": 1}),
        scheduler_sample(11.5, leases={"r": 0, "s": 3}),
    ]
    hit = injected_fault(kind, 10.0, pid=7, target="r")

    assert 1.5 == recovery_s(hit, RunRecords(samples=samples), [LOST])
    assert recovery_s(hit, RunRecords(samples=samples[:-1]), [LOST]) is None
    assert recovery_s(hit, RunRecords(samples=samples), []) is None
    assert had_no_effect(injected_fault(FaultKind.CALLERS_LEFT, 10.0), RunRecords(), LEFT_RUNS)


@pytest.mark.parametrize("kind", OF_ONE_REPLICA)
def test_recovery_time_of_a_replicas_work_ends_at_the_last_rerun(
    kind: FaultKind,
) -> None:
    """Runs on other replicas, and ended ones, do not count."""
    runs = [
        completed_run("ended.0", "1-1", 8.0, pid=7),
        completed_run("other.0", "1-2", 9.0, pid=8, ended_at=11.0),
        LOST,
        completed_run("b.0", "1-4", 9.5, pid=7, ended_at=10.1, complete=False),
        completed_run("a.0", "1-5", 11.0, pid=8),
        completed_run("b.0", "1-6", 13.0, pid=8),
    ]
    hit = injected_fault(kind, 10.0, pid=7)

    assert 3.0 == rerun_elsewhere_s(hit, RunRecords(), runs)
    assert rerun_elsewhere_s(hit, RunRecords(), runs[:-1]) is None
    assert not had_no_effect(hit, RunRecords(), runs[:-1])
    assert (
        rerun_elsewhere_s(injected_fault(FaultKind.INGRESS_KILLED, 10.0, pid=7), RunRecords(), runs)
        is None
    )


def test_order_check_of_grants_resumes_after_recovery_or_a_time_limit() -> None:
    """Shortly after some faults, the order of grants is not checked."""
    over, not_over = (
        injected_fault(FaultKind.GCS_KILLED, 5.0, 6.0, done_at=8.0),
        injected_fault(FaultKind.SCHEDULER_KILLED, 10.0),
    )
    records = RunRecords(faults=[over, not_over])

    assert [
        FaultWindow(FaultKind.GCS_KILLED, 5.0, 8.0),
        FaultWindow(FaultKind.SCHEDULER_KILLED, 10.0, 10.0 + OVER_AFTER_S),
    ] == fault_windows(records, [])
    assert is_over(over, records, [])
    assert not is_over(not_over, records, [])


CLEAN = ChaosResult(
    "fake",
    Counts(10, 12, (), (), (), (), (), 2),
    OrderMeasure(100, 1, (), 4, ()),
    (
        FaultOutcome(injected_fault(FaultKind.SCHEDULER_KILLED, 13.0), 2.0),
        FaultOutcome(injected_fault(FaultKind.SCHEDULER_KILLED, 33.0), 4.0),
        FaultOutcome(injected_fault(FaultKind.REPLICA_KILLED, 43.0), 6.5, 1.25),
        FaultOutcome(injected_fault(FaultKind.REPLICA_KILLED, 48.0), None, had_no_effect=True),
        FaultOutcome(injected_fault(FaultKind.REDEPLOYED, 50.0), 60.0),
    ),
    (),
    3.0,
    99.0,
)


def test_json_report_has_the_documented_fields() -> None:
    """Other tools read these field names."""
    found = result_document(CLEAN)

    assert (10, 0, 0, 0, 0) == tuple(
        found[name] for name in ("inferences", "lost", "doubled", "wrong", "leaked")
    )
    assert 6.5 == found["max_recovery_s"]
    assert {
        "kind": "scheduler-killed",
        "strike": 0,
        "at_s": 10.0,
        "away_s": 0.0,
        "recovery_s": 2.0,
        "elsewhere_s": None,
        "nothing_to_recover": False,
        "target": "",
    } == found["faults"][0]
    assert {"times": 2, "median_s": 3.0, "max_s": 4.0} == found["recovery_by_kind"][
        FaultKind.SCHEDULER_KILLED
    ]


@pytest.mark.parametrize("name", ["lost", "doubled", "wrong", "cut", "broken"])
def test_chaos_run_fails_for_each_wrong_count_leak_or_order_violation(name: str) -> None:
    """A failed run ends with exit status 1."""
    found: dict[str, Any] = {name: ("a.0",)}
    counts = replace(CLEAN.counts, **found)
    order = replace(CLEAN.order, unexplained=("b before a",), tags_changed=("c: 1 became 2",))
    failed = replace(CLEAN, counts=counts, order=order, leaked=("in_flight: 1 in place of 0",))

    assert () == CLEAN.failures
    assert {
        f"{name}: a.0",
        "leaked: in_flight: 1 in place of 0",
        "out of order: b before a",
        "tag changed: c: 1 became 2",
    } == set(failed.failures)
