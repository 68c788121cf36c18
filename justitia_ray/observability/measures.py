"""Metric series of a process: plain numbers that an exporter reads periodically.

Counting adds to one number, and observing a value adds to the number of its bucket: cheap enough
for every event. The cost of an export is paid once for all events since the last export.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Protocol, TypeVar

from justitia_ray.core.tenant_rows import TenantRows
from justitia_ray.observability.metrics import BOUNDED_LABELS, LABEL_VALUES, TABLE, Metric, SetBy

OTHER = "other"
"""Label value of all classes and tenants beyond the configured limit."""


class MetricsBackend(Protocol):
    """Interface of the metrics library to which series are exported."""

    def raise_counter(self, metric: Metric, labels: Mapping[str, str], amount: float) -> None:
        """Increase a counter; an amount of 0 creates the series."""

    def set_gauge(self, metric: Metric, labels: Mapping[str, str], value: float) -> None: ...

    def set_histogram(
        self, metric: Metric, labels: Mapping[str, str], counts: Sequence[int], total: float
    ) -> None:
        """Set a histogram's bucket counts and its sum to their current totals.

        Args:
            metric: The histogram.
            labels: Labels of the series.
            counts: Number of values in each bucket, not cumulative; the last bucket has no upper
                limit.
            total: Sum of all values.
        """


@dataclass(slots=True)
class CounterSeries:
    """A counter, for one combination of label values."""

    metric: Metric
    labels: Mapping[str, str]
    _total: float = 0
    _exported_total: float | None = None

    def increase(self, amount: float = 1) -> None:
        self._total += amount

    def set_total(self, total: float) -> None:
        """Set the total from a counter that is kept outside this module."""
        self._total = total

    def export(self, backend: MetricsBackend) -> None:
        """Export the counter's increase since the last export; the first export creates the series.

        Prometheus's `rate` includes the first increase of a series only if the series was scraped
        as 0 before.
        """
        new = self._total - (self._exported_total or 0)
        if new > 0 or self._exported_total is None:
            backend.raise_counter(self.metric, self.labels, max(0, new))
            self._exported_total = self._total


@dataclass(slots=True)
class GaugeSeries:
    metric: Metric
    labels: Mapping[str, str]
    value: float | None = None
    """Current value of the gauge; None: not set yet, and not exported."""

    def export(self, backend: MetricsBackend) -> None:
        if self.value is not None:
            backend.set_gauge(self.metric, self.labels, self.value)


@dataclass(slots=True)
class HistogramSeries:
    metric: Metric
    labels: Mapping[str, str]
    _counts: list[int] = field(init=False)
    """Number of values in each bucket of the histogram; the last bucket has no upper limit."""
    _total: float = 0.0

    def __post_init__(self) -> None:
        self._counts = [0] * (len(self.metric.buckets) + 1)

    def observe(self, value: float) -> None:
        """Record one value; negative values add 0 to the histogram's sum."""
        self._counts[bisect_left(self.metric.buckets, value)] += 1
        if value > 0:
            self._total += value

    def export(self, backend: MetricsBackend) -> None:
        """Export all recorded values of the histogram, also if none is new."""
        backend.set_histogram(self.metric, self.labels, tuple(self._counts), self._total)


Series = TypeVar("Series", CounterSeries, GaugeSeries, HistogramSeries)


class Measures:
    """All metric series of a process for one model.

    Series whose labels are known exist from the start; their counters are exported as 0.

    Args:
        set_by: Kind of the process.
        common: Labels that all series of the process have.
        max_classes: Maximum number of application classes with their own series; further classes
            share the series `other`.
        max_tenants: The same limit for tenants, and for nodes of their tree.
    """

    def __init__(
        self,
        set_by: SetBy,
        common: Mapping[str, str],
        max_classes: int,
        max_tenants: int,
    ) -> None:
        self._common = dict(common)
        bounds = zip(BOUNDED_LABELS, (max_classes, max_tenants, max_tenants), strict=True)
        self._rows = {label: TenantRows(most, OTHER) for label, most in bounds}
        self._series: dict[tuple[str, ...], CounterSeries | GaugeSeries | HistogramSeries] = {}
        for metric in TABLE:
            if metric.set_by == set_by and metric.kind == "counter":
                own = [LABEL_VALUES.get(label, ()) for label in self._own_labels(metric)]
                for values in product(*own):
                    self.counter(metric, *values)

    def counter(self, metric: Metric, *values: str) -> CounterSeries:
        """Return the series of a counter, created at its first use.

        Args:
            metric: The counter.
            values: Values of the labels that are not common, in the order of the table.
        """
        return self._find_or_create(metric, values, CounterSeries)

    def gauge(self, metric: Metric, *values: str) -> GaugeSeries:
        """Return the series of a gauge, created at its first use."""
        return self._find_or_create(metric, values, GaugeSeries)

    def histogram(self, metric: Metric, *values: str) -> HistogramSeries:
        """Return the series of a histogram, created at its first use."""
        return self._find_or_create(metric, values, HistogramSeries)

    def label(self, name: str, value: str) -> str:
        """Return the label value of a class, tenant or node; `other` beyond the limit."""
        return self._rows[name].name_of(value)

    def export(self, backend: MetricsBackend) -> None:
        """Export every series; an error of one series does not stop the others.

        Raises:
            Exception: The first exception of the backend.
        """
        failures: list[Exception] = []
        for series in list(self._series.values()):
            try:
                series.export(backend)
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _find_or_create(
        self, metric: Metric, values: tuple[str, ...], kind: type[Series]
    ) -> Series:
        key = (metric.name, *values)
        series = self._series.get(key)
        if series is None:
            labels = self._common | dict(zip(self._own_labels(metric), values, strict=True))
            series = kind(metric, {label: labels[label] for label in metric.labels})
            self._series[key] = series
        assert isinstance(series, kind)
        return series

    def _own_labels(self, metric: Metric) -> list[str]:
        return [label for label in metric.labels if label not in self._common]
