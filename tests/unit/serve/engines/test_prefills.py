"""How much of a prompt is taken to have been read when its call is left before its first token."""

import pytest

from justitia_ray.serve.engines.prefills import Prefills


@pytest.fixture
def prefills() -> Prefills:
    """Return estimates of an idle engine that has read 1,000 tokens in 0.5 s."""
    estimates = Prefills()
    estimates.add_sequence("first", 0, now=0.0)
    estimates.note_step(running=1, waiting=0, now=0.5)
    estimates.note_read("first", 1_000, took_s=0.5)
    estimates.note_step(running=0, waiting=0, now=0.6)
    return estimates


def test_sequence_that_comes_to_an_idle_engine_is_read_from_then_on(prefills: Prefills) -> None:
    """At 2,000 tokens a second, 0.1 s after it came."""
    prefills.add_sequence("a", 0, now=1.0)

    assert 200 == prefills.take_left("a", 3_000, now=1.1)


def test_no_more_than_the_prompt_is_read(prefills: Prefills) -> None:
    """However long its first token takes."""
    prefills.add_sequence("a", 0, now=1.0)

    assert 50 == prefills.take_left("a", 50, now=9.0)


def test_sequence_that_waits_is_not_read(prefills: Prefills) -> None:
    """Of three that came, the engine says that two wait: the last in its order."""
    prefills.add_sequence("a", 0, now=1.0)
    prefills.add_sequence("urgent", 1, now=1.1)
    prefills.add_sequence("b", 5, now=1.1)
    prefills.add_sequence("c", 5, now=1.2)
    prefills.note_step(running=2, waiting=2, now=1.5)

    assert (0, 0) == (prefills.take_left("b", 900, now=2.0), prefills.take_left("c", 900, now=2.0))
    assert 900 == prefills.take_left("urgent", 900, now=2.0)


def test_sequence_that_comes_during_a_step_is_in_none_of_its_figures(prefills: Prefills) -> None:
    """The step had begun with one; the next one says that the other waits."""
    prefills.add_sequence("a", 0, now=1.0)
    prefills.add_sequence("b", 0, now=1.1)
    prefills.note_step(running=1, waiting=0, now=1.2)
    prefills.note_step(running=1, waiting=1, now=1.5)

    assert 0 == prefills.take_left("b", 900, now=2.0)


def test_sequence_that_was_scheduled_is_read_from_the_step_that_took_it(
    prefills: Prefills,
) -> None:
    """That began as the one before ended, at 1.5 s; not as the sequence came, at 1.1 s."""
    prefills.add_sequence("a", 0, now=1.0)
    prefills.add_sequence("b", 0, now=1.1)
    prefills.note_step(running=1, waiting=1, now=1.5)
    prefills.note_step(running=2, waiting=0, now=1.7)

    assert 600 == prefills.take_left("b", 3_000, now=1.8)


def test_sequence_is_not_read_before_it_came(prefills: Prefills) -> None:
    """One that comes during a step that takes it is read from then on."""
    prefills.add_sequence("a", 0, now=1.0)
    prefills.note_step(running=1, waiting=0, now=1.5)
    prefills.add_sequence("b", 0, now=1.625)
    prefills.note_step(running=2, waiting=0, now=1.7)

    assert 500 == prefills.take_left("b", 3_000, now=1.875)


def test_nothing_is_charged_before_any_prompt_was_read() -> None:
    """The rate is not known."""
    prefills = Prefills()
    prefills.add_sequence("a", 0, now=1.0)

    assert 0 == prefills.take_left("a", 3_000, now=5.0)


def test_rate_is_that_of_the_last_prompts(prefills: Prefills) -> None:
    """A machine that slows down to 100 tokens a second is known to after some prompts."""
    for number in range(60):
        prefills.note_read(f"slow {number}", 100, took_s=1.0)

    assert 100.0 == pytest.approx(prefills.tokens_per_s, rel=0.01)


def test_nothing_is_kept_of_sequences_that_are_over(prefills: Prefills) -> None:
    """And one that was left twice was read once."""
    prefills.add_sequence("a", 0, now=1.0)
    prefills.add_sequence("b", 0, now=1.0)
    prefills.note_read("b", 10, took_s=0.0)
    prefills.take_left("a", 10, now=2.0)

    assert 0 == prefills.take_left("a", 10, now=2.0)
    assert [{}, {}, {}] == [prefills._unread, prefills._added_at, prefills._scheduled_at]
