"""Specifications of open applications, cached within bounds for the queues of other models."""

import pytest

from justitia_ray.serve.ingress.submission import ApplicationSpec, ApplicationSpecCache


@pytest.fixture
def specs() -> ApplicationSpecCache:
    """Cache of two applications and ten characters in all, which expire after a minute."""
    return ApplicationSpecCache(60.0, 2, max_characters=10)


def spec(name: str, text: str = "", weight: float | None = None) -> ApplicationSpec:
    return ApplicationSpec("rag", text, "t", weight, name)


def test_entry_stays_while_it_is_read(specs: ApplicationSpecCache) -> None:
    """Each model that the application calls reads the entry.

    The idle time counts from the last read.
    """
    specs.add_spec(spec("a", "text"), 0.0)

    assert [spec("a", "text")] * 2 == [specs.find_spec("t|a", now) for now in (50.0, 100.0)]
    assert specs.find_spec("t|a", 160.0) is None


def test_first_opening_of_an_id_stays(specs: ApplicationSpecCache) -> None:
    """As in the queue, opening an open application changes nothing."""
    specs.add_spec(spec("a", weight=2), 0.0)
    specs.add_spec(spec("a", weight=9), 1.0)

    assert spec("a", weight=2) == specs.find_spec("t|a", 2.0)


def test_ended_application_may_be_opened_with_something_else(
    specs: ApplicationSpecCache,
) -> None:
    specs.add_spec(spec("a", weight=2), 0.0)

    assert [True, False] == [specs.drop_spec("t|a"), specs.drop_spec("t|a")]
    specs.add_spec(spec("a", weight=9), 1.0)
    assert spec("a", weight=9) == specs.find_spec("t|a", 2.0)


def test_oldest_entry_is_evicted_at_the_limit(specs: ApplicationSpecCache) -> None:
    for name in ("a", "b"):
        specs.add_spec(spec(name), 0.0)
    specs.find_spec("t|a", 1.0)
    specs.add_spec(spec("c"), 2.0)

    assert ["a", "c"] == [name for name in "abc" if specs.find_spec(f"t|{name}", 3.0) is not None]


def test_inputs_are_bounded_in_all(specs: ApplicationSpecCache) -> None:
    """The oldest inputs are evicted; an input that is too long alone is dropped from its entry."""
    specs.add_spec(spec("a", "123456"), 0.0)
    specs.add_spec(spec("b", "12345"), 0.0)
    specs.add_spec(spec("c", "1" * 11, weight=2), 0.0)

    assert [None, spec("b", "12345"), spec("c", weight=2)] == [
        specs.find_spec(f"t|{n}", 1.0) for n in "abc"
    ]
