"""Counts come from the notes and the journal, and each of them can be other than nought."""

from dataclasses import replace

from justitia_ray.chaos.counts import Counts, count
from justitia_ray.chaos.kinds import Kind
from justitia_ray.chaos.notes import Ending, Hit, Notes
from tests.unit.chaos.made_up import RIGHT, application, call, hit, run

LOAD = (application("a", 2),)
EXPECTED = {"a.0": RIGHT, "a.1": RIGHT}
BOTH = [call("a.0"), call("a.1")]


def counted(notes: Notes, *runs: object) -> Counts:
    return count(LOAD, notes, runs, EXPECTED)  # type: ignore[arg-type]


def test_clean_run_counts_nothing() -> None:
    """Each inference was called, run and answered once."""
    found = counted(Notes(calls=BOTH, ended={"a": 2}), run("a.0", "1-1"), run("a.1", "1-2", at=0.5))

    assert Counts(2, 2, (), (), (), (), (), 0) == found


def test_inference_without_an_answer_is_lost() -> None:
    """However often it was called."""
    given_up = call("a.1", ending=Ending.GIVEN_UP, detail="no answer")

    assert ("a.1: call 1: no answer",) == counted(Notes(calls=[BOTH[0], given_up])).lost
    assert ("a.1: never called",) == counted(Notes(calls=BOTH[:1])).lost


def test_inference_answered_twice_is_doubled() -> None:
    """A caller takes one answer for one inference."""
    again = call("a.0", at=5.0, number=2)

    assert ("a.0: answered 2 times",) == counted(Notes(calls=[*BOTH, again])).doubled


def test_call_run_twice_to_its_end_is_doubled() -> None:
    """The caller saw one answer, and its application paid for two."""
    found = counted(Notes(calls=BOTH), run("a.0", "1-1"), run("a.0", "1-5", at=3.0))

    assert ("a.0: call 1 was run to its end 2 times",) == found.doubled


def test_second_run_is_due_if_the_first_answer_died_with_its_replica() -> None:
    """Between the last token and the answer the process was killed."""
    hits = [hit(Kind.REPLICA_KILLED, 1.2)]
    runs = run("a.0", "1-1"), run("a.0", "1-5", at=3.0)

    assert () == counted(Notes(calls=BOTH, hits=hits), *runs).doubled
    assert 1 == len(
        counted(Notes(calls=BOTH, hits=[replace(hits[0], struck_at=9.0)]), *runs).doubled
    )


def test_scheduler_that_ended_more_than_was_called_has_doubled() -> None:
    """Whatever the callers saw, the application was charged for an inference too many."""
    found = counted(Notes(calls=BOTH, ended={"a": 3}))

    assert ("a: the scheduler ended 3 inferences of 2 calls",) == found.doubled


def test_wrong_answers_and_flaws_are_wrong() -> None:
    """An answer of another text, and a stream that brought its usage twice."""
    other = call("a.0", answer=replace(RIGHT, output_tokens=9))
    flawed = call("a.1", flaws=("usage came twice",))

    assert ("a.0: output_tokens: 9 in place of 2", "a.1: usage came twice") == counted(
        Notes(calls=[other, flawed])
    ).wrong


WORDS = "ConnectionError: the answer broke off"


def broken(
    at: float, ended_at: float, ending: Ending = Ending.BROKEN, detail: str = WORDS
) -> Notes:
    failed = call("a.0", at=at, ended_at=ended_at, ending=ending, detail=detail)
    return Notes(calls=[failed, call("a.0", at=50.0, number=2), BOTH[1]])


def with_hits(notes: Notes, *hits: Hit) -> Notes:
    notes.hits += hits
    return notes


def test_call_that_fails_without_an_ingress_dying_is_broken_or_cut() -> None:
    """The service promises that callers notice no other death."""
    told = (f"a.0: call 1: {WORDS}",)

    assert told == counted(broken(1.0, 2.0)).broken
    assert told == counted(broken(1.0, 2.0, Ending.CUT)).cut
    assert told == counted(with_hits(broken(1.0, 2.0), hit(Kind.REPLICA_KILLED, 1.5))).broken


def test_ingress_excuses_the_calls_that_it_took_with_it_and_no_others() -> None:
    """One that broke long before or after has another cause."""
    excused = counted(with_hits(broken(1.0, 9.0), hit(Kind.INGRESS_KILLED, 2.0)))
    before = counted(with_hits(broken(1.0, 1.9), hit(Kind.INGRESS_KILLED, 2.0)))
    later = counted(with_hits(broken(4.1, 5.0), hit(Kind.INGRESS_KILLED, 2.0)))
    other = broken(1.0, 2.1, Ending.CUT, "ResponseError: 500: the replica was lost")
    own = counted(with_hits(other, hit(Kind.INGRESS_KILLED, 2.0)))

    assert ((), 1) == (excused.broken, excused.excused)
    assert (1, 0) == (len(before.broken), before.excused)
    assert (1, 0) == (len(later.broken), later.excused)
    assert (1, 0) == (len(own.cut), own.excused)
