"""Quantiles side by side, as several rows show them."""

from justitia_ray.observability.grafana import Query
from justitia_ray.observability.metrics import Metric
from justitia_ray.observability.promql import quantile


def quantiles(metric: Metric, label: str, *shares: float) -> tuple[Query, ...]:
    """Return quantiles of a metric by a label: `p50 {{label}}`, `p90 {{label}}`."""
    return tuple(
        Query(quantile(share, metric, label), f"p{100 * share:g} {{{{{label}}}}}")
        for share in shares
    )
