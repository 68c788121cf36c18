"""What is measured between two exports: plain numbers, which an exporter takes from time to time.

To count is an integer's addition, and to observe an append to a list: cheap enough to be done with
every event. What an export costs is paid once for all that happened since the last one.
"""

from collections.abc import Mapping
from typing import Protocol

from justitia_ray.observability.metrics import BOUNDED_LABELS, LABEL_VALUES, TABLE, Metric, SetBy

OTHER = "other"
"""What classes and tenants beyond the bound are called; it takes nobody's place."""


class Backend(Protocol):
    """Where measures go: the metrics library of the process."""

    def add(self, metric: Metric, labels: Mapping[str, str], amount: float) -> None:
        """Raise a counter; by 0 to let it exist."""

    def set(self, metric: Metric, labels: Mapping[str, str], value: float) -> None:
        """Set a gauge."""

    def observe(self, metric: Metric, labels: Mapping[str, str], value: float) -> None:
        """Put one value into a histogram; below 0 it counts as 0."""


class Count:
    """One series of a counter."""

    __slots__ = ("_exported", "_told", "_total", "labels", "metric")

    def __init__(self, metric: Metric, labels: Mapping[str, str]) -> None:
        self.metric = metric
        self.labels = labels
        self._total: float = 0
        self._told: float = 0
        self._exported = False

    def add(self, amount: float = 1) -> None:
        """So many more."""
        self._total += amount

    def reach(self, total: float) -> None:
        """So many since the start, as somebody else counts, who began when this did."""
        self._total = total

    def export(self, backend: Backend) -> None:
        """Tell what is new; the first time also if that is 0.

        A rate sees the first rise of a series only if the series was scraped before it: one that
        is declared some scrapes before it rises, as 0.
        """
        new = self._total - self._told
        if new > 0 or not self._exported:
            backend.add(self.metric, self.labels, max(0, new))
            self._told, self._exported = self._total, True


class Gauge:
    """One series of a gauge."""

    __slots__ = ("labels", "metric", "value")

    def __init__(self, metric: Metric, labels: Mapping[str, str]) -> None:
        self.metric = metric
        self.labels = labels
        self.value: float | None = None
        """None: not known yet."""

    def export(self, backend: Backend) -> None:
        """Tell the value, as it is now."""
        if self.value is not None:
            backend.set(self.metric, self.labels, self.value)


class Observations:
    """One series of a histogram."""

    __slots__ = ("_new", "labels", "metric")

    def __init__(self, metric: Metric, labels: Mapping[str, str]) -> None:
        self.metric = metric
        self.labels = labels
        self._new: list[float] = []

    def add(self, value: float) -> None:
        """One more."""
        self._new.append(value)

    def export(self, backend: Backend) -> None:
        """Tell those that are new; those that fail are lost, lest they pile up."""
        if self._new:
            values, self._new = self._new, []
            for value in values:
                backend.observe(self.metric, self.labels, value)


class Measures:
    """The series of one process and one model."""

    def __init__(
        self,
        set_by: SetBy,
        common: Mapping[str, str],
        max_classes: int,
        max_tenants: int,
    ) -> None:
        """Start with all series whose labels are known; those of counters are exported as 0.

        Args:
            set_by: What kind of process this is.
            common: Labels that all its series have, where their metric has them.
            max_classes: Application classes that are told apart; the rest is `other`.
            max_tenants: Tenants that are told apart.
        """
        self._common = dict(common)
        self._told_apart = dict(zip(BOUNDED_LABELS, (max_classes, max_tenants), strict=True))
        self._known: dict[str, set[str]] = {label: {OTHER} for label in BOUNDED_LABELS}
        self._series: dict[tuple[str, ...], Count | Gauge | Observations] = {}
        for metric in TABLE:
            if metric.set_by == set_by and metric.kind == "counter":
                self._declare(metric)

    def count(self, metric: Metric, *values: str) -> Count:
        """Return the series of a counter.

        Args:
            metric: The counter.
            values: Of those of its labels that are not common, in the order of the table.
        """
        series = self._one(metric, values, Count)
        assert isinstance(series, Count)
        return series

    def gauge(self, metric: Metric, *values: str) -> Gauge:
        """Return the series of a gauge; see `count`."""
        series = self._one(metric, values, Gauge)
        assert isinstance(series, Gauge)
        return series

    def observations(self, metric: Metric, *values: str) -> Observations:
        """Return the series of a histogram; see `count`."""
        series = self._one(metric, values, Observations)
        assert isinstance(series, Observations)
        return series

    def label(self, name: str, value: str) -> str:
        """Return what a class or a tenant is called here: its own name, or `other`."""
        known = self._known[name]
        if value in known:
            return value
        if len(known) > self._told_apart[name]:  # `other` is among them
            return OTHER
        known.add(value)
        return value

    def export(self, backend: Backend) -> None:
        """Tell everything that is new, whatever series fails.

        Raises:
            Exception: The first that the backend has raised.
        """
        failures: list[Exception] = []
        for series in list(self._series.values()):
            try:
                series.export(backend)
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _one(
        self,
        metric: Metric,
        values: tuple[str, ...],
        kind: type[Count] | type[Gauge] | type[Observations],
    ) -> Count | Gauge | Observations:
        key = (metric.name, *values)
        series = self._series.get(key)
        if series is None:
            labels = self._common | dict(zip(self._own_labels(metric), values, strict=True))
            series = kind(metric, {label: labels[label] for label in metric.labels})
            self._series[key] = series
        return series

    def _own_labels(self, metric: Metric) -> list[str]:
        return [label for label in metric.labels if label not in self._common]

    def _declare(self, metric: Metric) -> None:
        own = self._own_labels(metric)
        if not own:
            self.count(metric)
        elif len(own) == 1 and own[0] in LABEL_VALUES:
            for value in LABEL_VALUES[own[0]]:
                self.count(metric, value)
