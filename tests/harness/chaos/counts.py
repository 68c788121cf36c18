"""Counts of lost, doubled, wrong, cut and broken calls, from the callers' records and journal.

- **lost**: an inference whose caller has no answer at the end.

- **doubled**: an inference that was answered more than once; or a call with two complete runs,
unless the first answer could not be delivered: its replica or an ingress was killed within the
grace time afterwards, or lost its connections then, or was suspended and had no grace time to
notice that they were given up; or an inference that the scheduler counts as ended more often than
its caller called and its process was lost (`ended` of an application at its end is the number of
its calls, whatever their outcome).

- **wrong**: an answer that differs from the one that the prompt determines, in text, usage or ends,
or a stream with a flaw (usage twice, a chunk after the end, another id).

- **cut**: a call whose stream had begun and did not continue although no ingress died.

- **broken**: a call that failed in another way although no ingress died. Its caller called again,
which the service promises to be unnecessary.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from justitia_ray.units import Seconds
from tests.harness.answers import Answer, describe_difference
from tests.harness.chaos.load import PlannedApplication
from tests.harness.chaos.plan import FaultKind
from tests.harness.chaos.records import Call, Ending, EngineRun, InjectedFault, RunRecords

GRACE_S: Seconds = 2.0
"""Grace time after a process died: for this long, calls may still be sent to it, and its runs may
still complete.
"""
NOTICED_WITHIN_S: Seconds = 30.0
"""Seconds within which Serve's proxy notices that an ingress process died."""
_DIED_UNDER_IT = ("ConnectionError", "500: Internal Server Error")
"""Error texts that callers may get when their ingress dies. Errors of the service itself are never
excused.
"""

_BREAKS_RUNS_THERE = frozenset(
    {
        FaultKind.REPLICA_KILLED,
        FaultKind.ENGINE_KILLED,
        FaultKind.ENGINE_STOPPED,
        FaultKind.REPLICA_CUT,
        FaultKind.REPLICA_HALF_OPEN,
        FaultKind.PORT_BLOCKED,
        FaultKind.DRAINING_KILLED,
    }
)
"""Kinds of faults that can break runs on one replica only."""
_BREAKS_RUNS_ANYWHERE = frozenset(
    {
        FaultKind.INGRESS_KILLED,
        FaultKind.INGRESS_CUT,
        FaultKind.INGRESS_HALF_OPEN,
        FaultKind.ALL_REPLICAS_KILLED,
    }
)
"""Kinds of faults that can break runs on any replica."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of a chaos run, with a description of each failure."""

    inferences: int
    calls: int
    lost: tuple[str, ...]
    doubled: tuple[str, ...]
    wrong: tuple[str, ...]
    cut: tuple[str, ...]
    broken: tuple[str, ...]
    excused: int


def count_calls(
    load: Sequence[PlannedApplication],
    records: RunRecords,
    runs: Sequence[EngineRun],
    expected: Mapping[str, Answer],
) -> Counts:
    """Count the inferences, calls and failures of a chaos run.

    Args:
        load: What was to be called.
        records: What the callers noted.
        runs: The journal.
        expected: The right answer to each inference, by its name.
    """
    names = [inference.name for planned in load for inference in planned.inferences]
    answered = Counter(call.inference for call in records.calls if call.ending is Ending.ANSWERED)
    failed = [call for call in records.calls if call.ending in (Ending.BROKEN, Ending.CUT)]
    blamed = [call for call in failed if not is_excused_by_dead_ingress(records.faults, call)]
    return Counts(
        inferences=len(names),
        calls=len(records.calls),
        lost=tuple(_describe_last_ending(name, records) for name in names if not answered[name]),
        doubled=(
            *(f"{name}: answered {times} times" for name, times in answered.items() if times > 1),
            *_calls_run_twice(records, runs),
            *_ended_more_than_called(load, records),
        ),
        wrong=tuple(_wrong_answers(records, expected)),
        cut=tuple(_describe_call(call) for call in blamed if call.ending is Ending.CUT),
        broken=tuple(_describe_call(call) for call in blamed if call.ending is Ending.BROKEN),
        excused=len(failed) - len(blamed),
    )


def _describe_last_ending(name: str, records: RunRecords) -> str:
    """Return the outcome of the last call for an inference."""
    ends = [_describe_call(call) for call in records.calls if call.inference == name]
    return ends[-1] if ends else f"{name}: never called"


def is_excused_by_dead_ingress(faults: Sequence[InjectedFault], call: Call) -> bool:
    """Return whether a failed call is excused, because its ingress died."""
    return any(
        fault.kind is FaultKind.INGRESS_KILLED
        and call.called_at <= fault.injected_at + GRACE_S
        and fault.injected_at <= call.ended_at <= fault.injected_at + NOTICED_WITHIN_S
        and any(words in call.detail for words in _DIED_UNDER_IT)
        for fault in faults
    )


def _calls_run_twice(records: RunRecords, runs: Sequence[EngineRun]) -> list[str]:
    complete: dict[tuple[str, int], list[EngineRun]] = defaultdict(list)
    for run in runs:
        if run.complete:
            complete[run.inference, run.call].append(run)
    found = []
    for (name, number), made in complete.items():
        unread = sum(1 for run in made[:-1] if _answer_was_lost(records.faults, run))
        if len(made) - unread > 1:
            found.append(f"{name}: call {number} was run to its end {len(made)} times")
    return found


def _answer_was_lost(faults: Sequence[InjectedFault], run: EngineRun) -> bool:
    ended_at = run.ended_at
    return ended_at is not None and any(
        fault.injected_at - GRACE_S <= ended_at <= fault.back_at + GRACE_S
        for fault in faults
        if fault.kind in _BREAKS_RUNS_ANYWHERE
        or (fault.kind in _BREAKS_RUNS_THERE and fault.pid == run.pid)
    )


def _ended_more_than_called(load: Sequence[PlannedApplication], records: RunRecords) -> list[str]:
    calls = Counter(call.application_id for call in records.calls)
    return [
        f"{planned.application_id}: the scheduler ended {records.ended[planned.application_id]}"
        f" inferences of {calls[planned.application_id]} calls"
        for planned in load
        if records.ended.get(planned.application_id, 0) > calls[planned.application_id]
    ]


def _wrong_answers(records: RunRecords, expected: Mapping[str, Answer]) -> list[str]:
    found = []
    for call in records.calls:
        if call.ending is not Ending.ANSWERED or call.answer is None:
            continue
        flaws = list(call.flaws)
        if differs := describe_difference(expected[call.inference], call.answer):
            flaws.append(differs)
        found += [f"{call.inference}: {flaw}" for flaw in flaws]
    return found


def _describe_call(call: Call) -> str:
    return f"{call.inference}: call {call.number}: {call.detail}"
