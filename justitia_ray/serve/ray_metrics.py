"""The metrics of the table as Ray's, which its exporter serves on every node.

Those of `ray.util.metrics`, in Serve's replicas too: Serve's own add the labels `application` and
`replica` by themselves, but the scheduler is no replica and has to set `application` itself.
"""

from collections.abc import Mapping

from ray.util.metrics import Counter, Gauge, Histogram

from justitia_ray.observability.metrics import Metric


class RayMetrics:
    """A `Backend`: makes a metric of Ray's when it is first used; one for a process is enough."""

    def __init__(self) -> None:
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}

    def add(self, metric: Metric, labels: Mapping[str, str], amount: float) -> None:
        """Raise a counter; by 0 to let it exist, so that its first rise is seen as one."""
        counter = self._counters.get(metric.name)
        if counter is None:
            counter = Counter(metric.name, _ascii(metric.description), metric.labels)
            self._counters[metric.name] = counter
        if amount:
            counter.inc(amount, dict(labels))
        else:  # `inc` refuses 0, the exporter does not
            counter._record(0.0, dict(labels))

    def set(self, metric: Metric, labels: Mapping[str, str], value: float) -> None:
        """Set a gauge."""
        gauge = self._gauges.get(metric.name)
        if gauge is None:
            gauge = Gauge(metric.name, _ascii(metric.description), metric.labels)
            self._gauges[metric.name] = gauge
        gauge.set(value, dict(labels))

    def observe(self, metric: Metric, labels: Mapping[str, str], value: float) -> None:
        """Put one value into a histogram; Ray would drop one below 0."""
        histogram = self._histograms.get(metric.name)
        if histogram is None:
            description, buckets = _ascii(metric.description), list(metric.buckets)
            histogram = Histogram(metric.name, description, buckets, metric.labels)
            self._histograms[metric.name] = histogram
        histogram.observe(max(0.0, value), dict(labels))


_ASCII = str.maketrans({"·": "*", "−": "-"})


def _ascii(description: str) -> str:
    """Return a description as Ray's metrics take it: they raise on any other character."""
    return description.translate(_ASCII).encode("ascii", "replace").decode()
