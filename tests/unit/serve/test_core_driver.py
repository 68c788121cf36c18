"""The driver of a core: what it decides goes out before it is counted."""

import logging
from typing import cast

import pytest

from justitia_ray.config import SchedulerSection
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Grant
from justitia_ray.core.entities import ReplicaCapacity
from justitia_ray.observability.scheduler_metrics import SchedulerMetrics
from justitia_ray.serve.core_driver import CoreDriver
from justitia_ray.serve.mail_room import MailRoom
from justitia_ray.serve.steady_clock import SteadyClock
from tests.unit.serve.scheduler_office import inference, opened


class _Broken:
    """Metrics with a mistake in them."""

    def decided(self, *told: object) -> None:
        raise ValueError("a mistake")


async def test_mistake_in_what_is_counted_loses_no_grant(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, once: a grant that is not delivered holds its seat until its lease lapses."""
    metrics = cast("SchedulerMetrics", _Broken())
    driver = CoreDriver(SchedulerSection(), SteadyClock(), MailRoom(), "m", metrics)
    line = driver.mail.of_ingress("i")
    for event in (opened(), inference("q"), ev.ReplicaPulled("r", ReplicaCapacity(100), 100)):
        driver.apply(event)

    assert ["q"] == [told.request_id for _, told in line.unread(0) if isinstance(told, Grant)]
    assert driver._alarm._timer is not None
    assert [(logging.ERROR, "decision.not_told")] == [
        (record.levelno, record.message) for record in caplog.records
    ]
    driver.rest()
