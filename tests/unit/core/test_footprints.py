"""Incrementally updated sums of a replica's footprints."""

import pytest

from justitia_ray.core.footprints import Footprint, Footprints
from justitia_ray.core.prefixes import Prefix


@pytest.fixture
def footprints() -> Footprints:
    """Return the footprints of two leases of application a and one of b."""
    made = Footprints()
    made["1"] = Footprint(5, 1, 10, "a")
    made["2"] = Footprint(4, 2, 20, "b")
    made["3"] = Footprint(0, 1, 30, "a")
    return made


def _memory_sums(made: Footprints) -> tuple[int, int, int]:
    return (made.context_tokens, made.full_tokens, made.sequences)


def test_memory_sums_include_all_leases(footprints: Footprints) -> None:
    assert (60, 15 + 28 + 30, 4) == _memory_sums(footprints)


def test_new_report_of_a_lease_replaces_its_last_report(footprints: Footprints) -> None:
    footprints["1"] = Footprint(1, 1, 14, "a")

    assert (64, 15 + 28 + 30, 4) == _memory_sums(footprints)
    assert ["1", "2", "3"] == list(footprints)


def test_removed_lease_is_not_counted_in_memory_sums(footprints: Footprints) -> None:
    del footprints["2"]
    footprints.pop("1")

    assert (30, 30, 1) == _memory_sums(footprints)
    assert (["3"], 1) == (list(footprints), len(footprints))


def test_memory_forecast_follows_every_change(footprints: Footprints) -> None:
    """The forecast is cached between changes, and a stale one would admit too much."""
    block = 1
    small = Footprint(0, 1, 0, "c")

    def peak_tokens() -> int:
        return footprints.forecast(block).peak_with_lease(small)

    first = footprints.forecast(block)

    assert first is footprints.forecast(block)
    assert 60 == peak_tokens()

    footprints["4"] = Footprint(50, 1, 100, "b")

    assert 160 == peak_tokens()

    footprints["4"] = Footprint(70, 1, 100, "b")

    assert 170 == peak_tokens()

    del footprints["3"]

    assert 170 == peak_tokens()

    del footprints["4"]

    assert 14 + 28 == peak_tokens()


def test_memory_refusal_by_an_older_forecast_needs_no_new_forecast(
    footprints: Footprints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease added since the forecast can only leave less memory."""
    new = Footprint(0, 1, 1, "c")
    assert footprints.exceed(60, new, 1)
    footprints["4"] = Footprint(9, 1, 5, "b")
    monkeypatch.setattr(footprints, "forecast", None)

    assert footprints.exceed(60, new, 1)


def test_memory_forecast_counts_wasted_blocks(footprints: Footprints) -> None:
    small = Footprint(0, 1, 0, "c")

    assert 60 == footprints.forecast(1).peak_with_lease(small)
    assert 60 + 5 * 3 == footprints.forecast(4).peak_with_lease(small)


def test_memory_forecast_with_a_further_lease_leaves_the_replica_unchanged(
    footprints: Footprints,
) -> None:
    before = footprints.forecast(1).held
    other = footprints.forecast_with(Footprint(3, 1, 5, "c"), 1)

    assert [65, 35 + 4 * 3, 30 + 3 * 4, 10 + 5] == other.held
    assert before == footprints.forecast(1).held


def test_memory_of_applications_and_shared_tokens_add_up(footprints: Footprints) -> None:
    for name in ("4", "5"):
        footprints.join(name, (Prefix(8, b"system"),))
        footprints[name] = Footprint(3, 1, 20, "c")
    footprints.note_found("5", 8)
    parts = [*footprints.parts()]

    assert sum(part.context_tokens for part in parts) == footprints.context_tokens == 60 + 32
    assert sum(part.choices for part in parts) == footprints.sequences
    assert len(parts) == 6


class CountedFootprint(Footprint):
    """Footprint that counts how often its remaining iterations are read."""

    reads = 0

    @property
    def iterations(self) -> int:
        CountedFootprint.reads += 1
        return self[0]

    def less(self, tokens: int) -> "CountedFootprint":
        return CountedFootprint(*super().less(tokens))


def test_forecast_of_a_shared_beginning_reads_each_lease_once_between_reports() -> None:
    made, named = Footprints(), (Prefix(16, b"system"),)

    def grant_lease(name: str, iterations: int) -> None:
        made.join(name, named)
        made[name] = CountedFootprint(iterations, 1, 20, "a")

    for number in range(100):
        grant_lease(f"lease-{number}", number)
    assert ((99, 16),) == made.extension(named, 1000)

    CountedFootprint.reads = 0
    grant_lease("short", 5)
    assert ((99, 16),) == made.extension(named, 1000)
    grant_lease("long", 200)
    assert ((200, 16),) == made.extension(named, 1000)
    assert CountedFootprint.reads < 20

    made["long"] = CountedFootprint(150, 1, 20, "a")
    assert ((150, 16),) == made.extension(named, 1000)
    del made["long"]
    assert ((99, 16),) == made.extension(named, 1000)
