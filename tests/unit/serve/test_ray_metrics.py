"""Metrics through Ray: what its exporter is told, how often, and after which mistakes."""

import asyncio
import logging

import pytest

from justitia_ray.config import AppConfig
from justitia_ray.observability import metrics as m
from justitia_ray.observability.metrics import TABLE, Metric
from justitia_ray.serve.ray_metrics import Exporter, RayMetrics, new_measures
from tests.eventually import eventually
from tests.unit.observability.recording_backend import RecordingBackend


@pytest.mark.parametrize("metric", TABLE, ids=lambda metric: metric.name)
def test_every_metric_of_the_table_can_be_made(metric: Metric) -> None:
    """Ray refuses descriptions that are not ASCII, and boundaries of 0: none would be exported."""
    backend, labels = RayMetrics(), dict.fromkeys(metric.labels, "x")

    if metric.kind == "counter":
        backend.raise_counter(metric, labels, 1)
    elif metric.kind == "gauge":
        backend.set_gauge(metric, labels, 1.0)
    else:
        backend.observe(metric, labels, 1.0)


_ARGS = {"name": "app", "model": {"name": "m", "path": "none"}}


def test_measures_have_the_labels_and_the_bounds_of_the_configuration() -> None:
    """Two applications, or two models of one, are told apart in one Prometheus."""
    config = AppConfig.parse(_ARGS | {"metrics": {"max_classes": 1}})
    measures = new_measures(config, "replica", "r7")

    assert {"application": "app", "model": "m", "replica": "r7"} == (
        measures.gauge(m.HELD_LEASES).labels
    )
    assert ["a", "other"] == [measures.label("application_class", name) for name in ("a", "b")]


def test_failing_look_is_logged_once_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Metrics are for people: without them the service goes on, and what it counts is told.

    A failure that comes after a success is another one.
    """
    fails = True

    def look() -> None:
        if fails:
            raise ValueError("bad")

    measures, taken = new_measures(AppConfig.parse(_ARGS), "predictor"), RecordingBackend()
    exporter = Exporter(measures, look, taken, 1.0)
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


async def test_exporter_that_has_ended_tells_nothing_more() -> None:
    """A scheduler that lost its office says so once, and then its successor speaks."""
    looks: list[int] = []
    measures = new_measures(AppConfig.parse(_ARGS), "scheduler")
    exporter = Exporter(measures, lambda: looks.append(1), RecordingBackend(), 1e-9)
    running = asyncio.create_task(exporter.run())
    await eventually(lambda: bool(looks), "it runs")
    exporter.end()
    told = len(looks)
    await running

    assert told == len(looks)
