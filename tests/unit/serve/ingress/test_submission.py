"""What applications were opened with is kept for the other models' queues, within bounds."""

import pytest

from justitia_ray.serve.ingress.submission import ApplicationSpec, ApplicationSpecCache


@pytest.fixture
def specs() -> ApplicationSpecCache:
    """Two applications at most, ten characters in all, forgotten after a minute."""
    return ApplicationSpecCache(60.0, 2, max_characters=10)


def spec(name: str, text: str = "", weight: float | None = None) -> ApplicationSpec:
    """Return an application of tenant `t`."""
    return ApplicationSpec("rag", text, "t", weight, name)


def test_opening_is_known_while_it_is_asked_for(specs: ApplicationSpecCache) -> None:
    """Each model that an application comes to asks; idle time is counted from the last."""
    specs.add_spec(spec("a", "text"), 0.0)

    assert [spec("a", "text")] * 2 == [specs.find_spec("t|a", now) for now in (50.0, 100.0)]
    assert specs.find_spec("t|a", 160.0) is None


def test_first_opening_of_an_id_stays(specs: ApplicationSpecCache) -> None:
    """As in the queue: opening what is open changes nothing."""
    specs.add_spec(spec("a", weight=2), 0.0)
    specs.add_spec(spec("a", weight=9), 1.0)

    assert spec("a", weight=2) == specs.find_spec("t|a", 2.0)


def test_ended_application_may_be_opened_with_something_else(
    specs: ApplicationSpecCache,
) -> None:
    """Its id is free again."""
    specs.add_spec(spec("a", weight=2), 0.0)

    assert [True, False] == [specs.drop_spec("t|a"), specs.drop_spec("t|a")]
    specs.add_spec(spec("a", weight=9), 1.0)
    assert spec("a", weight=9) == specs.find_spec("t|a", 2.0)


def test_oldest_goes_when_there_are_too_many(specs: ApplicationSpecCache) -> None:
    """Callers open what they like: memory is bounded, and what is used stays."""
    for name in ("a", "b"):
        specs.add_spec(spec(name), 0.0)
    specs.find_spec("t|a", 1.0)
    specs.add_spec(spec("c"), 2.0)

    assert ["a", "c"] == [name for name in "abc" if specs.find_spec(f"t|{name}", 3.0) is not None]


def test_inputs_are_bounded_in_all(specs: ApplicationSpecCache) -> None:
    """The oldest go; one that is too long by itself is known by the rest that it came with."""
    specs.add_spec(spec("a", "123456"), 0.0)
    specs.add_spec(spec("b", "12345"), 0.0)
    specs.add_spec(spec("c", "1" * 11, weight=2), 0.0)

    assert [None, spec("b", "12345"), spec("c", weight=2)] == [
        specs.find_spec(f"t|{n}", 1.0) for n in "abc"
    ]
