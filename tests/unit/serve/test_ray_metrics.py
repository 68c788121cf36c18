"""Metrics exported through Ray: names, values, intervals, and behaviour after errors."""

import asyncio
import logging
import re
from collections.abc import Mapping
from typing import ClassVar

import pytest

from justitia_ray.config import AppConfig
from justitia_ray.observability import metrics as m
from justitia_ray.observability.metrics import TABLE, Metric
from justitia_ray.serve import ray_metrics
from justitia_ray.serve.ray_metrics import Exporter, RayMetrics, new_measures
from tests.eventually import eventually
from tests.unit.observability.recording_backend import RecordingBackend


@pytest.mark.parametrize("metric", TABLE, ids=lambda metric: metric.name)
def test_every_metric_of_the_table_can_be_created_in_ray(metric: Metric) -> None:
    """Ray refuses descriptions that are not ASCII and bucket limits of 0."""
    backend, labels = RayMetrics(), dict.fromkeys(metric.labels, "x")

    if metric.kind == "counter":
        backend.raise_counter(metric, labels, 1)
    elif metric.kind == "gauge":
        backend.set_gauge(metric, labels, 1.0)
    else:
        backend.set_histogram(metric, labels, [1] * (len(metric.buckets) + 1), 1.0)


class _Gauge:
    """Fake Ray gauge that stores its values by name and by the upper end of a bucket."""

    told: ClassVar[dict[str, dict[str, float]]] = {}

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
        self._name = name
        self._labels = tag_keys

    def set(self, value: float, tags: Mapping[str, str]) -> None:
        assert tuple(tags) == self._labels
        self.told.setdefault(self._name, {})[tags.get("le", "")] = value


_BUCKET = "justitia_accounts_exchange_seconds_bucket"
_LE = ("0.001", "0.0025", "0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "1.0", "5.0", "+Inf")


@pytest.fixture
def gauge_values(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, float]]:
    monkeypatch.setattr(ray_metrics, "Gauge", _Gauge)
    monkeypatch.setattr(_Gauge, "told", {})
    return _Gauge.told


def test_histogram_has_prometheus_bucket_series(gauge_values: dict[str, dict[str, float]]) -> None:
    """Dashboards and alerts select cumulative buckets.

    Each bucket is a separate name for Ray, whose agent accepts 2,000 series per name. The exporter
    joins underscores, which makes them one name.
    """
    labels = dict.fromkeys(m.ACCOUNTS_EXCHANGE_SECONDS.labels, "x")
    counts = [2, 0, 1, *[0] * 7, 4]
    RayMetrics().set_histogram(m.ACCOUNTS_EXCHANGE_SECONDS, labels, counts, 25.5)

    assert {"": 7} == gauge_values.pop("justitia_accounts_exchange_seconds_count")
    assert {"": 25.5} == gauge_values.pop("justitia_accounts_exchange_seconds_sum")
    assert {_BUCKET} == {re.sub("_+", "_", name) for name in gauge_values}
    buckets = [bucket for name in gauge_values.values() for bucket in name.items()]
    assert list(zip(_LE, [2, 2, *[3] * 8, 7], strict=True)) == buckets
    assert len(gauge_values) == len(_LE)


def test_metric_has_a_single_name_without_open_telemetry(
    gauge_values: dict[str, dict[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_enable_open_telemetry", "0")
    labels = dict.fromkeys(m.ACCOUNTS_EXCHANGE_SECONDS.labels, "x")
    RayMetrics().set_histogram(m.ACCOUNTS_EXCHANGE_SECONDS, labels, [1] * len(_LE), 0.0)

    assert set(_LE) == gauge_values[_BUCKET].keys()


_ARGS = {"name": "app", "model": {"name": "m", "path": "none"}}


def test_metrics_have_the_configured_labels_and_bounds() -> None:
    """One Prometheus distinguishes applications, and models of one application."""
    config = AppConfig.parse(_ARGS | {"metrics": {"max_classes": 1}})
    measures = new_measures(config, "replica", "r7")

    assert {"application": "app", "model": "m", "replica": "r7"} == (
        measures.gauge(m.HELD_LEASES).labels
    )
    assert ["a", "other"] == [measures.label("application_class", name) for name in ("a", "b")]


def test_failing_metrics_export_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The counts of a failed export are exported later.

    A failure after a success is logged again.
    """
    fails = True

    def fail_if_told() -> None:
        if fails:
            raise ValueError("bad")

    measures, taken = new_measures(AppConfig.parse(_ARGS), "predictor"), RecordingBackend()
    exporter = Exporter(measures, fail_if_told, taken, 1.0)
    exporter.export()
    exporter.export()
    assert 1 == len(caplog.records)
    assert logging.ERROR == caplog.records[0].levelno
    assert taken.calls > 0
    fails = False
    exporter.export()
    fails = True
    exporter.export()

    assert 2 == len(caplog.records)


async def test_stopping_metrics_exporter_sends_all_values_once() -> None:
    """An orderly end loses no value, and a replaced scheduler reports its state once."""
    looks: list[int] = []
    measures = new_measures(AppConfig.parse(_ARGS), "scheduler")
    taken = RecordingBackend()
    exporter = Exporter(measures, lambda: looks.append(1), taken, 1e-9)
    exporter.start()
    await eventually(lambda: bool(looks), "it runs")
    measures.counter(m.LEASES_TOTAL, "granted").increase(7)
    exporter.end()
    told = len(looks)
    exporter.end()
    for _ in range(10):
        await asyncio.sleep(0)

    assert 7 == taken.counts["leases_total", "granted"]
    assert told == len(looks)
