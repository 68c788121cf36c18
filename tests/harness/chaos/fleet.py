"""Autoscaled replicas under faults: how many ran, and violations of the autoscaling rules.

- **out of bounds**: Serve wants fewer replicas than the minimum or more than the maximum, or more
than the maximum load, run or are recovered. Draining replicas count as gone.

- **cut by a scale-down**: an incomplete run on a replica that was removed and that no fault had
hit. A run whose caller or ingress has gone is cancelled on purpose.

- **fell without an answer**: fewer replicas are wanted than before while the scheduler is away,
unless it had requested fewer itself.

- **controller held up**: half of the answers of Serve's controller while the scheduler was away, or
over the whole run, were slow although the controller had not been killed. One slow answer is due to
the machine; a controller that waits for the scheduler is slow each time.

- **did not come down**: nothing has waited or run for longer than the delays of a scale-down, and
there are more replicas than the minimum.

- **did not come back**: an inference waits, and for a long time there has been no replica to run
it.

- **wrong loading time**: the scheduler computes with a loading time that no replica can have had.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from justitia_ray.config import AutoscalingSection
from justitia_ray.units import Seconds
from tests.harness.chaos.app import LOADS_S
from tests.harness.chaos.counts import GRACE_S, NOTICED_WITHIN_S
from tests.harness.chaos.plan import FaultKind
from tests.harness.chaos.records import (
    Call,
    Ending,
    EngineRun,
    FleetSample,
    InjectedFault,
    ReplicaLoading,
    RunRecords,
    SchedulerSample,
)

ANSWERS_WITHIN_S: Seconds = 4.0
"""Limit in seconds for the median answer time of Serve's controller. The scheduler may take 5 s to
answer, so a controller that waited for it would exceed the limit.
"""
COMES_DOWN_S: Seconds = 6.0
"""Seconds that a scale-down may take beyond its configured delays: a controller loop, a process
exit, a poll.
"""
COMES_BACK_S: Seconds = 60.0
"""Longest time in seconds without a replica while an inference waits: Serve notices a death, then
starts a process.
"""
_FOUND_AGAIN_S: Seconds = 5.0
"""Seconds after the death of Serve's controller in which its successor counts the replicas."""

_PRESENT = ("STARTING", "UPDATING", "RECOVERING", "RUNNING")
_OF_THE_CONTROLLER = (FaultKind.CONTROLLER_KILLED, FaultKind.CONTROLLER_KILLED_IN_DRAIN)
_AWAY = (FaultKind.SCHEDULER_KILLED, FaultKind.SCHEDULER_STOPPED)
_TAKES_RUNS_WITH_IT = (
    FaultKind.INGRESS_KILLED,
    FaultKind.SCHEDULER_KILLED,
    FaultKind.SCHEDULER_STOPPED,
    FaultKind.ALL_REPLICAS_KILLED,
)
"""Faults that may cancel a run on a healthy replica, because its ingress or its scheduler is gone.
"""


@dataclass(frozen=True, slots=True)
class FleetLimits:
    """Smallest and largest number of autoscaled replicas, and the delays of scaling."""

    minimum: int
    maximum: int
    comes_down_s: Seconds
    """Seconds after which an idle application has the smallest number of replicas: `hold_s` plus
    each delay.
    """
    loads_s: Seconds = LOADS_S
    """Shortest time in seconds that a replica takes to load."""

    @classmethod
    def from_autoscaling(cls, section: AutoscalingSection) -> "FleetLimits":
        delays = section.patience_s
        if section.min_replicas == 0:  # Serve delays the removal of the last replica more.
            to_zero = section.downscale_to_zero_delay_s
            delays += section.patience_s if to_zero is None else to_zero
        return cls(section.min_replicas, section.max_replicas, section.hold_s + delays)


@dataclass(frozen=True, slots=True)
class FleetMeasure:
    """Figures about the autoscaled replicas of one chaos run."""

    fewest: int
    """Smallest number of replicas that ran at the same time."""
    most: int
    loaded: int
    """Number of replicas that finished loading."""
    taken_off: int
    """Number of replicas that Serve removed to scale down."""
    flaws: tuple[str, ...]


def measure_fleet(
    limits: FleetLimits,
    records: RunRecords,
    runs: Sequence[EngineRun],
    loads: Sequence[ReplicaLoading],
) -> FleetMeasure:
    """Return figures about a run's replicas, and violations of the autoscaling rules.

    Args:
        limits: What the application was deployed with.
        records: With samples of the fleet.
        runs: The journal.
        loads: The journal of loadings.
    """
    fleet = records.fleet
    running = [sample.count_in_states("RUNNING") for sample in fleet]
    hit = _killed_replicas(records)
    drained = {
        name for sample in fleet for name, state in sample.states.items() if _is_draining(state)
    }
    return FleetMeasure(
        min(running, default=0),
        max(running, default=0),
        sum(load.ended_at is not None for load in loads),
        len((drained | _vanished_replicas(fleet)) - hit),
        (
            *_counts_out_of_bounds(limits, fleet),
            *_runs_cut_by_scale_down(records, runs, drained - hit),
            *_drops_without_answer(records),
            *_slow_controller_answers(records),
            *_late_scale_downs(limits, records),
            *_late_replacements(records),
            *_wrong_loading_times(limits, records),
        ),
    )


def _is_draining(state: str) -> bool:
    return state == "STOPPING"


def _vanished_replicas(fleet: Sequence[FleetSample]) -> set[str]:
    """Return the replicas that ran once and are gone at the end.

    An idle replica is removed so fast that no sample may show it draining.
    """
    last = fleet[-1].states if fleet else {}
    ran = {name for sample in fleet for name, state in sample.states.items() if state == "RUNNING"}
    return ran - last.keys()


def _killed_replicas(records: RunRecords) -> set[str]:
    dead = {fault.pid for fault in records.faults if fault.pid is not None}
    dead |= {int(pid) for f in records.faults if f.kind in _ALL for pid in f.target.split()}
    return {name for name, pid in records.pids.items() if pid in dead}


_ALL = (FaultKind.ALL_REPLICAS_KILLED,)


def _counts_out_of_bounds(limits: FleetLimits, fleet: Sequence[FleetSample]) -> Iterator[str]:
    for sample in fleet:
        if not limits.minimum <= sample.target <= limits.maximum:
            yield f"out of bounds: {sample.target} replicas were wanted"
        present = sample.count_in_states(*_PRESENT)
        if present > limits.maximum:
            yield f"out of bounds: there were {present} replicas"


def _runs_cut_by_scale_down(
    records: RunRecords, runs: Sequence[EngineRun], drained: set[str]
) -> Iterator[str]:
    names = {records.pids[name]: name for name in drained if name in records.pids}
    for run in runs:
        if run.pid in names and not run.complete and not _caller_had_left(run, records):
            yield f"cut by a scale-down: {run.inference} on {names[run.pid]}"


def _caller_had_left(run: EngineRun, records: RunRecords) -> bool:
    if run.ended_at is None:  # The replica's process ended during the run.
        return False
    ended_at = run.ended_at
    return any(_caller_disconnected(call, run, ended_at) for call in records.calls) or any(
        fault.kind in _TAKES_RUNS_WITH_IT
        and fault.injected_at - GRACE_S <= ended_at <= fault.back_at + NOTICED_WITHIN_S
        for fault in records.faults
    )


def _caller_disconnected(call: Call, run: EngineRun, ended_at: Seconds) -> bool:
    return (
        call.ending is Ending.LEFT
        and (call.inference, call.number) == (run.inference, run.call)
        and abs(call.ended_at - ended_at) <= GRACE_S
    )


def _drops_without_answer(records: RunRecords) -> Iterator[str]:
    for fault in records.faults:
        if fault.kind not in _AWAY:
            continue
        before = [one for one in records.fleet if one.at <= fault.injected_at]
        asked = [
            sample.wanted
            for sample in records.samples
            if fault.injected_at - GRACE_S <= sample.at <= fault.injected_at
            and sample.wanted is not None
        ]
        if not before:
            continue
        least = min([before[-1].target, *asked])
        until = _scheduler_answers_at(fault, records.samples)
        away = [one for one in records.fleet if fault.injected_at < one.asked_at < until]
        if fell := [one.target for one in away if one.target < least]:
            yield f"fell without an answer: from {least} to {min(fell)} replicas wanted"


def _scheduler_answers_at(fault: InjectedFault, samples: Sequence[SchedulerSample]) -> Seconds:
    """Return when the first scheduler after a fault reported how many replicas it wants."""
    return min(
        (one.at for one in samples if one.at >= fault.back_at and one.wanted is not None),
        default=fault.back_at,
    )


def _slow_controller_answers(records: RunRecords) -> Iterator[str]:
    spans = [("over the run", -math.inf, math.inf)]
    for fault in records.faults:
        if fault.kind in _AWAY:
            until = _scheduler_answers_at(fault, records.samples)
            spans.append((f"after {fault.kind}", fault.injected_at, until))
    for when, since, until in spans:
        took_s = [
            one.at - one.asked_at
            for one in records.fleet
            if since <= one.asked_at < until
            and not _controller_was_replaced(one.asked_at, one.at, records)
        ]
        if took_s and (half_s := median(took_s)) > ANSWERS_WITHIN_S:
            yield f"controller held up: half of its answers took {half_s:.1f} s or more, {when}"


def _controller_was_replaced(since: Seconds, until: Seconds, records: RunRecords) -> bool:
    """Return whether Serve's controller was dead or newly started in an interval."""
    return any(
        fault.kind in _OF_THE_CONTROLLER
        and fault.injected_at <= until
        and since <= (fault.done_at or fault.injected_at) + _FOUND_AGAIN_S
        for fault in records.faults
    )


def _late_scale_downs(limits: FleetLimits, records: RunRecords) -> Iterator[str]:
    within_s = limits.comes_down_s + COMES_DOWN_S
    for since, until in _intervals_where(records.samples, lambda sample: sample.idle):
        if until - since <= within_s:
            continue
        late = [
            sample
            for sample in records.fleet
            if since + within_s < sample.at <= until
            and sample.target > limits.minimum
            and not _controller_was_replaced(since, sample.at, records)
        ]
        if late:
            yield (
                f"did not come down: {late[-1].target} replicas were wanted"
                f" {late[-1].at - since:.1f} s after the last inference"
            )


def _late_replacements(records: RunRecords) -> Iterator[str]:
    for since, until in _intervals_where(
        records.samples, lambda s: bool(s.waiting) and not s.leases
    ):
        if until - since > COMES_BACK_S:
            yield f"did not come back: {until - since:.1f} s without a replica"


def _wrong_loading_times(limits: FleetLimits, records: RunRecords) -> Iterator[str]:
    known = [one.load_s for one in records.samples if one.load_s is not None]
    if (least := min(known, default=limits.loads_s)) < limits.loads_s:
        yield f"wrong loading time: {least:.1f} s, and a replica takes {limits.loads_s:g} s"


def _intervals_where(
    samples: Sequence[SchedulerSample], holds: Callable[[SchedulerSample], bool]
) -> Iterator[tuple[Seconds, Seconds]]:
    """Yield begin and end of each interval in which a condition held in every sample."""
    since: Seconds | None = None
    last = 0.0
    for sample in samples:
        if holds(sample):
            since = sample.at if since is None else since
            last = sample.at
        elif since is not None:
            yield since, last
            since = None
    if since is not None:
        yield since, last
