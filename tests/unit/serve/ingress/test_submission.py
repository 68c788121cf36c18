"""What applications were opened with is kept for the other models' queues, within bounds."""

import pytest

from justitia_ray.serve.ingress.submission import ApplicationSpec, ApplicationSpecCache


@pytest.fixture
def specs() -> ApplicationSpecCache:
    """Two applications at most, ten characters in all, forgotten after a minute."""
    return ApplicationSpecCache(60.0, 2, max_characters=10)


def spec(text: str = "", weight: float | None = None) -> ApplicationSpec:
    """Return an opening with this input."""
    return ApplicationSpec("rag", text, weight=weight)


def test_opening_is_known_while_it_is_asked_for(specs: ApplicationSpecCache) -> None:
    """Each model that an application comes to asks; idle time is counted from the last."""
    specs.add_spec("a", spec("text"), 0.0)

    assert [spec("text")] * 2 == [specs.find_spec("a", now) for now in (50.0, 100.0)]
    assert specs.find_spec("a", 160.0) is None


def test_first_opening_of_an_id_stays(specs: ApplicationSpecCache) -> None:
    """As in the queue: opening what is open changes nothing."""
    specs.add_spec("a", spec(weight=2), 0.0)
    specs.add_spec("a", spec(weight=9), 1.0)

    assert spec(weight=2) == specs.find_spec("a", 2.0)


def test_ended_application_may_be_opened_with_something_else(
    specs: ApplicationSpecCache,
) -> None:
    """Its id is free again."""
    specs.add_spec("a", spec(weight=2), 0.0)

    assert [True, False] == [specs.drop_spec("a"), specs.drop_spec("a")]
    specs.add_spec("a", spec(weight=9), 1.0)
    assert spec(weight=9) == specs.find_spec("a", 2.0)


def test_oldest_goes_when_there_are_too_many(specs: ApplicationSpecCache) -> None:
    """Callers open what they like: memory is bounded, and what is used stays."""
    for name in ("a", "b"):
        specs.add_spec(name, spec(), 0.0)
    specs.find_spec("a", 1.0)
    specs.add_spec("c", spec(), 2.0)

    assert ["a", "c"] == [name for name in "abc" if specs.find_spec(name, 3.0) is not None]


def test_inputs_are_bounded_in_all(specs: ApplicationSpecCache) -> None:
    """The oldest go; one that is too long by itself is known by the rest that it came with."""
    specs.add_spec("a", spec("123456"), 0.0)
    specs.add_spec("b", spec("12345"), 0.0)
    specs.add_spec("c", spec("1" * 11, weight=2), 0.0)

    assert [None, spec("12345"), spec(weight=2)] == [specs.find_spec(n, 1.0) for n in "abc"]
