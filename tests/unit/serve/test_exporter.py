"""The task that exports: it goes on whatever fails, and hurts nobody."""

import asyncio
import logging

import pytest

from justitia_ray.config import parse_app_config
from justitia_ray.errors import ConfigError
from justitia_ray.observability import metrics as m
from justitia_ray.serve.exporter import Exporter, new_measures
from tests.eventually import eventually
from tests.unit.observability.taken import Taken

_ARGS = {"name": "app", "model": {"name": "m", "path": "none"}}


def test_measures_have_the_labels_and_the_bounds_of_the_configuration() -> None:
    """Two applications, or two models of one, are told apart in one Prometheus."""
    config = parse_app_config(_ARGS | {"metrics": {"max_classes": 1}})
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

    measures, taken = new_measures(parse_app_config(_ARGS), "predictor"), Taken()
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
    measures = new_measures(parse_app_config(_ARGS), "scheduler")
    exporter = Exporter(measures, lambda: looks.append(1), Taken(), 1e-9)
    running = asyncio.create_task(exporter.run())
    await eventually(lambda: bool(looks), "it runs")
    exporter.end()
    told = len(looks)
    await running

    assert told == len(looks)


@pytest.mark.parametrize(
    ("key", "value"),
    [("max_classes", 0), ("max_tenants", 1_001), ("interval_s", 0), ("enable", True)],
)
def test_setting_that_is_not_allowed_is_named(key: str, value: object) -> None:
    """A user reads what to change, not a traceback."""
    with pytest.raises(ConfigError, match=f"metrics.{key}"):
        parse_app_config(_ARGS | {"metrics": {key: value}})
