"""Measured cost of prefill: the first of a release counts, for applications that arrive later."""

from typing import Any

import pytest

from justitia_ray.core import events as ev
from justitia_ray.core.scheduler import SchedulerCore
from justitia_ray.core.snapshot import restore
from justitia_ray.cost import PrefillCost, kv_token_time
from justitia_ray.errors import StoreError
from tests.core_driver import PATIENT, CoreDriver
from tests.unit.core.test_prefill import TurnRunner

_FIRST, _SECOND = PrefillCost(100), PrefillCost(150, 0.5)


def new_core(prefix: str = "1-", **options: Any) -> SchedulerCore:
    options = {"measures_prefill": True} | options
    return SchedulerCore("justitia", timeouts=PATIENT, lease_prefix=prefix, **options)


def driver_with_replica(**options: Any) -> CoreDriver:
    driver = CoreDriver(new_core(**options))
    driver.pull("r0", kv=10_000, caches=True)
    return driver


def report_measured_cost(driver: CoreDriver, cost: PrefillCost, release: str = "1.0") -> None:
    driver.handle(ev.PrefillMeasured(cost, release))


def test_application_keeps_the_prefill_cost_in_force_at_its_arrival() -> None:
    """With another cost an application's prompts would be charged in two units."""
    driver = driver_with_replica()
    turns = TurnRunner(driver)
    turns.open_application("early")
    report_measured_cost(driver, _FIRST)
    turns.open_application("late")

    assert turns.run_turn(1000, name="early") == kv_token_time(1000, 1)
    assert turns.run_turn(1000, name="late") == 100 * 1000 + kv_token_time(1000, 1)
    assert driver.core.ledger.fair_share.clock.virtual_time > 0


def test_prompt_computed_while_prefill_costs_become_known_is_free() -> None:
    driver = driver_with_replica()
    turns = TurnRunner(driver)
    turns.open_application()
    turns.start_turn(1000, 0)
    report_measured_cost(driver, _FIRST)
    turns.end_turn(1000, 0)

    assert driver.account().attained == kv_token_time(1000, 1)


def test_second_measurement_in_a_release_changes_no_prefill_cost() -> None:
    driver = driver_with_replica()
    report_measured_cost(driver, _FIRST)
    report_measured_cost(driver, _SECOND)

    assert driver.core.state.prefill_cost == _FIRST


def test_restarted_scheduler_uses_the_stored_prefill_cost() -> None:
    driver = driver_with_replica()
    turns = TurnRunner(driver)
    turns.open_application("early")
    report_measured_cost(driver, _FIRST)
    turns.open_application("late")
    driver.hand_over(new_core("2-"), ["r0"])
    report_measured_cost(driver, _SECOND)
    driver.pull("r0", kv=10_000, caches=True)
    turns.open_application("new")

    costs = {
        name: one.prefill and one.prefill.cost
        for name, one in driver.core.state.applications.items()
    }
    assert costs == {"early": None, "late": _FIRST, "new": _FIRST}
    assert turns.run_turn(1000, name="early") == kv_token_time(1000, 1)
    assert turns.run_turn(1000, name="late") == 100 * 1000 + kv_token_time(1000, 1)


def test_new_release_uses_the_earlier_prefill_cost_before_its_measurement() -> None:
    driver = driver_with_replica()
    turns = TurnRunner(driver)
    report_measured_cost(driver, _FIRST)
    turns.open_application("old")
    turns.start_turn(1000, 0, name="old")
    lease = turns.lease
    old = driver.hand_over(new_core("2-"), ["r0"])
    driver.resubmit(old.state.inferences[turns.request], lease)
    turns.open_application("between")
    report_measured_cost(driver, _SECOND, "2.0")
    turns.open_application("new")
    first = ev.LeaseProgress(lease, 1000, 1, running=True, cached_tokens=0)
    driver.pull("r0", [first], kv=10_000, caches=True)
    turns.end_turn(1000, 0)

    assert driver.account("old").attained == 100 * 1000 + kv_token_time(1000, 1)
    assert turns.run_turn(1000, name="between") == 100 * 1000 + kv_token_time(1000, 1)
    assert turns.run_turn(1000, name="new") == _SECOND.of(1000, 1000) + kv_token_time(1000, 1)


def test_prefill_ratios_of_classes_are_scaled_with_the_cost_of_a_new_release() -> None:
    driver = driver_with_replica()
    report_measured_cost(driver, _FIRST)
    driver.core.state.prefill_ratios.observe("class", 1000, 400)
    report_measured_cost(driver, _SECOND, "2.0")
    driver.open("a", 500)

    assert driver.prefill().predicted == 300


def test_configured_prefill_cost_replaces_a_measurement() -> None:
    driver = driver_with_replica(measures_prefill=False, prefill_cost=_FIRST)
    report_measured_cost(driver, _SECOND)
    driver.hand_over(new_core("2-", measures_prefill=False, prefill_cost=_FIRST))

    assert driver.core.state.prefill_cost == _FIRST
    driver.hand_over(new_core("3-"))
    assert driver.core.state.prefill_cost == _SECOND


@pytest.mark.parametrize("record", [[1, 2], [1, -1, "1.0"], [1, 2, 3], ["1", 2, "1.0"], {}])
def test_damaged_record_of_prefill_costs_is_refused(record: object) -> None:
    stored = driver_with_replica().record()

    with pytest.raises(StoreError, match="clock"):
        restore(new_core("2-"), stored["clock"] | {"measured_prefill": record}, {})


def test_damaged_prefill_cost_of_an_application_is_refused() -> None:
    driver = driver_with_replica()
    driver.open("a")
    stored = driver.record()
    stored["applications"]["a"]["prefill_cost"] = [1, "x"]

    with pytest.raises(StoreError, match=r"applications\[a\]"):
        restore(new_core("2-"), stored["clock"], stored["applications"])
