"""PromQL expressions built from the table of metrics."""

from collections.abc import Callable

import pytest

from deployments.monitoring.promql import (
    gauge,
    greatest,
    least,
    per_second,
    quantile,
    rise,
    seen,
)
from justitia_ray.observability.metrics import (
    COMPLETION_SECONDS,
    DECISIONS_TOTAL,
    HELD_LEASES,
    LEASES_TOTAL,
    STORE_REACHABLE,
    WAITING_INFERENCES,
)

ALL = (
    'ray_io_cluster=~"$Cluster", SessionName=~"$SessionName",'
    ' application=~"$application", model=~"$model"'
)


RATE = f"rate(ray_justitia_leases_total{{{ALL}}}[$__rate_interval])"
BUCKETS = f"rate(ray_justitia_completion_seconds_bucket{{{ALL}}}[$window])"


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        pytest.param(
            gauge(WAITING_INFERENCES, "model"),
            "sum by (model) (max by (ray_io_cluster, SessionName, application, model)"
            f" (ray_justitia_waiting_inferences{{{ALL}}}))",
            id="a dead scheduler's last value is exported beside its successor's",
        ),
        pytest.param(
            gauge(HELD_LEASES),
            "sum (max by (ray_io_cluster, SessionName, application, model, replica)"
            f" (ray_justitia_held_leases{{{ALL}}}))",
            id="without the label replicas would count as one",
        ),
        pytest.param(
            per_second(LEASES_TOTAL, "event"),
            f"sum by (event) ({RATE})",
            id="before the rate the restart of a process would look as a fall of the sum",
        ),
        pytest.param(
            per_second(LEASES_TOTAL, window="5m", where={"event": "nacked"}),
            f'sum (rate(ray_justitia_leases_total{{{ALL}, event="nacked"}}[5m]))',
            id="leases that are granted and those that expire are of different sizes",
        ),
        pytest.param(
            rise(LEASES_TOTAL),
            f"sum (increase(ray_justitia_leases_total{{{ALL}}}[$window]))",
            id="rare events are counted, not divided by seconds",
        ),
        pytest.param(
            quantile(0.9, COMPLETION_SECONDS, "tenant"),
            f"histogram_quantile(0.9, sum by (le, tenant) ({BUCKETS}))",
            id="without le there is no quantile",
        ),
        pytest.param(
            quantile(0.99, DECISIONS_TOTAL),
            "histogram_quantile(0.99, sum by (le)"
            f" (rate(ray_justitia_decisions_total{{{ALL}}}[$window])))",
            id="decisions are counted by le in the scheduler",
        ),
        pytest.param(
            least(STORE_REACHABLE),
            f"min(ray_justitia_store_reachable{{{ALL}}})",
            id="one model without a store is what an operator has to see",
        ),
        pytest.param(
            greatest(HELD_LEASES, "model"),
            f"max by (model) (ray_justitia_held_leases{{{ALL}}})",
            id="the greatest of each",
        ),
        pytest.param(
            seen(COMPLETION_SECONDS),
            f"sum (increase(ray_justitia_completion_seconds_count{{{ALL}}}[$window]))",
            id="a quantile of three values is none",
        ),
    ],
)
def test_promql_query_follows_from_the_kind_of_metric(built: str, expected: str) -> None:
    assert expected == built


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: gauge(WAITING_INFERENCES, "tenant"), "waiting_inferences has no label 'tenant'"),
        (
            lambda: per_second(LEASES_TOTAL, where={"outcome": "finished"}),
            "leases_total has no label 'outcome'",
        ),
        (lambda: per_second(WAITING_INFERENCES), "waiting_inferences is a gauge, not a counter"),
        (lambda: gauge(LEASES_TOTAL), "leases_total is a counter, not a gauge"),
        (lambda: quantile(0.5, LEASES_TOTAL), "leases_total has no buckets"),
    ],
)
def test_meaningless_promql_query_is_refused(build: Callable[[], str], said: str) -> None:
    """A query that lacks a label, or takes the rate of a gauge, would show wrong figures."""
    with pytest.raises(ValueError, match=f"justitia_{said}"):
        build()
