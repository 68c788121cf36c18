"""The core driver sends the core's decisions before it counts them."""

import logging
from typing import cast

import pytest

from justitia_ray.config import SchedulerSection
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Grant
from justitia_ray.core.entities import ReplicaCapacity
from justitia_ray.core.policies import LAB_POLICIES
from justitia_ray.core.state import DeadlineKind
from justitia_ray.observability.scheduler_metrics import SchedulerMetrics
from justitia_ray.serve.scheduler.clock import SteadyClock
from justitia_ray.serve.scheduler.core_driver import CoreDriver
from justitia_ray.serve.scheduler.outboxes import Outboxes
from justitia_ray.store.scheduler_store import StoredState
from tests.unit.serve.scheduler.services import arrival_of, submission_of


async def test_failing_metrics_export_loses_no_grant(caplog: pytest.LogCaptureFixture) -> None:
    metrics = cast(SchedulerMetrics, object())  # every metric update fails
    driver = CoreDriver(SchedulerSection(), SteadyClock(), Outboxes(), "m", metrics)
    line = driver.outboxes.of_ingress("i")
    for event in (
        arrival_of(),
        submission_of("q"),
        ev.ReplicaPulled("r", ReplicaCapacity(100), 100),
    ):
        driver.apply(event)

    assert ["q"] == [told.request_id for _, told in line.unread_after(0) if isinstance(told, Grant)]
    assert driver._timer is not None
    assert [(logging.ERROR, "decision.not_told")] == [
        (record.levelno, record.message) for record in caplog.records
    ]
    driver.close()


async def test_failing_observer_loses_no_grant_and_is_removed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver = CoreDriver(SchedulerSection(), SteadyClock(), Outboxes(), "m")
    line = driver.outboxes.of_ingress("i")
    driver.observer = lambda event, actions, now: 1 / 0  # type: ignore[assignment]
    for event in (
        arrival_of(),
        submission_of("q"),
        ev.ReplicaPulled("r", ReplicaCapacity(100), 100),
    ):
        driver.apply(event)

    assert ["q"] == [told.request_id for _, told in line.unread_after(0) if isinstance(told, Grant)]
    assert driver.observer is None
    assert ["console.recording_failed"] == [record.message for record in caplog.records]
    driver.close()


async def test_each_grant_of_a_replicas_pull_is_counted_as_a_decision() -> None:
    """The three decisions are an application, two inferences, and the pull that grants both."""
    driver = CoreDriver(SchedulerSection(), SteadyClock(), Outboxes(), "m")
    pull = ev.ReplicaPulled("r", ReplicaCapacity(100), 100)
    for event in (arrival_of(), submission_of("q1"), submission_of("q2"), pull):
        driver.apply(event)

    assert 5 == driver.decisions.totals()["count"]
    driver.close()


async def test_timer_is_reset_only_for_an_earlier_deadline() -> None:
    """Nearly every event sets a deadline, and nearly all are later than the next one."""
    driver = CoreDriver(SchedulerSection(), SteadyClock(), Outboxes(), "m")
    driver.apply(ev.ReplicaPulled("r", ReplicaCapacity(100), 100))
    until_lost = driver._timer
    driver.apply(arrival_of())
    driver.apply(ev.ReplicaPulled("r", ReplicaCapacity(100), 100))

    assert until_lost is not None
    assert until_lost is driver._timer
    driver.core.state.deadlines.set(driver.now() + 1.0, DeadlineKind.RECOVERY, "")
    driver.apply(ev.IngressHeartbeat("i"))
    assert driver._timer is not None
    assert driver._timer.when() < until_lost.when()
    assert until_lost.cancelled()

    driver._deadline_passed()  # before the deadline
    assert driver._timer is not None
    assert not driver._timer.cancelled()
    driver.close()


async def test_tenant_tree_reaches_the_core_on_change_and_after_a_restart() -> None:
    """The tree is stored with the settings, so that the next scheduler uses it, too."""
    driver = CoreDriver(SchedulerSection(), SteadyClock(), Outboxes(), "m")
    tenants = {"acme": {"weight": 3.0, "max_weight": 4.0}}

    weights = {"beta": 0.5}
    assert driver.configure({"tenants": tenants, "tiers": {"flex": {"weight_factor": 0.5}}})
    settings = {**driver.settings.model_dump(), "tenant_weights": weights}
    assert driver.configure(settings)

    successor = CoreDriver(SchedulerSection(), SteadyClock(), Outboxes(), "m")
    stored = StoredState(None, {}, driver.settings.model_dump(), {})
    successor.begin(stored, 2)
    for one in (driver, successor):
        assert one.core.state.tenants.node("acme").weight == 3.0
        assert one.core.state.tenants.branch_weight("beta") == 0.5
        assert one.core.state.tiers["flex"].weight_factor == 0.5
        one.close()


async def test_setting_with_a_former_name_is_accepted_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A configuration file of the previous version still works; the log names the new setting."""
    driver = CoreDriver(SchedulerSection(), SteadyClock(), Outboxes(), "m")
    driver.begin(StoredState(None, {}, None, {}), 1)

    assert driver.configure({"policy": "justitia", "policy_options": {"guard_iterations": 300}})
    assert "justitia-guarded" == driver.core.ledger.policy_name
    assert "guard_iterations moved: use policy: justitia-guarded" in caplog.text
    driver.close()


async def test_stored_policy_that_moved_to_the_lab_is_accepted() -> None:
    """Stored settings have the policy's old name until a new file changes them."""
    driver = CoreDriver(SchedulerSection(), SteadyClock(), Outboxes(), "m")
    driver.begin(StoredState(None, {}, {"policy": "drr"}, {}), 2)

    assert LAB_POLICIES["drr"] == driver.core.ledger.policy_name
    driver.close()
