"""PromQL from the table of metrics; labels and kinds that a metric lacks are refused.

Ray's exporter gives each process its own series, and a restarted process begins new ones. Counters
are therefore summed after taking the rate. For a gauge, the maximum over the processes that
describe the same object counts, because a dead process's value is exported for 20 s more.
"""

from collections.abc import Mapping
from types import MappingProxyType

from justitia_ray.observability.metrics import EXPORTED_PREFIX, Metric

CLUSTER_LABELS = ("ray_io_cluster", "SessionName")
"""Labels that identify a Ray cluster; only KubeRay's PodMonitors set `ray_io_cluster`."""
VARIABLES: Mapping[str, str] = MappingProxyType(
    {
        "ray_io_cluster": "Cluster",
        "SessionName": "SessionName",
        "application": "application",
        "model": "model",
    }
)
"""Name of the dashboard's variable that filters by each label."""
STEP = "$__rate_interval"
"""Grafana's shortest window that contains two scrapes of Prometheus."""
WINDOW = "$window"
"""Time window that the reader chooses in the dashboard for rates and quantiles."""
RANGE = "$__range"
"""Grafana's variable for the time range on the screen."""

_EVERYTHING: Mapping[str, str] = MappingProxyType({})


def gauge(metric: Metric, *by: str) -> str:
    """Return PromQL for the value of a gauge, summed over all labels that are not in `by`."""
    _check(metric, "gauge", by)
    one_thing = ", ".join((*CLUSTER_LABELS, *metric.labels))
    highest = f"max by ({one_thing}) ({_selected(metric)})"
    return f"{_sum(by)} ({highest})"


def least(metric: Metric) -> str:
    """Return PromQL for the minimum over all series of a gauge."""
    _check(metric, "gauge", ())
    return f"min({_selected(metric)})"


def greatest(metric: Metric, *by: str) -> str:
    """Return PromQL for the maximum of a gauge, for gauges that must not be summed."""
    _check(metric, "gauge", by)
    return f"max{_by(by)} ({_selected(metric)})"


def per_second(
    metric: Metric, *by: str, window: str = STEP, where: Mapping[str, str] = _EVERYTHING
) -> str:
    """Return PromQL for the rate of a counter per second.

    Args:
        metric: The counter.
        by: Labels of the result.
        window: The time over which the mean is taken.
        where: Values of labels: nothing else is counted.
    """
    _check(metric, "counter", (*by, *where))
    return f"{_sum(by)} (rate({_selected(metric, where=where)}[{window}]))"


def rise(metric: Metric, *by: str, window: str = WINDOW) -> str:
    """Return PromQL for the increase of a counter in the window."""
    _check(metric, "counter", by)
    return f"{_sum(by)} (increase({_selected(metric)}[{window}]))"


def quantile(share: float, metric: Metric, *by: str) -> str:
    """Return PromQL for a quantile of a histogram over the window."""
    suffix = "_bucket" if metric.kind == "histogram" else ""
    _check(metric, metric.kind, by)
    if not suffix and "le" not in metric.labels:
        raise ValueError(f"{metric.name} has no buckets")
    buckets = f"rate({_selected(metric, suffix)}[{WINDOW}])"
    return f"histogram_quantile({share:g}, {_sum(('le', *by))} ({buckets}))"


def seen(metric: Metric, *by: str) -> str:
    """Return PromQL for the number of values that a histogram recorded in the window."""
    _check(metric, "histogram", by)
    return f"{_sum(by)} (increase({_selected(metric, '_count')}[{WINDOW}]))"


def _selected(metric: Metric, suffix: str = "", where: Mapping[str, str] = _EVERYTHING) -> str:
    filters = [f'{label}=~"${name}"' for label, name in VARIABLES.items()]
    filters += [f'{label}="{value}"' for label, value in where.items()]
    return f"{EXPORTED_PREFIX}{metric.name}{suffix}{{{', '.join(filters)}}}"


def _sum(by: tuple[str, ...]) -> str:
    return f"sum{_by(by)}"


def _by(labels: tuple[str, ...]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""


def _check(metric: Metric, kind: str, labels: tuple[str, ...]) -> None:
    if metric.kind != kind:
        raise ValueError(f"{metric.name} is a {metric.kind}, not a {kind}")
    unknown = [label for label in labels if label not in metric.labels]
    if unknown:
        raise ValueError(f"{metric.name} has no label {unknown[0]!r}: {', '.join(metric.labels)}")
