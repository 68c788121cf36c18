"""Estimates of computed prompt tokens for calls that are cancelled before their first token."""

import pytest

from justitia_ray.serve.engines.prefills import Prefills


@pytest.fixture
def prefills() -> Prefills:
    """Return the estimates of an idle engine that has computed 1,000 prompt tokens in 0.5 s."""
    estimates = Prefills()
    estimates.add_sequence("first", 0, now=0.0)
    estimates.note_step(running=1, waiting=0, now=0.5)
    estimates.note_read("first", 1_000, took_s=0.5)
    estimates.note_step(running=0, waiting=0, now=0.6)
    return estimates


def test_prefill_on_an_idle_engine_starts_on_arrival(prefills: Prefills) -> None:
    prefills.add_sequence("a", 0, now=1.0)

    assert 200 == prefills.take_aborted("a", 3_000, now=1.1)


def test_estimated_prefill_progress_never_exceeds_the_prompt(prefills: Prefills) -> None:
    prefills.add_sequence("a", 0, now=1.0)

    assert 50 == prefills.take_aborted("a", 50, now=9.0)


def test_waiting_sequence_has_no_computed_tokens(prefills: Prefills) -> None:
    """Of three sequences the engine reports two as waiting: the last two in its order."""
    prefills.add_sequence("a", 0, now=1.0)
    prefills.add_sequence("urgent", 1, now=1.1)
    prefills.add_sequence("b", 5, now=1.1)
    prefills.add_sequence("c", 5, now=1.2)
    prefills.note_step(running=2, waiting=2, now=1.5)

    assert (0, 0) == (
        prefills.take_aborted("b", 900, now=2.0),
        prefills.take_aborted("c", 900, now=2.0),
    )
    assert 900 == prefills.take_aborted("urgent", 900, now=2.0)


def test_step_statistics_exclude_sequences_that_arrive_during_the_step(prefills: Prefills) -> None:
    """The step began with one sequence; the next step reports that the second one waits."""
    prefills.add_sequence("a", 0, now=1.0)
    prefills.add_sequence("b", 0, now=1.1)
    prefills.note_step(running=1, waiting=0, now=1.2)
    prefills.note_step(running=1, waiting=1, now=1.5)

    assert 0 == prefills.take_aborted("b", 900, now=2.0)


def test_prefill_starts_with_the_step_that_scheduled_the_sequence(
    prefills: Prefills,
) -> None:
    """The step that scheduled the sequence began at 1.5 s, when the previous one ended.

    The sequence arrived at 1.1 s.
    """
    prefills.add_sequence("a", 0, now=1.0)
    prefills.add_sequence("b", 0, now=1.1)
    prefills.note_step(running=1, waiting=1, now=1.5)
    prefills.note_step(running=2, waiting=0, now=1.7)

    assert 600 == prefills.take_aborted("b", 3_000, now=1.8)


def test_prefill_never_starts_before_the_arrival(prefills: Prefills) -> None:
    prefills.add_sequence("a", 0, now=1.0)
    prefills.note_step(running=1, waiting=0, now=1.5)
    prefills.add_sequence("b", 0, now=1.625)
    prefills.note_step(running=2, waiting=0, now=1.7)

    assert 500 == prefills.take_aborted("b", 3_000, now=1.875)


def test_prefill_in_progress_is_not_charged_before_the_first_finished_prompt() -> None:
    """The prefill rate is unknown until one prompt has been computed."""
    prefills = Prefills()
    prefills.add_sequence("a", 0, now=1.0)

    assert 0 == prefills.take_aborted("a", 3_000, now=5.0)


def test_prefill_rate_follows_the_latest_prompts(prefills: Prefills) -> None:
    """An engine that slows down to 100 tokens/s is noticed after a few prompts."""
    for number in range(60):
        prefills.note_read(f"slow {number}", 100, took_s=1.0)

    assert 100.0 == pytest.approx(prefills.tokens_per_s, rel=0.01)


def test_finished_sequences_are_forgotten(prefills: Prefills) -> None:
    prefills.add_sequence("a", 0, now=1.0)
    prefills.add_sequence("b", 0, now=1.0)
    prefills.note_read("b", 10, took_s=0.0)
    prefills.take_aborted("a", 10, now=2.0)

    assert 0 == prefills.take_aborted("a", 10, now=2.0)
    assert [{}, {}, {}] == [prefills._unread, prefills._added_at, prefills._scheduled_at]
