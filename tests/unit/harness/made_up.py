"""Calls, runs, faults and samples for tests, with defaults for irrelevant fields."""

from typing import Any

from tests.harness.answers import Answer
from tests.harness.chaos.load import PlannedApplication
from tests.harness.chaos.plan import FaultKind
from tests.harness.chaos.records import Call, Ending, EngineRun, InjectedFault, SchedulerSample
from tests.harness.planned import PlannedInference

RIGHT = Answer(("w1 w2 ",), ("length",), 3, 2)


def answered_call(name: str, at: float = 0.0, ended_at: float | None = None, **others: Any) -> Call:
    """Return a call that was answered correctly, by default a second after it was made."""
    application_id = name.partition(".")[0]
    end = at + 1.0 if ended_at is None else ended_at
    fields: dict[str, Any] = {"number": 1, "ending": Ending.ANSWERED} | others
    if fields["ending"] is Ending.ANSWERED:
        fields = {"answer": RIGHT} | fields
    return Call(name, application_id, called_at=at, ended_at=end, **fields)


def completed_run(name: str, lease: str, at: float = 0.0, **others: Any) -> EngineRun:
    """Return a completed run of an inference's first call, which takes one second."""
    fields = {"call": 1, "priority": 0, "pid": 1, "ended_at": at + 1.0, "complete": True} | others
    return EngineRun(name, lease_id=lease, began_at=at, **fields)


def injected_fault(
    kind: FaultKind, at: float, back_at: float | None = None, **others: Any
) -> InjectedFault:
    return InjectedFault(kind, 0, at, at if back_at is None else back_at, **others)


def scheduler_sample(at: float, **others: Any) -> SchedulerSample:
    """Return a sample of an idle scheduler in its first epoch."""
    fields: dict[str, Any] = {
        "epoch": 1,
        "ready": True,
        "degraded": False,
        "saves": 0,
        "leases": {},
    }
    return SchedulerSample(at, **(fields | others))


def planned_application(name: str, inferences: int = 1) -> PlannedApplication:
    stage = tuple(
        PlannedInference(f"{name}.{i}", f"{name}.{i} a b", 2, stream=False)
        for i in range(inferences)
    )
    return PlannedApplication(name, "fan-out", "t", 1.0, (stage,), 0, 0.0, False)
