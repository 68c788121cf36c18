"""Metric values between two exports: exported once, with bounded labels."""

from collections.abc import Mapping, Sequence

import pytest

from justitia_ray.observability import metrics as m
from justitia_ray.observability.measures import OTHER
from tests.unit.observability.recording_backend import RecordingBackend, export_once, new_measures


def test_counters_with_known_labels_start_at_zero() -> None:
    """Rates and alerts miss the first event of a series that starts with it."""
    told = export_once(new_measures("scheduler")).counts

    assert told["leases_total", "expired"] == 0
    assert told["bound_violations_total",] == 0
    assert told["decisions_total", "+Inf"] == 0
    assert not any(name == "served_kv_token_time_total" for name, *_ in told)
    assert not any(name == "preemptions_total" for name, *_ in told)


def test_counter_increase_is_exported_once() -> None:
    """Ray adds up exported values, so that a total sent twice would count twice."""
    source, taken = new_measures("scheduler"), RecordingBackend()
    count = source.counter(m.LEASES_TOTAL, "granted")
    for _ in range(2):
        count.increase()
        source.export(taken)
    calls = taken.calls
    source.export(taken)

    assert 2 == taken.counts["leases_total", "granted"]
    assert calls == taken.calls


def test_whole_histogram_is_exported_each_time() -> None:
    """Ray exports these histograms as gauges and drops series that are not sent again.

    A bucket includes its upper bound, as in Prometheus; negative values count as 0.
    """
    source, taken = new_measures("scheduler"), RecordingBackend()
    waits = source.histogram(m.QUEUE_WAIT_SECONDS, "vote", "a")
    for value in (0.05, 0.051, 700.0, -1.0):
        waits.observe(value)
    source.export(taken)
    source.export(RecordingBackend())
    waits.observe(0.05)
    source.export(taken)

    key = ("queue_wait_seconds", "vote", "a")
    bounds = m.QUEUE_WAIT_SECONDS.buckets
    assert [1, 2, 1, *[0] * (len(bounds) - 3), 1] == taken.buckets[key]
    count, total = taken.histograms[key]
    assert 5 == count
    assert total == pytest.approx(700.151)


def test_counter_of_an_external_total_exports_only_its_increase() -> None:
    source, taken = new_measures("replica"), RecordingBackend()
    for total in (3, 3, 10):
        source.counter(m.PREEMPTIONS_TOTAL).set_total(total)
        source.export(taken)

    assert {("preemptions_total",): 10} == {
        key: value for key, value in taken.counts.items() if key[0] == "preemptions_total"
    }


def test_gauge_is_exported_each_time_after_its_first_value() -> None:
    source, taken = new_measures("replica"), RecordingBackend()
    gauge = source.gauge(m.HELD_LEASES)
    source.export(taken)
    assert not taken.gauges
    gauge.value = 0
    source.export(taken)

    assert {("held_leases",): 0} == taken.gauges


class _FailingBackend(RecordingBackend):
    """Backend that fails for the lease counter and the wait histogram."""

    def raise_counter(self, metric: m.Metric, labels: Mapping[str, str], amount: float) -> None:
        if metric is m.LEASES_TOTAL:
            raise ValueError("leases")
        super().raise_counter(metric, labels, amount)

    def set_histogram(
        self, metric: m.Metric, labels: Mapping[str, str], counts: Sequence[int], total: float
    ) -> None:
        if labels["application_class"] == "vote":
            raise ValueError("wait")
        super().set_histogram(metric, labels, counts, total)


def test_failing_metric_series_is_retried_and_stops_no_other() -> None:
    """A label that Ray refuses must not stop the other metrics or lose counts."""
    source, broken, well = new_measures("scheduler"), _FailingBackend(), RecordingBackend()
    source.counter(m.LEASES_TOTAL, "granted").increase()
    source.counter(m.BOUND_VIOLATIONS_TOTAL).increase()
    for name in ("vote", "report"):
        source.histogram(m.QUEUE_WAIT_SECONDS, name, "t").observe(0.5)
    with pytest.raises(ValueError, match="leases"):
        source.export(broken)
    source.export(well)

    assert 1 == broken.counts["bound_violations_total",]
    assert {("queue_wait_seconds", "report", "t"): (1, 0.5)} == broken.histograms
    assert 1 == well.counts["leases_total", "granted"]
    assert (1, 0.5) == well.histograms["queue_wait_seconds", "vote", "t"]


def test_classes_and_tenants_beyond_the_bound_share_one_metric_label() -> None:
    """Callers choose the names of classes and tenants, and each name would be a new series.

    A class named `other` is counted with the overflow and occupies no slot.
    """
    source = new_measures("scheduler", max_classes=2, max_tenants=1)
    labels = [source.label("application_class", name) for name in (OTHER, *"abcad")]

    assert [OTHER, "a", "b", OTHER, "a", OTHER] == labels
    assert ["t", OTHER, "t"] == [source.label("tenant", name) for name in ("t", "u", "t")]
