"""Replica counts that the scheduler computes: the rules that apply, and cases without a count."""

from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

import pytest
import pytest_asyncio

from justitia_ray.config import AutoscalingSection
from justitia_ray.core import SchedulerCore
from justitia_ray.scaling.sizing import SizingRules
from justitia_ray.serve.scheduler.fleet_sizer import FleetSizer
from tests.core_driver import PATIENT, CoreDriver
from tests.unit.serve.scheduler.services import Services, arrival_of, exporter_of, submission_of


def question_of(**rules: Any) -> dict[str, Any]:
    """Return the request of Ray Serve's autoscaling policy with these rules."""
    return {
        "rules": asdict(SizingRules(**rules)),
        "fleet": {"starting": 0, "load_s": None},
    }


@pytest.fixture
def waiting_core() -> SchedulerCore:
    driver = CoreDriver(SchedulerCore(timeouts=PATIENT))
    driver.open()
    driver.submit("x")
    return driver.core


def test_configured_scaling_rules_apply_until_the_first_autoscaling_request(
    waiting_core: SchedulerCore,
) -> None:
    """The autoscaling policy sends the rules of the latest deployment."""
    sizer = FleetSizer(AutoscalingSection(max_replicas=9, min_replicas=2))
    own = sizer.decision(waiting_core, 100.0)
    asked = sizer.answer(waiting_core, 110.0, question_of(minimum=5, maximum=9))
    later = sizer.decision(waiting_core, 120.0)
    forgotten = sizer.decision(waiting_core, 200.0)

    assert [2, 5, 5, 2] == [own.wanted, asked["wanted"], later.wanted, forgotten.wanted]


def test_recent_autoscaling_request_overrides_the_configured_drain_time(
    waiting_core: SchedulerCore,
) -> None:
    """An alert uses this metric; without autoscaling there is no target."""
    sizer = FleetSizer(AutoscalingSection(max_replicas=9, target_drain_s=30.0))
    sizer.answer(waiting_core, 100.0, question_of(target_drain_s=20.0))
    asked = sizer.target_drain_s
    sizer.decision(waiting_core, 200.0)

    assert (20.0, 30.0) == (asked, sizer.target_drain_s)
    assert FleetSizer(None).target_drain_s is None


def test_waiting_inferences_want_one_replica_without_autoscaling() -> None:
    """Operators see the wanted number of replicas even without autoscaling."""
    empty = SchedulerCore()

    assert 1 == FleetSizer(None).decision(empty, 0.0).wanted


def test_wanted_number_of_replicas_is_cached_for_a_fraction_of_a_second(
    waiting_core: SchedulerCore,
) -> None:
    """The computation reads all applications, so probes and pollers share one result."""
    sizer = FleetSizer(None)

    assert sizer.decision(waiting_core, 100.0) is sizer.decision(waiting_core, 100.1)
    assert sizer.decision(waiting_core, 100.0) is not sizer.decision(waiting_core, 200.0)


def test_autoscaling_answer_lists_draining_replicas_among_the_requested() -> None:
    """After a restart, Ray Serve's controller counts draining replicas as running.

    Earlier policies name no replicas.
    """
    driver = CoreDriver(SchedulerCore(timeouts=PATIENT))
    for name, draining in (("a", False), ("b", True), ("c", True)):
        driver.pull(name, draining=draining)
    sizer = FleetSizer(None)

    def draining_of(**named: Any) -> list[str]:
        answer: list[str] = sizer.answer(driver.core, 100.0, question_of() | named)["leaving"]
        return answer

    assert ["b"] == draining_of(running=["a", "b", "unknown"])
    assert [] == draining_of(running=["a"])
    assert [] == draining_of()


# --- answers of the service


@pytest_asyncio.fixture
async def services() -> AsyncIterator[Services]:
    made = Services()
    yield made
    await made.close()


async def test_scheduler_that_does_not_lead_reports_no_wanted_replicas(services: Services) -> None:
    """A replaced scheduler must not end replicas."""
    assert await services.new_service().size(question_of()) is None


async def test_waiting_inferences_without_replicas_want_one_replica(
    services: Services,
) -> None:
    """The model starts from zero replicas, and Ray Serve itself counts no request."""
    service = await services.start_leader()
    await service.open_application(arrival_of())
    service.term.driver.apply(submission_of())
    size = await service.size(question_of(minimum=0))

    assert size is not None
    assert (1, "open", 1) == (
        size["wanted"],
        size["reason"],
        service.term.driver.core.state.waiting,
    )


async def test_recovering_scheduler_reports_no_wanted_replicas_at_first(
    services: Services,
) -> None:
    """Running inferences are not known yet, and an empty queue would end all replicas."""
    first = await services.start_with_replica()
    await first.term.checkpointer.save_once()
    second = await services.start_leader(recovery_s=1_000.0)

    assert second.term.driver.core.recovery.holding
    assert await second.size(question_of()) is None
    assert second.inspector.status().size is None


async def test_status_and_metrics_show_the_wanted_number_of_replicas(services: Services) -> None:
    service = await services.start_with_replica()
    await service.open_application(arrival_of())
    services.hands.at += 1.0
    exporter_of(service).export()

    size = service.inspector.status().size
    assert size is not None
    assert 1 == size["wanted"]
    assert 1 == services.told.gauges["wanted_replicas",]
    assert 0 < services.told.gauges["drain_seconds",]
