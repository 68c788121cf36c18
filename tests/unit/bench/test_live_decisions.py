"""Decision times between two readings of counts that only grow."""

from justitia_ray.bench.decisions import Decisions, decisions_between
from justitia_ray.observability.decision_meter import STEP, DecisionMeter


def test_readings_are_subtracted() -> None:
    """Decisions of an earlier arm must not show in a later one's figures."""
    meter = DecisionMeter()
    for _ in range(50):
        meter.note(1.0)
    before = meter.totals()
    for duration_s in (*(100e-6,) * 98, 5e-3, 5e-3):
        meter.note(duration_s)

    found = decisions_between(before, meter.totals())
    assert 100 == found.count
    assert found.p50_s is not None
    assert 100e-6 <= found.p50_s <= STEP * 100e-6
    assert found.p99_s is not None
    assert 5e-3 <= found.p99_s <= STEP * 5e-3
    assert abs(found.total_s - (98 * 100e-6 + 2 * 5e-3)) < 1e-9


def test_nothing_decided_has_no_percentiles() -> None:
    """A percentile of nothing would be a figure that nobody measured."""
    totals = DecisionMeter().totals()

    assert Decisions(0, None, None, 0.0) == decisions_between(totals, totals)


def test_the_table_of_counts_is_bounded() -> None:
    """A scheduler runs for months; durations below a microsecond or beyond minutes share a step."""
    meter = DecisionMeter()
    for power in range(-12, 9):
        meter.note(10.0**power)

    totals = meter.totals()
    assert 21 == totals["count"]
    assert len(totals["at_most_s"]) <= 91
    assert totals["at_most_s"][0] == [1e-6, 7]
