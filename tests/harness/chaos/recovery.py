"""Recovery times of faults, from the records, samples and journal of a chaos run."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from justitia_ray.units import Seconds
from tests.harness.chaos.order import FaultWindow
from tests.harness.chaos.plan import FaultKind
from tests.harness.chaos.records import Ending, EngineRun, InjectedFault, RunRecords

OVER_AFTER_S: Seconds = 30.0
"""Seconds after which a fault without a visible end counts as over."""
PROBES = 3
"""Number of applications opened after the predictor was killed, to time the openings."""
_OF_ONE_REPLICA = (FaultKind.REPLICA_KILLED, FaultKind.ENGINE_KILLED, FaultKind.DRAINING_KILLED)
_LEFT_WITHIN_S: Seconds = 1.0
"""Seconds within which callers that should disconnect have done so."""


def recovery_time(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    """Return when the service recovered from a fault, by the criterion of the fault's kind.

    None if nothing shows a recovery: there was nothing to recover, or it did not happen.
    """
    return _MEASURES[fault.kind](fault, records, runs)


def recovery_s(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    """Return the seconds from a fault, or from the end of a lasting fault, to the recovery."""
    at = recovery_time(fault, records, runs)
    return None if at is None else max(0.0, at - fault.back_at)


def is_over(fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]) -> bool:
    """Return whether the service has recovered from a fault, or had nothing to recover from."""
    return had_no_effect(fault, records, runs) or recovery_time(fault, records, runs) is not None


def rerun_elsewhere_s(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    """Return the seconds until all runs of a dead replica or engine had begun on another.

    An inference goes back to the head of its application and no further, so it waits for its turn.
    None if an inference has not run again, or there was none.
    """
    if fault.kind not in _OF_ONE_REPLICA:
        return None
    at = _reruns_begun_at(fault, records, runs)
    return None if at is None else at - fault.injected_at


def fault_windows(records: RunRecords, runs: Sequence[EngineRun]) -> list[FaultWindow]:
    """Return the interval of each fault; a fault without a visible end gets a fixed duration."""
    found = []
    for fault in records.faults:
        took = recovery_s(fault, records, runs)
        found.append(
            FaultWindow(
                fault.kind,
                fault.injected_at,
                fault.back_at + (OVER_AFTER_S if took is None else took),
            )
        )
    return found


def had_no_effect(fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]) -> bool:
    """Return whether a fault hit no run, so that there is nothing to recover from."""
    if fault.kind in _OF_ONE_REPLICA:
        return not _lost_runs(fault, records, runs)
    if fault.kind is FaultKind.CALLERS_LEFT:
        return not _abandoned_runs(fault, records, runs)
    return False


def _first_run_in_new_epoch(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    return _earliest_instant(
        run.began_at for run in runs if run.epoch > fault.epoch and _begins_after_fault(run, fault)
    )


def _next_run_begin(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    return _earliest_instant(run.began_at for run in runs if run.began_at >= fault.back_at)


def _next_run_on_victim(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    return _next_run_begin(fault, records, [run for run in runs if run.pid == fault.pid])


def _leases_returned_at(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    """Return the first sample in which the scheduler has no lease on the dead replica."""
    if had_no_effect(fault, records, runs):
        return None
    return _earliest_instant(
        sample.at
        for sample in records.samples
        if sample.at >= fault.injected_at and sample.ready and not sample.leases.get(fault.target)
    )


def _reruns_begun_at(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    """Return when the last run of a dead process began again, in a new run or call."""
    begun = []
    for lost in _lost_runs(fault, records, runs):
        again = _earliest_instant(
            run.began_at
            for run in runs
            if run.inference == lost.inference
            and run.began_at > fault.injected_at
            and run.pid != fault.pid
        )
        if again is not None:
            begun.append(again)
        elif not _caller_disconnected(lost, fault, records):
            return None
    return max(begun, default=None)


def _lost_runs(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> list[EngineRun]:
    return [
        run
        for run in runs
        if run.pid == fault.pid
        and not run.complete
        and _was_running(run, fault.injected_at, records)
    ]


def _caller_disconnected(run: EngineRun, fault: InjectedFault, records: RunRecords) -> bool:
    return any(
        call.ending is Ending.LEFT and call.ended_at >= fault.injected_at
        for call in records.calls
        if (call.inference, call.number) == (run.inference, run.call)
    )


def _next_answer_at(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    return _earliest_instant(
        call.ended_at
        for call in records.calls
        if call.ending is Ending.ANSWERED and call.called_at >= fault.injected_at
    )


def _slowest_next_opening(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    """Return the time of the fault plus the slowest of the next openings of applications."""
    after = sorted((asked, done) for _, asked, done in records.opened if asked >= fault.injected_at)
    took = [done - asked for asked, done in after[:PROBES]]
    return fault.back_at + max(took) if len(took) == PROBES else None


def _next_save_at(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    """Return the first sample after which a save to Redis had succeeded without trouble."""
    since = [sample for sample in records.samples if sample.at >= fault.back_at]
    for earlier, sample in pairwise(since):
        saved = sample.saves > since[0].saves or sample.epoch > earlier.epoch
        if saved and not sample.degraded and sample.ready:
            return sample.at
    return None


def _abandoned_runs_end(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    ends = [run.ended_at for run in _abandoned_runs(fault, records, runs)]
    known = [end for end in ends if end is not None]
    return max(known, default=None) if len(known) == len(ends) else None


def _abandoned_runs(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> list[EngineRun]:
    """Return the unfinished runs whose callers disconnected at this fault."""
    left = {
        (call.inference, call.number)
        for call in records.calls
        if call.ending is Ending.LEFT and abs(call.ended_at - fault.injected_at) < _LEFT_WITHIN_S
    }
    return [
        run
        for run in runs
        if (run.inference, run.call) in left and _was_running(run, fault.injected_at, records)
    ]


def _injector_saw_recovery_at(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    return fault.done_at


def _replica_count_restored_at(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    return _earliest_instant(
        sample.at
        for sample in records.fleet
        if sample.at > fault.injected_at
        and fault.target not in sample.states
        and sample.count_in_states("RUNNING") == sample.target
    )


def _begins_after_fault(run: EngineRun, fault: InjectedFault) -> bool:
    return run.began_at >= fault.injected_at


def _was_running(run: EngineRun, at: Seconds, records: RunRecords) -> bool:
    """Return whether a run was unfinished at an instant; a run of a killed process has no end."""
    if run.ended_at is None and any(
        fault.pid == run.pid and fault.injected_at < at for fault in records.faults
    ):
        return False
    return run.began_at <= at and (run.ended_at is None or run.ended_at >= at)


def _earliest_instant(instants: Iterable[Seconds]) -> Seconds | None:
    return min(instants, default=None)


_Measure = Callable[[InjectedFault, RunRecords, Sequence[EngineRun]], Seconds | None]
_MEASURES: Mapping[FaultKind, _Measure] = {
    FaultKind.SCHEDULER_KILLED: _first_run_in_new_epoch,
    FaultKind.SCHEDULER_STOPPED: _next_run_begin,
    FaultKind.REPLICA_KILLED: _leases_returned_at,
    FaultKind.ENGINE_KILLED: _leases_returned_at,
    FaultKind.ENGINE_STOPPED: _next_run_on_victim,
    FaultKind.INGRESS_KILLED: _next_answer_at,
    FaultKind.PREDICTOR_KILLED: _slowest_next_opening,
    FaultKind.REDIS_KILLED: _next_save_at,
    FaultKind.REDIS_STOPPED: _next_save_at,
    FaultKind.REDIS_READ_ONLY: _next_save_at,
    FaultKind.REDIS_EMPTIED: _injector_saw_recovery_at,
    FaultKind.CALLERS_LEFT: _abandoned_runs_end,
    FaultKind.GCS_KILLED: _injector_saw_recovery_at,
    FaultKind.SCALED: _injector_saw_recovery_at,
    FaultKind.REDEPLOYED: _injector_saw_recovery_at,
    FaultKind.REPLICA_CUT: _next_run_on_victim,
    FaultKind.INGRESS_CUT: _next_answer_at,
    FaultKind.SCHEDULER_CUT: _next_run_begin,
    FaultKind.REPLICA_BUSY: _next_run_on_victim,
    FaultKind.REPLICA_HALF_OPEN: _next_run_on_victim,
    FaultKind.INGRESS_HALF_OPEN: _next_answer_at,
    FaultKind.PORT_BLOCKED: _next_run_on_victim,
    FaultKind.WRONG_SECRETS: _next_answer_at,
    FaultKind.SLOW_READER: _next_answer_at,
    FaultKind.ACCOUNTS_KILLED: _injector_saw_recovery_at,
    FaultKind.POISON: _injector_saw_recovery_at,
    FaultKind.LOADING_KILLED: _replica_count_restored_at,
    FaultKind.DRAINING_KILLED: _leases_returned_at,
    FaultKind.ALL_REPLICAS_KILLED: _next_run_begin,
    FaultKind.CONTROLLER_KILLED: _injector_saw_recovery_at,
    FaultKind.CONTROLLER_KILLED_IN_DRAIN: _injector_saw_recovery_at,
}
