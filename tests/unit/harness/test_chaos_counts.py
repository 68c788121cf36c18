"""Counts are made from records and journal, and each of them can be other than 0."""

import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.harness.chaos.counts import Counts, count_calls
from tests.harness.chaos.order import FaultWindow, OrderMeasure, measure_order
from tests.harness.chaos.plan import FaultKind
from tests.harness.chaos.records import (
    Call,
    Ending,
    EngineRun,
    JournalWriter,
    RunRecords,
    TagAcrossRestart,
    read_journal,
)
from tests.unit.harness.made_up import (
    RIGHT,
    answered_call,
    completed_run,
    injected_fault,
    planned_application,
)

LOAD = (planned_application("a", 2),)
EXPECTED = {"a.0": RIGHT, "a.1": RIGHT}
BOTH = [answered_call("a.0"), answered_call("a.1")]


TWICE = completed_run("a.0", "1-1"), completed_run("a.0", "1-5", at=3.0)
WORDS = "ConnectionError: the answer broke off"


def repeated_calls(
    at: float, ended_at: float, ending: Ending = Ending.BROKEN, detail: str = WORDS
) -> list[Call]:
    """Return two calls for one inference: the first failed, the second was answered."""
    failed = answered_call("a.0", at=at, ended_at=ended_at, ending=ending, detail=detail)
    return [failed, answered_call("a.0", at=50.0, number=2), BOTH[1]]


def count_case(
    found: str, calls: list[Call], *runs: EngineRun, told: str | None = None, **records: Any
) -> Any:
    """Return a test case with calls and runs; `told` is the expected message, if any."""
    return found, () if told is None else (told,), RunRecords(calls=calls, **records), runs


def test_report_of_a_chaos_run_without_faults_has_no_failures() -> None:
    runs = completed_run("a.0", "1-1"), completed_run("a.1", "1-2", at=0.5)
    found = count_calls(LOAD, RunRecords(calls=BOTH, ended={"a": 2}), runs, EXPECTED)

    assert Counts(2, 2, (), (), (), (), (), 0) == found


KILLED = injected_fault(FaultKind.REPLICA_KILLED, 1.2, pid=1)
INGRESS = injected_fault(FaultKind.INGRESS_KILLED, 2.0)
LOST = "ResponseError: 500: the replica was lost"


@pytest.mark.parametrize(
    ("found", "told", "records", "runs"),
    [
        # The number of calls does not matter.
        count_case(
            "lost",
            [BOTH[0], answered_call("a.1", ending=Ending.GIVEN_UP, detail="no answer")],
            told="a.1: call 1: no answer",
        ),
        count_case("lost", BOTH[:1], told="a.1: never called"),
        # A caller accepts one answer per inference.
        count_case(
            "doubled", [*BOTH, answered_call("a.0", at=5.0, number=2)], told="a.0: answered 2 times"
        ),
        # An application pays for two runs although its caller gets one answer.
        # A second run is correct if the first process died between the last token and the answer.
        count_case("doubled", BOTH, *TWICE, told="a.0: call 1 was run to its end 2 times"),
        count_case("doubled", BOTH, *TWICE, faults=[KILLED]),
        count_case(
            "doubled",
            BOTH,
            *TWICE,
            faults=[replace(KILLED, injected_at=9.0)],
            told="a.0: call 1 was run to its end 2 times",
        ),
        # Another replica died.
        count_case(
            "doubled",
            BOTH,
            *TWICE,
            faults=[replace(KILLED, pid=2)],
            told="a.0: call 1 was run to its end 2 times",
        ),
        # The ingress that requested the answer is dead.
        count_case("doubled", BOTH, *TWICE, faults=[replace(INGRESS, injected_at=1.2)]),
        # A suspended process may finish its run after another replica has repeated the run.
        # before it has noticed that.
        count_case(
            "doubled",
            BOTH,
            *TWICE,
            faults=[injected_fault(FaultKind.REPLICA_HALF_OPEN, 0.0, 7.0, pid=1)],
        ),
        count_case(
            "doubled",
            BOTH,
            *TWICE,
            faults=[injected_fault(FaultKind.REPLICA_HALF_OPEN, 0.0, 0.9, pid=1)],
        ),
        count_case(
            "doubled",
            BOTH,
            *[replace(made, ended_at=12.0) for made in TWICE],
            faults=[injected_fault(FaultKind.REPLICA_HALF_OPEN, 0.0, 7.0, pid=1)],
            told="a.0: call 1 was run to its end 2 times",
        ),
        count_case(
            "doubled",
            BOTH,
            ended={"a": 3},
            told="a: the scheduler ended 3 inferences of 2 calls",
        ),
        count_case(
            "wrong",
            [answered_call("a.0", answer=replace(RIGHT, output_tokens=9)), BOTH[1]],
            told="a.0: output_tokens: 9 in place of 2",
        ),
        count_case(
            "wrong",
            [BOTH[0], answered_call("a.1", flaws=("usage came twice",))],
            told="a.1: usage came twice",
        ),
        # Only the death of its own ingress may end a call.
        # and no others.
        count_case("broken", repeated_calls(1.0, 2.0), told=f"a.0: call 1: {WORDS}"),
        count_case("cut", repeated_calls(1.0, 2.0, Ending.CUT), told=f"a.0: call 1: {WORDS}"),
        count_case(
            "broken", repeated_calls(1.0, 2.0), faults=[KILLED], told=f"a.0: call 1: {WORDS}"
        ),
        count_case("broken", repeated_calls(1.0, 9.0), faults=[INGRESS]),
        count_case(
            "broken", repeated_calls(1.0, 1.9), faults=[INGRESS], told=f"a.0: call 1: {WORDS}"
        ),
        count_case(
            "broken", repeated_calls(4.1, 5.0), faults=[INGRESS], told=f"a.0: call 1: {WORDS}"
        ),
        count_case(
            "cut",
            repeated_calls(1.0, 2.1, Ending.CUT, LOST),
            faults=[INGRESS],
            told=f"a.0: call 1: {LOST}",
        ),
    ],
)
def test_rule_violations_of_a_chaos_run_are_counted_and_reported(
    found: str, told: tuple[str, ...], records: RunRecords, runs: Sequence[EngineRun]
) -> None:
    """A check that can never fail would show nothing."""
    counts = count_calls(LOAD, records, runs, EXPECTED)
    excused = INGRESS in records.faults and not told

    assert told == getattr(counts, found)
    assert excused == counts.excused


def test_journal_lists_inference_runs_that_never_ended(tmp_path: Path) -> None:
    """When a replica is killed, its unfinished runs have no end in the journal."""
    file = tmp_path / "journal.jsonl"
    writer = JournalWriter(file)
    writer.write_run_begin(2.0, "a.1#2", "3-17", 40)
    writer.write_run_begin(1.0, "a.0#1", "3-16", 40)
    writer.write_run_end(2.5, "3-16", complete=True)
    pid = os.getpid()

    assert [
        EngineRun("a.0", 1, "3-16", 40, pid, 1.0, 2.5, complete=True),
        EngineRun("a.1", 2, "3-17", 40, pid, 2.0, None, complete=False),
    ] == read_journal(file)
    assert (3, 17) == (read_journal(file)[1].epoch, read_journal(file)[1].rank)


MANY = 40


def served_in_order(tags: list[int], epoch: int = 1) -> tuple[list[EngineRun], list[Call]]:
    """Return one-inference applications, called at the same time and granted in the given order.

    One more, of the largest tag, is called at 10 and granted last; another is called at 5, so that
    every later grant is known to be after 5.
    """
    calls = [answered_call("first.0", 5.0), *(answered_call(f"t{tag}.0") for tag in tags)]
    runs = [completed_run("first.0", f"{epoch}-0", 5.5, priority=-1)]
    runs += [
        completed_run(f"t{tag}.0", f"{epoch}-{rank}", 6.0 + rank, priority=tag)
        for rank, tag in enumerate(tags, 1)
    ]
    return runs, calls


def measured_order(tags: list[int], *windows: FaultWindow) -> OrderMeasure:
    return measure_order(*served_in_order(tags), windows)


def test_order_check_detects_a_shuffled_order_of_grants() -> None:
    """Each grant is compared with all inferences that waited at its time."""
    found = measured_order(list(range(MANY)))

    assert MANY * (MANY - 1) // 2 + MANY == found.pairs
    assert (0, ()) == (found.inverted, found.unexplained)

    tags = list(range(MANY))
    random.Random(1).shuffle(tags)
    inversions = sum(tags[i] > tags[j] for i in range(MANY) for j in range(i + 1, MANY))
    assert inversions > 100
    assert inversions == len(measured_order(tags).unexplained)


def test_grants_out_of_order_are_reported_unless_a_fault_explains_them() -> None:
    """A grant out of order is correct if the inference's first grant was lost with its replica."""
    early, killed = (FaultWindow(FaultKind.REPLICA_KILLED, at, at + 1.0) for at in (1.0, 7.0))

    for found in (measured_order([1, 3, 2, 4]), measured_order([1, 3, 2, 4], early)):
        assert ("t3.0 (1-2) before t2.0 (1-3)",) == found.unexplained
    # The replica that an inference could not reach takes other inferences.
    cut = FaultWindow(FaultKind.INGRESS_CUT, 1.0, 1.5)
    for fault_window in (killed, cut):
        explained = measured_order([1, 3, 2, 4], fault_window)
        assert (1, ()) == (explained.inverted, explained.unexplained)


def test_call_that_arrives_later_is_not_overtaken_by_running_calls() -> None:
    runs, calls = served_in_order([5])
    calls.append(answered_call("late.0", 4.5))
    runs.append(completed_run("late.0", "1-2", 9.0, priority=0))

    assert 0 == measure_order(runs, calls, ()).inverted
    assert 1 == measure_order(runs, calls, (), settle_s=0.1).inverted


def test_inferences_of_one_application_are_not_compared_in_order() -> None:
    """The virtual finish time of an application may rise between two of its inferences."""
    calls = [answered_call("first.0", 5.0), answered_call("a.0"), answered_call("a.1")]
    runs = [
        completed_run("first.0", "1-0", 5.5, priority=-1),
        completed_run("a.0", "1-1", 6.0, priority=9),
        completed_run("a.1", "1-2", 7.0, priority=3),
    ]

    assert 2 == measure_order(runs, calls, ()).pairs


def test_order_of_grants_is_checked_separately_for_each_scheduler() -> None:
    """Grants of two schedulers are not comparable; the test exchanges two of the second."""
    runs, calls = served_in_order([1, 2])
    later, others = served_in_order([8, 7], epoch=2)

    assert ("t8.0 (2-1) before t7.0 (2-2)",) == measure_order(
        runs + later, calls + others, ()
    ).unexplained


def test_order_of_grants_is_not_checked_while_submissions_are_delayed() -> None:
    """The scheduler cannot order submissions that have not reached it."""
    found = measured_order([1, 3, 2, 4], FaultWindow(FaultKind.SCHEDULER_STOPPED, 3.0, 4.5))

    assert 0 == found.pairs


def test_finish_tag_changed_by_a_restart_is_found() -> None:
    """The order of waiting applications must survive the scheduler."""
    found = measure_order(
        [], [], (), [TagAcrossRestart("a", 5.0, 5.0), TagAcrossRestart("b", 5.0, 6.5)]
    )

    assert 2 == found.tags
    assert ("b: 5.0 became 6.5",) == found.tags_changed
