"""How long the service took to come back from each fault, from notes, samples and the journal."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from justitia_ray.chaos.journal import Run
from justitia_ray.chaos.kinds import Kind
from justitia_ray.chaos.notes import Ending, Hit, Notes
from justitia_ray.chaos.order import Window
from justitia_ray.units import Seconds

OVER_AFTER_S: Seconds = 30.0
"""A fault whose end nothing shows is over by then."""
KNOCKS = 3
"""Applications that are opened after the predictor was killed, to see how long they wait."""
_LEFT_WITHIN_S: Seconds = 1.0
"""Callers that are told to leave have left by then."""


def recovered_at(hit: Hit, notes: Notes, runs: Sequence[Run]) -> Seconds | None:
    """Return when the service was back from a fault, as `kinds.ABOUT` says of its kind.

    None if nothing shows it: there was nothing to recover, or it did not come back.
    """
    return _MEASURES[hit.kind](hit, notes, runs)


def recovery_s(hit: Hit, notes: Notes, runs: Sequence[Run]) -> Seconds | None:
    """Return how long that was: from the strike, or from when what was stopped went on."""
    at = recovered_at(hit, notes, runs)
    return None if at is None else max(0.0, at - hit.back_at)


def is_over(hit: Hit, notes: Notes, runs: Sequence[Run]) -> bool:
    """Return whether the service is back from a fault, or had nothing to come back from."""
    return hit_nothing(hit, notes, runs) or recovered_at(hit, notes, runs) is not None


def elsewhere_s(hit: Hit, notes: Notes, runs: Sequence[Run]) -> Seconds | None:
    """Return how long it was until the last that a dead replica or engine ran began elsewhere.

    That takes as long as its turn takes to come: it goes back to the head of its application, and
    no further. None if some of it has not, or there was nothing.
    """
    if hit.kind not in (Kind.REPLICA_KILLED, Kind.ENGINE_KILLED):
        return None
    at = _run_elsewhere(hit, notes, runs)
    return None if at is None else at - hit.struck_at


def windows(notes: Notes, runs: Sequence[Run]) -> list[Window]:
    """Return each fault with its recovery; one that nothing shows the end of is given its time."""
    found = []
    for hit in notes.hits:
        took = recovery_s(hit, notes, runs)
        found.append(
            Window(hit.kind, hit.struck_at, hit.back_at + (OVER_AFTER_S if took is None else took))
        )
    return found


def hit_nothing(hit: Hit, notes: Notes, runs: Sequence[Run]) -> bool:
    """Return whether a fault hit a process that ran nothing, or nobody: nothing is to come back."""
    if hit.kind in (Kind.REPLICA_KILLED, Kind.ENGINE_KILLED):
        return not _lost_runs(hit, notes, runs)
    if hit.kind is Kind.CALLERS_LEFT:
        return not _left_runs(hit, notes, runs)
    return False


def _new_epoch_runs(hit: Hit, notes: Notes, runs: Sequence[Run]) -> Seconds | None:
    return _first(run.began_at for run in runs if run.epoch > hit.epoch and _after(run, hit))


def _next_run(hit: Hit, notes: Notes, runs: Sequence[Run]) -> Seconds | None:
    return _first(run.began_at for run in runs if run.began_at >= hit.back_at)


def _taken_back(hit: Hit, notes: Notes, runs: Sequence[Run]) -> Seconds | None:
    """Return the first sample after which the scheduler books no lease on it any more."""
    if hit_nothing(hit, notes, runs):
        return None
    return _first(
        sample.at
        for sample in notes.samples
        if sample.at >= hit.struck_at and sample.ready and not sample.leases.get(hit.target)
    )


def _run_elsewhere(hit: Hit, notes: Notes, runs: Sequence[Run]) -> Seconds | None:
    """Return when the last of what the process ran began again, in a run or a call that was new."""
    begun = []
    for lost in _lost_runs(hit, notes, runs):
        again = _first(
            run.began_at
            for run in runs
            if run.inference == lost.inference
            and run.began_at > hit.struck_at
            and run.pid != hit.pid
        )
        if again is not None:
            begun.append(again)
        elif not _has_left(lost, hit, notes):
            return None
    return max(begun, default=None)


def _lost_runs(hit: Hit, notes: Notes, runs: Sequence[Run]) -> list[Run]:
    return [
        run
        for run in runs
        if run.pid == hit.pid and not run.complete and _was_running(run, hit.struck_at, notes)
    ]


def _has_left(run: Run, hit: Hit, notes: Notes) -> bool:
    return any(
        call.ending is Ending.LEFT and call.ended_at >= hit.struck_at
        for call in notes.calls
        if (call.inference, call.number) == (run.inference, run.call)
    )


def _next_answer(hit: Hit, notes: Notes, runs: Sequence[Run]) -> Seconds | None:
    return _first(
        call.ended_at
        for call in notes.calls
        if call.ending is Ending.ANSWERED and call.called_at >= hit.struck_at
    )


def _next_opening(hit: Hit, notes: Notes, runs: Sequence[Run]) -> Seconds | None:
    """Return when, from the strike on, as long had passed as the slowest of the next took."""
    after = sorted((asked, done) for _, asked, done in notes.opened if asked >= hit.struck_at)
    took = [done - asked for asked, done in after[:KNOCKS]]
    return hit.back_at + max(took) if len(took) == KNOCKS else None


def _next_save(hit: Hit, notes: Notes, runs: Sequence[Run]) -> Seconds | None:
    """Return the first sample after which another save had succeeded and no trouble was left."""
    since = [sample for sample in notes.samples if sample.at >= hit.back_at]
    for earlier, sample in pairwise(since):
        saved = sample.saves > since[0].saves or sample.epoch > earlier.epoch
        if saved and not sample.degraded and sample.ready:
            return sample.at
    return None


def _runs_of_those_who_left(hit: Hit, notes: Notes, runs: Sequence[Run]) -> Seconds | None:
    ends = [run.ended_at for run in _left_runs(hit, notes, runs)]
    known = [end for end in ends if end is not None]
    return max(known, default=None) if len(known) == len(ends) else None


def _left_runs(hit: Hit, notes: Notes, runs: Sequence[Run]) -> list[Run]:
    """Return the runs under way of the calls that were left at this strike."""
    left = {
        (call.inference, call.number)
        for call in notes.calls
        if call.ending is Ending.LEFT and abs(call.ended_at - hit.struck_at) < _LEFT_WITHIN_S
    }
    return [
        run
        for run in runs
        if (run.inference, run.call) in left and _was_running(run, hit.struck_at, notes)
    ]


def _seen_by_the_striker(hit: Hit, notes: Notes, runs: Sequence[Run]) -> Seconds | None:
    return hit.done_at


def _after(run: Run, hit: Hit) -> bool:
    return run.began_at >= hit.struck_at


def _was_running(run: Run, at: Seconds, notes: Notes) -> bool:
    """Return whether it ran at that instant; a run of a process that was killed has no end."""
    if run.ended_at is None and any(
        hit.pid == run.pid and hit.struck_at < at for hit in notes.hits
    ):
        return False
    return run.began_at <= at and (run.ended_at is None or run.ended_at >= at)


def _first(instants: Iterable[Seconds]) -> Seconds | None:
    return min(instants, default=None)


_Measure = Callable[[Hit, Notes, Sequence[Run]], Seconds | None]
_MEASURES: Mapping[Kind, _Measure] = {
    Kind.SCHEDULER_KILLED: _new_epoch_runs,
    Kind.SCHEDULER_STOPPED: _next_run,
    Kind.REPLICA_KILLED: _taken_back,
    Kind.ENGINE_KILLED: _taken_back,
    Kind.INGRESS_KILLED: _next_answer,
    Kind.PREDICTOR_KILLED: _next_opening,
    Kind.REDIS_KILLED: _next_save,
    Kind.REDIS_STOPPED: _next_save,
    Kind.REDIS_EMPTIED: _seen_by_the_striker,
    Kind.CALLERS_LEFT: _runs_of_those_who_left,
    Kind.GCS_KILLED: _seen_by_the_striker,
    Kind.SCALED: _seen_by_the_striker,
    Kind.REDEPLOYED: _seen_by_the_striker,
}
