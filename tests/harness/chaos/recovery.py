"""Recovery times of faults, from records, samples and the journal."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from justitia_ray.units import Seconds
from tests.harness.chaos.order import FaultWindow
from tests.harness.chaos.plan import FaultKind
from tests.harness.chaos.records import Ending, EngineRun, InjectedFault, RunRecords

OVER_AFTER_S: Seconds = 30.0
"""Time after which a fault without a visible end counts as over."""
PROBES = 3
"""Number of applications opened after the predictor was killed, to measure their wait."""
_OF_ONE_REPLICA = (FaultKind.REPLICA_KILLED, FaultKind.ENGINE_KILLED, FaultKind.DRAINING_KILLED)
_LEFT_WITHIN_S: Seconds = 1.0
"""Time in which callers that should disconnect have done so."""


def recovered_at(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    """Return when the service recovered from a fault, by the criterion of its kind.

    None if nothing shows a recovery: there was nothing to recover, or it did not happen.
    """
    return _MEASURES[fault.kind](fault, records, runs)


def recovery_s(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    """Return the seconds to recovery, counted from the fault or from its undoing."""
    at = recovered_at(fault, records, runs)
    return None if at is None else max(0.0, at - fault.back_at)


def is_over(fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]) -> bool:
    """Return whether the service has recovered from a fault, or had nothing to recover from."""
    return had_no_effect(fault, records, runs) or recovered_at(fault, records, runs) is not None


def elsewhere_s(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    """Return the seconds until the last run of a dead replica or engine began elsewhere.

    An inference goes back to the head of its application and no further, so it waits for its turn.
    None if an inference has not run again, or there was none.
    """
    if fault.kind not in _OF_ONE_REPLICA:
        return None
    at = _run_elsewhere(fault, records, runs)
    return None if at is None else at - fault.injected_at


def fault_windows(records: RunRecords, runs: Sequence[EngineRun]) -> list[FaultWindow]:
    """Return each fault with its recovery; a fault without a visible end gets a fixed time."""
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
    """Return whether a fault hit a process without runs, or no process: nothing is to recover."""
    if fault.kind in _OF_ONE_REPLICA:
        return not _lost_runs(fault, records, runs)
    if fault.kind is FaultKind.CALLERS_LEFT:
        return not _left_runs(fault, records, runs)
    return False


def _new_epoch_runs(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    return _first(run.began_at for run in runs if run.epoch > fault.epoch and _after(run, fault))


def _next_run(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    return _first(run.began_at for run in runs if run.began_at >= fault.back_at)


def _next_run_there(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    return _next_run(fault, records, [run for run in runs if run.pid == fault.pid])


def _taken_back(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    """Return the first sample in which the scheduler has no lease on the replica."""
    if had_no_effect(fault, records, runs):
        return None
    return _first(
        sample.at
        for sample in records.samples
        if sample.at >= fault.injected_at and sample.ready and not sample.leases.get(fault.target)
    )


def _run_elsewhere(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    """Return when the last of the process's runs began again, in a new run or call."""
    begun = []
    for lost in _lost_runs(fault, records, runs):
        again = _first(
            run.began_at
            for run in runs
            if run.inference == lost.inference
            and run.began_at > fault.injected_at
            and run.pid != fault.pid
        )
        if again is not None:
            begun.append(again)
        elif not _has_left(lost, fault, records):
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


def _has_left(run: EngineRun, fault: InjectedFault, records: RunRecords) -> bool:
    return any(
        call.ending is Ending.LEFT and call.ended_at >= fault.injected_at
        for call in records.calls
        if (call.inference, call.number) == (run.inference, run.call)
    )


def _next_answer(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    return _first(
        call.ended_at
        for call in records.calls
        if call.ending is Ending.ANSWERED and call.called_at >= fault.injected_at
    )


def _next_opening(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    """Return the time of the fault plus the slowest of the next openings."""
    after = sorted((asked, done) for _, asked, done in records.opened if asked >= fault.injected_at)
    took = [done - asked for asked, done in after[:PROBES]]
    return fault.back_at + max(took) if len(took) == PROBES else None


def _next_save(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    """Return the first sample after which a later save had succeeded and no trouble was left."""
    since = [sample for sample in records.samples if sample.at >= fault.back_at]
    for earlier, sample in pairwise(since):
        saved = sample.saves > since[0].saves or sample.epoch > earlier.epoch
        if saved and not sample.degraded and sample.ready:
            return sample.at
    return None


def _runs_of_those_who_left(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    ends = [run.ended_at for run in _left_runs(fault, records, runs)]
    known = [end for end in ends if end is not None]
    return max(known, default=None) if len(known) == len(ends) else None


def _left_runs(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> list[EngineRun]:
    """Return the runs under way whose callers disconnected at this fault."""
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


def _seen_by_the_injector(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    return fault.done_at


def _as_many_as_wanted(
    fault: InjectedFault, records: RunRecords, runs: Sequence[EngineRun]
) -> Seconds | None:
    return _first(
        sample.at
        for sample in records.fleet
        if sample.at > fault.injected_at
        and fault.target not in sample.states
        and sample.count("RUNNING") == sample.target
    )


def _after(run: EngineRun, fault: InjectedFault) -> bool:
    return run.began_at >= fault.injected_at


def _was_running(run: EngineRun, at: Seconds, records: RunRecords) -> bool:
    """Return whether a run was under way at an instant; a run of a killed process has no end."""
    if run.ended_at is None and any(
        fault.pid == run.pid and fault.injected_at < at for fault in records.faults
    ):
        return False
    return run.began_at <= at and (run.ended_at is None or run.ended_at >= at)


def _first(instants: Iterable[Seconds]) -> Seconds | None:
    return min(instants, default=None)


_Measure = Callable[[InjectedFault, RunRecords, Sequence[EngineRun]], Seconds | None]
_MEASURES: Mapping[FaultKind, _Measure] = {
    FaultKind.SCHEDULER_KILLED: _new_epoch_runs,
    FaultKind.SCHEDULER_STOPPED: _next_run,
    FaultKind.REPLICA_KILLED: _taken_back,
    FaultKind.ENGINE_KILLED: _taken_back,
    FaultKind.ENGINE_STOPPED: _next_run_there,
    FaultKind.INGRESS_KILLED: _next_answer,
    FaultKind.PREDICTOR_KILLED: _next_opening,
    FaultKind.REDIS_KILLED: _next_save,
    FaultKind.REDIS_STOPPED: _next_save,
    FaultKind.REDIS_READ_ONLY: _next_save,
    FaultKind.REDIS_EMPTIED: _seen_by_the_injector,
    FaultKind.CALLERS_LEFT: _runs_of_those_who_left,
    FaultKind.GCS_KILLED: _seen_by_the_injector,
    FaultKind.SCALED: _seen_by_the_injector,
    FaultKind.REDEPLOYED: _seen_by_the_injector,
    FaultKind.REPLICA_CUT: _next_run_there,
    FaultKind.INGRESS_CUT: _next_answer,
    FaultKind.SCHEDULER_CUT: _next_run,
    FaultKind.REPLICA_BUSY: _next_run_there,
    FaultKind.REPLICA_HALF_OPEN: _next_run_there,
    FaultKind.INGRESS_HALF_OPEN: _next_answer,
    FaultKind.PORT_BLOCKED: _next_run_there,
    FaultKind.WRONG_SECRETS: _next_answer,
    FaultKind.SLOW_READER: _next_answer,
    FaultKind.ACCOUNTS_KILLED: _seen_by_the_injector,
    FaultKind.POISON: _seen_by_the_injector,
    FaultKind.LOADING_KILLED: _as_many_as_wanted,
    FaultKind.DRAINING_KILLED: _taken_back,
    FaultKind.ALL_REPLICAS_KILLED: _next_run,
    FaultKind.CONTROLLER_KILLED: _seen_by_the_injector,
    FaultKind.CONTROLLER_KILLED_IN_DRAIN: _seen_by_the_injector,
}
