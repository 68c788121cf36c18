"""PromQL from the table of metrics; labels and kinds that a metric lacks are refused.

Ray's exporter gives each process its own series, and a restarted process begins new ones. Counters
are therefore summed after taking the rate. For a gauge, the maximum over the processes that
describe the same object counts, because a dead process's value is exported for 20 s more.
"""

from collections.abc import Mapping
from types import MappingProxyType

from justitia_ray.observability.metrics import EXPORTED_PREFIX, Metric

CLUSTER_LABELS = ("ray_io_cluster", "SessionName")
"""Labels of the Ray cluster; KubeRay's PodMonitors add the first, which is missing elsewhere."""
VARIABLES: Mapping[str, str] = MappingProxyType(
    {
        "ray_io_cluster": "Cluster",
        "SessionName": "SessionName",
        "application": "application",
        "model": "model",
    }
)
"""Dashboard variable for each label to filter by; the first two are named as in Ray's
dashboards."""
STEP = "$__rate_interval"
"""Shortest window that contains two scrapes; curves over it are as fine as the data."""
WINDOW = "$window"
"""Window chosen by the reader; in a short one, no application may have ended."""
RANGE = "$__range"
"""Time range shown on the screen."""

_EVERYTHING: Mapping[str, str] = MappingProxyType({})


def gauge(metric: Metric, *by: str) -> str:
    """Return the value of a gauge, summed over the labels that are not in `by`."""
    _check(metric, "gauge", by)
    one_thing = ", ".join((*CLUSTER_LABELS, *metric.labels))
    highest = f"max by ({one_thing}) ({_selected(metric)})"
    return f"{_sum(by)} ({highest})"


def least(metric: Metric) -> str:
    """Return the minimum of a gauge: 0 if one of several series is 0."""
    _check(metric, "gauge", ())
    return f"min({_selected(metric)})"


def greatest(metric: Metric, *by: str) -> str:
    """Return the maximum of a gauge whose sum would be meaningless."""
    _check(metric, "gauge", by)
    return f"max{_by(by)} ({_selected(metric)})"


def per_second(
    metric: Metric, *by: str, window: str = STEP, where: Mapping[str, str] = _EVERYTHING
) -> str:
    """Return the per-second rise of a counter.

    Args:
        metric: The counter.
        by: Labels of the result.
        window: The time over which the mean is taken.
        where: Values of labels: nothing else is counted.
    """
    _check(metric, "counter", (*by, *where))
    return f"{_sum(by)} (rate({_selected(metric, where=where)}[{window}]))"


def rise(metric: Metric, *by: str, window: str = WINDOW) -> str:
    """Return the rise of a counter in the window."""
    _check(metric, "counter", by)
    return f"{_sum(by)} (increase({_selected(metric)}[{window}]))"


def quantile(share: float, metric: Metric, *by: str) -> str:
    """Return a quantile over the window, of a histogram or a counter with cumulative `le`."""
    suffix = "_bucket" if metric.kind == "histogram" else ""
    _check(metric, metric.kind, by)
    if not suffix and "le" not in metric.labels:
        raise ValueError(f"{metric.name} has no buckets")
    buckets = f"rate({_selected(metric, suffix)}[{WINDOW}])"
    return f"histogram_quantile({share:g}, {_sum(('le', *by))} ({buckets}))"


def seen(metric: Metric, *by: str) -> str:
    """Return the number of values that a histogram recorded in the window."""
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
