"""Lost, doubled, wrong, cut, broken: counted from the callers' notes and the replicas' journal.

- **lost**: an inference whose caller has no answer in the end.
- **doubled**: an inference that was answered more than once; or one call of which two runs were
  made to their end, unless the first one's answer could reach nobody, because the process that
  carried it (replica or ingress) was struck within the grace time after; or an inference that the
  scheduler counts as ended more often than its caller called and its process was lost: `ended` of
  an application, when nothing of it is left, is the number of its calls, whatever became of them.
- **wrong**: an answer that differs from the one that the prompt decides, in text, usage or ends, or
  a stream with a flaw (usage twice, a chunk after the end, another id).
- **cut**: a call whose stream had begun and did not go on, though no ingress died under it.
- **broken**: a call that failed in another way though no ingress died under it. Its caller called
  again; but the service promises that it need not.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from justitia_ray.chaos.answers import Answer, difference
from justitia_ray.chaos.journal import Run
from justitia_ray.chaos.kinds import Kind
from justitia_ray.chaos.load import PlannedApplication
from justitia_ray.chaos.notes import Call, Ending, Hit, Notes
from justitia_ray.units import Seconds

GRACE_S: Seconds = 2.0
"""A call made so soon after a process has died may still be sent to it."""
NOTICED_WITHIN_S: Seconds = 30.0
"""Serve's proxy may notice so late that the ingress behind a call is dead, on busy cores."""
_DIED_UNDER_IT = ("ConnectionError", "500: Internal Server Error")
"""What a caller is told then, by its connection or by Serve; an error of the service's own, which
says what is wrong, is never excused."""

_BREAKS_RUNS = frozenset({Kind.REPLICA_KILLED, Kind.ENGINE_KILLED, Kind.INGRESS_KILLED})


@dataclass(frozen=True, slots=True)
class Counts:
    """What was counted; in words what is no number."""

    inferences: int
    calls: int
    lost: tuple[str, ...]
    doubled: tuple[str, ...]
    wrong: tuple[str, ...]
    cut: tuple[str, ...]
    broken: tuple[str, ...]
    excused: int
    """Calls that an ingress took with it."""


def count(
    load: Sequence[PlannedApplication],
    notes: Notes,
    runs: Sequence[Run],
    expected: Mapping[str, Answer],
) -> Counts:
    """Return the counts of a run.

    Args:
        load: What was to be called.
        notes: What the callers noted.
        runs: The journal.
        expected: The right answer to each inference, by its name.
    """
    names = [inference.name for planned in load for inference in planned.inferences]
    answered = Counter(call.inference for call in notes.calls if call.ending is Ending.ANSWERED)
    failed = [call for call in notes.calls if call.ending in (Ending.BROKEN, Ending.CUT)]
    blamed = [call for call in failed if not _took_with_it(notes.hits, call)]
    return Counts(
        inferences=len(names),
        calls=len(notes.calls),
        lost=tuple(_last_words(name, notes) for name in names if not answered[name]),
        doubled=(
            *(f"{name}: answered {times} times" for name, times in answered.items() if times > 1),
            *_run_twice(notes, runs),
            *_ended_too_often(load, notes),
        ),
        wrong=tuple(_wrong(notes, expected)),
        cut=tuple(_told(call) for call in blamed if call.ending is Ending.CUT),
        broken=tuple(_told(call) for call in blamed if call.ending is Ending.BROKEN),
        excused=len(failed) - len(blamed),
    )


def _last_words(name: str, notes: Notes) -> str:
    """Return what the last call for an inference ended with."""
    ends = [_told(call) for call in notes.calls if call.inference == name]
    return ends[-1] if ends else f"{name}: never called"


def _took_with_it(hits: Sequence[Hit], call: Call) -> bool:
    return any(
        hit.kind is Kind.INGRESS_KILLED
        and call.called_at <= hit.struck_at + GRACE_S
        and hit.struck_at <= call.ended_at <= hit.struck_at + NOTICED_WITHIN_S
        and any(words in call.detail for words in _DIED_UNDER_IT)
        for hit in hits
    )


def _run_twice(notes: Notes, runs: Sequence[Run]) -> list[str]:
    complete: dict[tuple[str, int], list[Run]] = defaultdict(list)
    for run in runs:
        if run.complete:
            complete[run.inference, run.call].append(run)
    found = []
    for (name, number), made in complete.items():
        unread = sum(1 for run in made[:-1] if _answer_was_lost(notes.hits, run))
        if len(made) - unread > 1:
            found.append(f"{name}: call {number} was run to its end {len(made)} times")
    return found


def _answer_was_lost(hits: Sequence[Hit], run: Run) -> bool:
    return run.ended_at is not None and any(
        hit.kind in _BREAKS_RUNS and 0.0 <= hit.struck_at - run.ended_at <= GRACE_S for hit in hits
    )


def _ended_too_often(load: Sequence[PlannedApplication], notes: Notes) -> list[str]:
    calls = Counter(call.application_id for call in notes.calls)
    return [
        f"{planned.application_id}: the scheduler ended {notes.ended[planned.application_id]}"
        f" inferences of {calls[planned.application_id]} calls"
        for planned in load
        if notes.ended.get(planned.application_id, 0) > calls[planned.application_id]
    ]


def _wrong(notes: Notes, expected: Mapping[str, Answer]) -> list[str]:
    found = []
    for call in notes.calls:
        if call.ending is not Ending.ANSWERED or call.answer is None:
            continue
        flaws = list(call.flaws)
        if differs := difference(expected[call.inference], call.answer):
            flaws.append(differs)
        found += [f"{call.inference}: {flaw}" for flaw in flaws]
    return found


def _told(call: Call) -> str:
    return f"{call.inference}: call {call.number}: {call.detail}"
