"""PromQL over the table of metrics; labels and kinds that a metric lacks are refused.

Ray's exporter puts each process into series of its own, and a process that is started again begins
new ones. A counter is therefore added up after its rate is taken; of a gauge
the greatest value counts among the processes that describe one thing, for a dead one's value is
exported for 20 s more.
"""

from collections.abc import Mapping
from types import MappingProxyType

from justitia_ray.observability.metrics import EXPORTED_PREFIX, Metric

CLUSTER_LABELS = ("ray_io_cluster", "SessionName")
"""Labels of the Ray cluster: PodMonitors of KubeRay add the first, which is missing elsewhere."""
VARIABLES: Mapping[str, str] = MappingProxyType(
    {
        "ray_io_cluster": "Cluster",
        "SessionName": "SessionName",
        "application": "application",
        "model": "model",
    }
)
"""The dashboard's variable for each label to filter by; the first two as in Ray's own."""
STEP = "$__rate_interval"
"""The shortest window with two scrapes in it; a curve of it is as fine as the data."""
WINDOW = "$window"
"""The reader's choice: in a short one nothing may have ended."""
RANGE = "$__range"
"""The time range on the screen."""

_EVERYTHING: Mapping[str, str] = MappingProxyType({})


def gauge(metric: Metric, *by: str) -> str:
    """Return the value of a gauge, added up over the labels that are not in `by`."""
    _check(metric, "gauge", by)
    one_thing = ", ".join((*CLUSTER_LABELS, *metric.labels))
    highest = f"max by ({one_thing}) ({_selected(metric)})"
    return f"{_sum(by)} ({highest})"


def least(metric: Metric) -> str:
    """Return the least value of a gauge: 0 if one of several says 0."""
    _check(metric, "gauge", ())
    return f"min({_selected(metric)})"


def greatest(metric: Metric, *by: str) -> str:
    """Return the greatest value of a gauge, where a sum would mean nothing."""
    _check(metric, "gauge", by)
    return f"max{_by(by)} ({_selected(metric)})"


def per_second(
    metric: Metric, *by: str, window: str = STEP, where: Mapping[str, str] = _EVERYTHING
) -> str:
    """Return the rise of a counter each second.

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
    """Return a quantile, over the window, of a histogram or a counter with cumulative `le`."""
    suffix = "_bucket" if metric.kind == "histogram" else ""
    _check(metric, metric.kind, by)
    if not suffix and "le" not in metric.labels:
        raise ValueError(f"{metric.name} has no buckets")
    buckets = f"rate({_selected(metric, suffix)}[{WINDOW}])"
    return f"histogram_quantile({share:g}, {_sum(('le', *by))} ({buckets}))"


def seen(metric: Metric, *by: str) -> str:
    """Return the number of values that a histogram recorded within the window."""
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
