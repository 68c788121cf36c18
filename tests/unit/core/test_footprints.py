"""Incrementally updated sums of a replica's footprints."""

import pytest

from justitia_ray.core.footprints import Footprint, Footprints
from justitia_ray.core.prefixes import Prefix


@pytest.fixture
def footprints() -> Footprints:
    """Return the footprints of two leases of a and one of b."""
    made = Footprints()
    made["1"] = Footprint(5, 1, 10, "a")
    made["2"] = Footprint(4, 2, 20, "b")
    made["3"] = Footprint(0, 1, 30, "a")
    return made


def _sums(made: Footprints) -> tuple[int, int, int, int, int]:
    held = (made.held_by("a"), made.held_by("b"))
    return (made.context_tokens, made.full_tokens, made.sequences, *held)


def test_sums_are_of_all_leases(footprints: Footprints) -> None:
    """Four iterations of two sequences are 20 + 2·4 at the peak."""
    assert (60, 15 + 28 + 30, 4, 45, 28) == _sums(footprints)


def test_report_takes_the_place_of_the_one_before(footprints: Footprints) -> None:
    """A lease counts once, by its last report."""
    footprints["1"] = Footprint(1, 1, 14, "a")

    assert (64, 15 + 28 + 30, 4, 45, 28) == _sums(footprints)
    assert ["1", "2", "3"] == list(footprints)


def test_lease_that_is_gone_counts_no_more(footprints: Footprints) -> None:
    del footprints["2"]
    footprints.pop("1")

    assert (30, 30, 1, 30, 0) == _sums(footprints)
    assert (["3"], 1) == (list(footprints), len(footprints))


def test_forecast_follows_every_change(footprints: Footprints) -> None:
    """The forecast is cached between changes, and a stale one would admit too much."""
    block = 1
    small = Footprint(0, 1, 0, "c")

    def peak() -> int:
        return footprints.forecast(block).peak_with(small)

    first = footprints.forecast(block)

    assert first is footprints.forecast(block)
    assert 60 == peak()  # now; after 4 iterations 14 + 28

    footprints["4"] = Footprint(50, 1, 100, "b")

    assert 160 == peak()

    footprints["4"] = Footprint(70, 1, 100, "b")

    assert 170 == peak()

    del footprints["3"]

    assert 170 == peak()

    del footprints["4"]

    assert 14 + 28 == peak()


def test_no_new_forecast_is_made_where_an_older_one_refuses(
    footprints: Footprints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A further lease only adds: 60 and the new one's 1 were too much before it."""
    new = Footprint(0, 1, 1, "c")
    assert footprints.exceed(60, new, 1)
    footprints["4"] = Footprint(9, 1, 5, "b")
    monkeypatch.setattr(footprints, "forecast", None)

    assert footprints.exceed(60, new, 1)


def test_forecast_knows_its_block_size(footprints: Footprints) -> None:
    """A larger block wastes more: 3 for each of the four sequences, and for the new one."""
    small = Footprint(0, 1, 0, "c")

    assert 60 == footprints.forecast(1).peak_with(small)
    assert 60 + 5 * 3 == footprints.forecast(4).peak_with(small)


def test_forecast_with_another_leaves_the_replica_alone(footprints: Footprints) -> None:
    before = footprints.forecast(1).held
    other = footprints.forecast_with(Footprint(3, 1, 5, "c"), 1)

    assert [65, 35 + 4 * 3, 30 + 3 * 4, 10 + 5] == other.held
    assert before == footprints.forecast(1).held


def test_parts_add_up_with_what_leases_share(footprints: Footprints) -> None:
    """A beginning of eight tokens that two leases share is a part of its own."""
    for name in ("4", "5"):
        footprints.join(name, (Prefix(8, b"system"),))
        footprints[name] = Footprint(3, 1, 20, "c")
    footprints.note_found("5", 8)
    parts = [*footprints.parts()]

    assert sum(part.context_tokens for part in parts) == footprints.context_tokens == 60 + 32
    assert sum(part.choices for part in parts) == footprints.sequences
    assert len(parts) == 6
