"""PromQL that is built from the table: right by construction."""

import pytest

from justitia_ray.observability.metrics import (
    COMPLETION_SECONDS,
    DECISIONS_TOTAL,
    HELD_LEASES,
    LEASES_TOTAL,
    STORE_REACHABLE,
    WAITING_INFERENCES,
)
from justitia_ray.observability.promql import (
    gauge,
    greatest,
    least,
    per_second,
    quantile,
    rise,
    seen,
)

ALL = (
    'ray_io_cluster=~"$Cluster", SessionName=~"$SessionName",'
    ' application=~"$application", model=~"$model"'
)


def test_gauge_is_counted_once_for_each_thing_it_speaks_of() -> None:
    """A dead scheduler's last value is exported for a while beside its successor's."""
    expected = (
        "sum by (model) (max by (ray_io_cluster, SessionName, application, model)"
        f" (ray_justitia_waiting_inferences{{{ALL}}}))"
    )

    assert expected == gauge(WAITING_INFERENCES, "model")


def test_gauge_of_a_replica_is_one_of_each_replica() -> None:
    """Without the label, replicas would count as one."""
    expected = (
        "sum (max by (ray_io_cluster, SessionName, application, model, replica)"
        f" (ray_justitia_held_leases{{{ALL}}}))"
    )

    assert expected == gauge(HELD_LEASES)


def test_counter_is_added_up_after_its_rate_is_taken() -> None:
    """Before, the restart of one process would look as a fall of the sum."""
    expected = f"sum by (event) (rate(ray_justitia_leases_total{{{ALL}}}[$__rate_interval]))"

    assert expected == per_second(LEASES_TOTAL, "event")


def test_counter_can_be_narrowed_to_a_value_of_a_label() -> None:
    """Leases that are granted and those that expire are of different sizes."""
    expected = f'sum (rate(ray_justitia_leases_total{{{ALL}, event="nacked"}}[5m]))'

    assert expected == per_second(LEASES_TOTAL, window="5m", where={"event": "nacked"})


def test_rise_is_that_of_the_readers_window() -> None:
    """Rare events are counted, not divided by seconds."""
    assert f"sum (increase(ray_justitia_leases_total{{{ALL}}}[$window]))" == rise(LEASES_TOTAL)


def test_quantile_keeps_the_buckets_apart() -> None:
    """Without `le` there is no quantile."""
    expected = (
        "histogram_quantile(0.9, sum by (le, tenant)"
        f" (rate(ray_justitia_completion_seconds_bucket{{{ALL}}}[$window])))"
    )

    assert expected == quantile(0.9, COMPLETION_SECONDS, "tenant")


def test_quantile_of_a_counter_with_buckets_is_one_of_its_own_series() -> None:
    """Decisions are counted by `le` in the scheduler; no observation is made of each."""
    expected = (
        "histogram_quantile(0.99, sum by (le)"
        f" (rate(ray_justitia_decisions_total{{{ALL}}}[$window])))"
    )

    assert expected == quantile(0.99, DECISIONS_TOTAL)


def test_least_and_greatest_are_of_all_or_each() -> None:
    """One model without a store is what an operator has to see."""
    assert f"min(ray_justitia_store_reachable{{{ALL}}})" == least(STORE_REACHABLE)
    assert f"max by (model) (ray_justitia_held_leases{{{ALL}}})" == greatest(HELD_LEASES, "model")


def test_values_of_a_histogram_are_counted() -> None:
    """A quantile of three values is none."""
    expected = f"sum (increase(ray_justitia_completion_seconds_count{{{ALL}}}[$window]))"

    assert expected == seen(COMPLETION_SECONDS)


def test_label_that_a_metric_has_not_is_refused() -> None:
    """It would give one curve, named after nothing."""
    with pytest.raises(ValueError, match="justitia_waiting_inferences has no label 'tenant'"):
        gauge(WAITING_INFERENCES, "tenant")
    with pytest.raises(ValueError, match="justitia_leases_total has no label 'outcome'"):
        per_second(LEASES_TOTAL, where={"outcome": "finished"})


def test_rate_of_a_gauge_is_refused() -> None:
    """A gauge that falls would count as one that began anew."""
    with pytest.raises(ValueError, match="justitia_waiting_inferences is a gauge, not a counter"):
        per_second(WAITING_INFERENCES)
    with pytest.raises(ValueError, match="justitia_leases_total is a counter, not a gauge"):
        gauge(LEASES_TOTAL)


def test_quantile_of_what_has_no_buckets_is_refused() -> None:
    """There is nothing to take it from."""
    with pytest.raises(ValueError, match="justitia_leases_total has no buckets"):
        quantile(0.5, LEASES_TOTAL)
