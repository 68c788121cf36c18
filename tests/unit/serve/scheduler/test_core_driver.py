"""The driver of a core: what it decides goes out before it is counted."""

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
from tests.unit.serve.scheduler.services import inference, opened


async def test_mistake_in_what_is_counted_loses_no_grant(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, once: a grant that is not delivered holds its seat until its lease lapses."""
    metrics = cast(SchedulerMetrics, object())  # whatever is told to it fails
    driver = CoreDriver(SchedulerSection(), SteadyClock(), Outboxes(), "m", metrics)
    line = driver.outboxes.of_ingress("i")
    for event in (opened(), inference("q"), ev.ReplicaPulled("r", ReplicaCapacity(100), 100)):
        driver.apply(event)

    assert ["q"] == [told.request_id for _, told in line.unread(0) if isinstance(told, Grant)]
    assert driver._timer is not None
    assert [(logging.ERROR, "decision.not_told")] == [
        (record.levelno, record.message) for record in caplog.records
    ]
    driver.stop_timer()


async def test_each_grant_of_a_pull_is_counted_as_a_decision() -> None:
    """An application, two inferences, and the pull that is granted both."""
    driver = CoreDriver(SchedulerSection(), SteadyClock(), Outboxes(), "m")
    pull = ev.ReplicaPulled("r", ReplicaCapacity(100), 100)
    for event in (opened(), inference("q1"), inference("q2"), pull):
        driver.apply(event)

    assert 5 == driver.decisions.totals()["count"]
    driver.stop_timer()


async def test_timer_is_set_anew_for_an_earlier_deadline_only() -> None:
    """Nearly every event sets a deadline, and nearly all are later than the next."""
    driver = CoreDriver(SchedulerSection(), SteadyClock(), Outboxes(), "m")
    driver.apply(ev.ReplicaPulled("r", ReplicaCapacity(100), 100))
    until_lost = driver._timer
    driver.apply(opened())
    driver.apply(ev.ReplicaPulled("r", ReplicaCapacity(100), 100))

    assert until_lost is not None
    assert until_lost is driver._timer
    driver.core.state.deadlines.set(driver.now() + 1.0, DeadlineKind.RECOVERY, "")
    driver.apply(ev.IngressHeartbeat("i"))
    assert driver._timer is not None
    assert driver._timer.when() < until_lost.when()
    assert until_lost.cancelled()

    driver._deadline_passed()  # before it is due
    assert driver._timer is not None
    assert not driver._timer.cancelled()
    driver.stop_timer()


async def test_tenants_of_the_settings_reach_the_core_when_they_change_and_after_a_restart() -> (
    None
):
    """They are stored with the settings: a scheduler that takes over shares by the same tree."""
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
        one.stop_timer()


async def test_setting_that_moved_starts_as_it_is_meant_and_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A file of the last version goes on; the log says what to write from now on."""
    driver = CoreDriver(SchedulerSection(), SteadyClock(), Outboxes(), "m")
    driver.begin(StoredState(None, {}, None, {}), 1)

    assert driver.configure({"policy": "justitia", "policy_options": {"guard_iterations": 300}})
    assert "justitia-guarded" == driver.core.ledger.policy_name
    assert "guard_iterations moved: use policy: justitia-guarded" in caplog.text
    driver.stop_timer()


async def test_scheduler_takes_over_from_one_whose_policy_is_of_the_lab_now() -> None:
    """Its settings are stored by the name that they had; a new file brings others later."""
    driver = CoreDriver(SchedulerSection(), SteadyClock(), Outboxes(), "m")
    driver.begin(StoredState(None, {}, {"policy": "drr"}, {}), 2)

    assert LAB_POLICIES["drr"] == driver.core.ledger.policy_name
    driver.stop_timer()
