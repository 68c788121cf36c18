"""Metrics backend that stores exported values, and an application's end for tests."""

from collections.abc import Mapping, Sequence

from justitia_ray.core.actions import EndApplication, Lag
from justitia_ray.core.entities import Outcome
from justitia_ray.observability.measures import Measures
from justitia_ray.observability.metrics import Metric, SetBy

COMMON = {"application": "app", "model": "m", "replica": "r"}


ENDED = EndApplication(
    application_id="a",
    application_class="vote",
    tenant="t",
    ingress_id="i",
    outcome=Outcome.FINISHED,
    predicted_kv_token_time=100,
    kv_token_time=50,
    virtual_finish_time=1_000.0,
    arrived_at=10.0,
    first_dispatched_at=11.0,
    ended_at=14.5,
    inferences=1,
    failed=0,
    output_tokens=4,
    settlements=0,
    lag=Lag(90, -2.0, 100, 5.0),
    recognized_by="metadata",
)


class RecordingBackend:
    """Backend that sums counters and stores gauges and histograms by name and labels."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, ...], float] = {}
        self.gauges: dict[tuple[str, ...], float] = {}
        self.histograms: dict[tuple[str, ...], tuple[int, float]] = {}
        """Number of values and their sum, by name and labels."""
        self.buckets: dict[tuple[str, ...], list[int]] = {}
        """Number of values in each bucket (not cumulative), by name and labels."""
        self.calls = 0

    def raise_counter(self, metric: Metric, labels: Mapping[str, str], amount: float) -> None:
        key = self._short_key(metric, labels)
        self.counts[key] = self.counts.get(key, 0) + amount

    def set_gauge(self, metric: Metric, labels: Mapping[str, str], value: float) -> None:
        self.gauges[self._short_key(metric, labels)] = value

    def set_histogram(
        self, metric: Metric, labels: Mapping[str, str], counts: Sequence[int], total: float
    ) -> None:
        key = self._short_key(metric, labels)
        self.histograms[key] = sum(counts), total
        self.buckets[key] = list(counts)

    def _short_key(self, metric: Metric, labels: Mapping[str, str]) -> tuple[str, ...]:
        assert tuple(labels) == metric.labels
        self.calls += 1
        own = (value for name, value in labels.items() if name not in COMMON)
        return (metric.name.removeprefix("justitia_"), *own)


def new_measures(set_by: SetBy, max_classes: int = 15, max_tenants: int = 15) -> Measures:
    return Measures(set_by, COMMON, max_classes, max_tenants)


def export_once(source: Measures) -> RecordingBackend:
    taken = RecordingBackend()
    source.export(taken)
    return taken
