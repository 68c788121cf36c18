"""What was written before a process was killed is read after it."""

from pathlib import Path

from justitia_ray.chaos.journal import JournalWriter, read_journal


def test_run_that_never_ended_is_in_the_journal(tmp_path: Path) -> None:
    """It is what a replica's death has to be measured by."""
    file = tmp_path / "journal.jsonl"
    writer = JournalWriter(file)
    writer.began(2.0, "a.1#2", "3-17", 40)
    writer.began(1.0, "a.0#1", "3-16", 40)
    writer.ended(2.5, "3-16", complete=True)
    ended, open_one = read_journal(file)

    assert ("a.0", 1, 1.0, 2.5, True) == (
        ended.inference,
        ended.call,
        ended.began_at,
        ended.ended_at,
        ended.complete,
    )
    assert ("a.1", 2, None, False) == (
        open_one.inference,
        open_one.call,
        open_one.ended_at,
        open_one.complete,
    )
    assert (3, 17, 40) == (open_one.epoch, open_one.rank, open_one.priority)


def test_several_replicas_write_into_one_journal(tmp_path: Path) -> None:
    """They append a line each time, so that none overwrites another's."""
    file = tmp_path / "journal.jsonl"
    first, second = JournalWriter(file), JournalWriter(file)
    first.began(1.0, "a#1", "1-1", 0)
    second.began(2.0, "b#1", "1-2", 0)
    first.ended(3.0, "1-1", complete=True)

    assert ["a", "b"] == [run.inference for run in read_journal(file)]


def test_calls_of_others_are_left_out(tmp_path: Path) -> None:
    """A call that names no inference is not of the load."""
    writer = JournalWriter(tmp_path / "journal.jsonl")
    writer.began(1.0, "", "1-1", 0)

    assert [] == read_journal(tmp_path / "journal.jsonl")


def test_no_journal_is_no_run(tmp_path: Path) -> None:
    """Nothing has run yet when the first strike is planned."""
    assert [] == read_journal(tmp_path / "journal.jsonl")
