"""What applications were opened with is kept for the other models' queues, within bounds."""

import pytest

from justitia_ray.serve.opening import Opening
from justitia_ray.serve.openings import Openings


@pytest.fixture
def openings() -> Openings:
    """Two applications at most, ten characters in all, forgotten after a minute."""
    return Openings(60.0, 2, most_characters=10)


def opening(text: str = "", weight: float | None = None) -> Opening:
    """Return an opening with this input."""
    return Opening("rag", text, weight=weight)


def test_opening_is_known_while_it_is_asked_for(openings: Openings) -> None:
    """Each model that an application comes to asks; idle time is counted from the last."""
    openings.remember("a", opening("text"), 0.0)

    assert [opening("text")] * 2 == [openings.get("a", now) for now in (50.0, 100.0)]
    assert openings.get("a", 160.0) is None


def test_first_opening_of_an_id_stays(openings: Openings) -> None:
    """As in the queue: opening what is open changes nothing."""
    openings.remember("a", opening(weight=2), 0.0)
    openings.remember("a", opening(weight=9), 1.0)

    assert opening(weight=2) == openings.get("a", 2.0)


def test_ended_application_may_be_opened_with_something_else(openings: Openings) -> None:
    """Its id is free again."""
    openings.remember("a", opening(weight=2), 0.0)

    assert [True, False] == [openings.forget("a"), openings.forget("a")]
    openings.remember("a", opening(weight=9), 1.0)
    assert opening(weight=9) == openings.get("a", 2.0)


def test_oldest_goes_when_there_are_too_many(openings: Openings) -> None:
    """Callers open what they like: memory is bounded, and what is used stays."""
    for name in ("a", "b"):
        openings.remember(name, opening(), 0.0)
    openings.get("a", 1.0)
    openings.remember("c", opening(), 2.0)

    assert ["a", "c"] == [name for name in "abc" if openings.get(name, 3.0) is not None]


def test_inputs_are_bounded_in_all(openings: Openings) -> None:
    """The oldest go; one that is too long by itself is known by the rest that it came with."""
    openings.remember("a", opening("123456"), 0.0)
    openings.remember("b", opening("12345"), 0.0)
    openings.remember("c", opening("1" * 11, weight=2), 0.0)

    assert [None, opening("12345"), opening(weight=2)] == [openings.get(n, 1.0) for n in "abc"]
