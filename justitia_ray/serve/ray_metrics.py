"""Export the table's metrics through Ray's metrics library.

Ray's exporter publishes them on every node. `ray.util.metrics` is used in Serve's replicas too:
Serve's own metrics add the labels `application` and `replica` automatically, but the scheduler is
no replica and has to set `application` itself.

Histograms are exported as gauges with the names that Prometheus gives their series. Ray's own
histograms would cost 10 µs per value. Ray's agent takes 8 µs of that to insert every value into a
Python histogram once more, at the middle of its bucket, so that the sums are wrong too.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from ray.util.metrics import Counter, Gauge

from justitia_ray.config import AppConfig
from justitia_ray.observability.measures import Measures, MetricsBackend
from justitia_ray.observability.metrics import Metric, SetBy
from justitia_ray.units import ReplicaId, Seconds

logger = logging.getLogger("ray.serve")

_ASCII = str.maketrans({"·": "*", "−": "-"})
_LE = "le"
"""Label of a histogram bucket, with the bucket's upper limit."""
_OPEN_TELEMETRY = "RAY_enable_open_telemetry"


class RayMetrics:
    """Backend that creates Ray's metrics on first use; one per process."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}
        self._joins_underscores = os.environ.get(_OPEN_TELEMETRY, "1").lower() in ("1", "true")

    def raise_counter(self, metric: Metric, labels: Mapping[str, str], amount: float) -> None:
        """Increase a counter; 0 creates its series, so that the first increase is visible."""
        counter = self._metric_for(Counter, metric)
        if amount:
            counter.inc(amount, dict(labels))
        else:  # Ray's `inc` refuses 0, while the exporter accepts it.
            counter._record(0.0, dict(labels))

    def set_gauge(self, metric: Metric, labels: Mapping[str, str], value: float) -> None:
        self._metric_for(Gauge, metric).set(value, dict(labels))

    def set_histogram(
        self, metric: Metric, labels: Mapping[str, str], counts: Sequence[int], total: float
    ) -> None:
        """Set the buckets of a histogram; call it regularly, because Ray drops old series."""
        upper_ends = (*(str(bound) for bound in metric.buckets), "+Inf")
        so_far = 0
        for index, (le, so_far) in enumerate(zip(upper_ends, accumulate(counts), strict=True)):
            bucket = self._histogram_series(
                metric, self._bucket_suffix(index), (*metric.labels, _LE)
            )
            bucket.set(so_far, {**labels, _LE: le})
        self._histogram_series(metric, "_count", metric.labels).set(so_far, dict(labels))
        self._histogram_series(metric, "_sum", metric.labels).set(total, dict(labels))

    def _bucket_suffix(self, index: int) -> str:
        """Return the suffix of the name of a histogram's bucket in Ray.

        Each bucket has a different name, because OpenTelemetry accepts 2,000 series per name from
        all processes of a node and merges further series. The names differ only in underscores:
        OpenTelemetry's exporter for Prometheus replaces several underscores by one, so the exported
        names are equal.
        """
        return "_" * (index + 1 if self._joins_underscores else 1) + "bucket"

    def _metric_for(self, kind: Callable[..., Any], metric: Metric) -> Any:
        """Return Ray's metric for a metric of the table, created on first use."""
        return self._made.get(metric.name) or self._make_metric(
            kind, metric.name, metric, metric.labels
        )

    def _histogram_series(self, metric: Metric, suffix: str, labels: tuple[str, ...]) -> Any:
        """Return Ray's gauge for a series of a histogram, created on first use."""
        name = metric.name + suffix
        return self._made.get(name) or self._make_metric(Gauge, name, metric, labels)

    def _make_metric(
        self, kind: Callable[..., Any], name: str, metric: Metric, labels: tuple[str, ...]
    ) -> Any:
        # Ray raises an error for any other character in a name.
        ascii_text = metric.description.translate(_ASCII).encode("ascii", "replace").decode()
        made = self._made[name] = kind(name, ascii_text, tag_keys=labels)
        return made


def new_measures(config: AppConfig, set_by: SetBy, replica_id: ReplicaId = "") -> Measures:
    """Return the measures of a process for one model, with the labels of process and model.

    Args:
        config: Arguments of the model.
        set_by: Kind of the process.
        replica_id: Serve's id of the process, if its metrics have the label `replica`; else empty.
    """
    common = {"application": config.name, "model": config.model.name}
    if replica_id:
        common["replica"] = replica_id
    section = config.metrics
    return Measures(set_by, common, section.max_classes, section.max_tenants)


class Exporter:
    """Periodically exports all metrics of a process; errors are logged and otherwise ignored.

    Args:
        measures: Series to export.
        set_gauges: Called before each export.
        backend: Library that receives the series.
        interval_s: Time between exports.
    """

    def __init__(
        self,
        measures: Measures,
        set_gauges: Callable[[], None],
        backend: MetricsBackend,
        interval_s: Seconds,
    ) -> None:
        self._measures = measures
        self._set_gauges = set_gauges
        self._backend = backend
        self._interval_s = interval_s
        self._failed = False
        self._exporting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to export on the running event loop, until `end` is called."""
        self._exporting = asyncio.get_running_loop().create_task(self._export_periodically())

    def end(self) -> None:
        """Stop exporting, after a last time that loses no counts; a second call does nothing."""
        if self._exporting is not None:
            self._exporting.cancel()
            self._exporting = None
            self.export()

    async def _export_periodically(self) -> None:
        while True:
            self.export()
            await asyncio.sleep(self._interval_s)

    def export(self) -> None:
        """Export all series once, counters even if a gauge fails."""
        failures: list[Exception] = []
        for step in (self._set_gauges, partial(self._measures.export, self._backend)):
            try:
                step()
            except Exception as error:
                failures.append(error)
        if failures and not self._failed:  # only the first of several failures is logged
            logger.error("metrics.export_failed", exc_info=failures[0])
        self._failed = bool(failures)
