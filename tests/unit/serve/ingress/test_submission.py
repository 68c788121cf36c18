"""Specifications of open applications, cached within bounds for the queues of other models."""

import pytest

from justitia_ray.serve.ingress.submission import ApplicationSpec, ApplicationSpecCache


@pytest.fixture
def small_cache() -> ApplicationSpecCache:
    """Cache of two applications and ten characters in all, whose entries expire in a minute."""
    return ApplicationSpecCache(60.0, 2, max_characters=10)


def spec_of(name: str, text: str = "", weight: float | None = None) -> ApplicationSpec:
    return ApplicationSpec("rag", text, "t", weight, name)


def test_application_specification_is_kept_while_calls_read_it(
    small_cache: ApplicationSpecCache,
) -> None:
    """Each model that the application calls reads the specification.

    The idle time counts from the last read.
    """
    small_cache.add_spec(spec_of("a", "text"), 0.0)

    assert [spec_of("a", "text")] * 2 == [
        small_cache.find_spec("t|a", now) for now in (50.0, 100.0)
    ]
    assert small_cache.find_spec("t|a", 160.0) is None


def test_first_specification_of_an_application_id_is_kept(
    small_cache: ApplicationSpecCache,
) -> None:
    """Opening an application that is already open changes nothing."""
    small_cache.add_spec(spec_of("a", weight=2), 0.0)
    small_cache.add_spec(spec_of("a", weight=9), 1.0)

    assert spec_of("a", weight=2) == small_cache.find_spec("t|a", 2.0)


def test_ended_application_may_be_opened_with_another_specification(
    small_cache: ApplicationSpecCache,
) -> None:
    small_cache.add_spec(spec_of("a", weight=2), 0.0)

    assert [True, False] == [small_cache.drop_spec("t|a"), small_cache.drop_spec("t|a")]
    small_cache.add_spec(spec_of("a", weight=9), 1.0)
    assert spec_of("a", weight=9) == small_cache.find_spec("t|a", 2.0)


def test_oldest_application_specification_is_evicted_at_the_limit(
    small_cache: ApplicationSpecCache,
) -> None:
    for name in ("a", "b"):
        small_cache.add_spec(spec_of(name), 0.0)
    small_cache.find_spec("t|a", 1.0)
    small_cache.add_spec(spec_of("c"), 2.0)

    assert ["a", "c"] == [
        name for name in "abc" if small_cache.find_spec(f"t|{name}", 3.0) is not None
    ]


def test_total_size_of_stored_application_inputs_is_bounded(
    small_cache: ApplicationSpecCache,
) -> None:
    """The oldest inputs are evicted; an input above the limit is dropped from its entry."""
    small_cache.add_spec(spec_of("a", "123456"), 0.0)
    small_cache.add_spec(spec_of("b", "12345"), 0.0)
    small_cache.add_spec(spec_of("c", "1" * 11, weight=2), 0.0)

    assert [None, spec_of("b", "12345"), spec_of("c", weight=2)] == [
        small_cache.find_spec(f"t|{n}", 1.0) for n in "abc"
    ]
