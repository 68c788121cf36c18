"""Restarts of the scheduler under VTC: counters survive, and damaged records are refused.

h = p + 2d; a replica of one seat, unless a test says otherwise.
"""

from typing import Any

import pytest

from justitia_ray.core import events as ev
from justitia_ray.core.snapshot import restore
from justitia_ray.errors import StoreError
from tests.unit.core.policies.policy_driver import PolicyDriver, driver_with_two_inferences


def _driver_in_mid_run() -> PolicyDriver:
    """Return a driver where client a has a running and a waiting inference, b and c one waiting."""
    driver = driver_with_two_inferences()
    driver.open("c")
    driver.report_tokens("a1", 3)
    driver.submit("b1", "b")
    driver.report_tokens("a1", 5)
    driver.handle(ev.InferenceCancelled("a2"))
    driver.submit("c1", "c")
    driver.submit("a2", "a")
    return driver


def test_restart_changes_no_counter_and_no_order() -> None:
    """Waiting inferences are resubmitted one by one, which must lift no counter."""
    driver = _driver_in_mid_run()
    before = {name: driver.counter(name) for name in "abc"}
    keys = [driver.vtc.key(name, driver.application(name)) for name in "abc"]
    driver.take_over()

    assert before == {name: driver.counter(name) for name in "abc"}
    assert keys == [driver.vtc.key(name, driver.application(name)) for name in "abc"]
    driver.report_tokens("a1", 5)
    assert before == {name: driver.counter(name) for name in "abc"}
    driver.report_tokens("a1", 6)
    assert before["a"] + 2 == driver.counter("a")


def test_two_restarts_without_a_grant_change_no_counter() -> None:
    driver = _driver_in_mid_run()
    waiting = driver.vtc.counted()["waiting"]
    driver.take_over(submit=False)
    driver.take_over(submit=False)
    driver.open("d")
    driver.submit("d1", "d")

    assert ["a", "b", "c"] == sorted(waiting)
    assert 16 == driver.counter("d")


def test_new_client_after_a_restart_is_lifted_to_the_least_waiting_counter() -> None:
    driver = driver_with_two_inferences()
    driver.report_tokens("a1", 5)
    driver.take_over(submit=False)
    sizes: dict[str, Any] = {"prompt": 10, "resubmitted": True}
    driver.submit("a1", "a", lease_id=driver.holds["a1"], **sizes)
    driver.report_tokens("a1", 7)
    driver.submit("b1", "b")
    driver.submit("a2", "a", **sizes)
    driver.submit("b2", "b")

    assert (24, 24) == (driver.counter("a"), driver.counter("b"))


def test_client_waiting_before_a_restart_counts_as_waiting_until_a_grant() -> None:
    """After the first grant only clients in the queue count."""
    driver = _driver_in_mid_run()
    driver.take_over(submit=False)
    sizes: dict[str, Any] = {"prompt": 10, "resubmitted": True}
    driver.submit("a1", "a", lease_id=driver.holds["a1"], **sizes)
    driver.submit("a2", "a", **sizes)
    driver.submit("a3", "a", **sizes)
    driver.open("d")
    driver.submit("d1", "d")
    assert 16 == driver.counter("d")

    driver.report_tokens("a1", 5)
    assert ["d1"] == driver.finish("a1", 5)
    driver.open("e")
    driver.submit("e1", "e")
    assert 20 == driver.counter("e")


def test_ended_client_does_not_lower_the_counter_level_after_a_restart() -> None:
    """A forgotten client would count as 0 and lower the level of all later clients."""
    driver = _driver_in_mid_run()
    driver.take_over(submit=False)
    for name in "abc":
        driver.handle(ev.ApplicationClosed(name))
    driver.open("d")
    driver.submit("d1", "d")

    assert 20 == driver.counter("d")  # Client a left the queue last and has this counter.


def test_client_that_left_the_queue_last_is_known_after_a_restart() -> None:
    driver = driver_with_two_inferences()
    driver.finish("a1", 4)
    driver.report_tokens("a2", 3)
    driver.take_over()
    driver.submit("b1", "b")

    assert (34, 34) == (driver.counter("a"), driver.counter("b"))


def test_counter_level_of_a_forgotten_client_survives_a_restart() -> None:
    driver = driver_with_two_inferences()
    driver.handle(ev.ApplicationClosed("a"))
    driver.finish("a1", 4)
    driver.finish("a2", 1)
    driver.take_over()
    driver.submit("b1", "b")

    assert 30 == driver.counter("b")


def test_charges_of_lost_inferences_are_dropped_with_their_application() -> None:
    """An ingress that died with the scheduler never resubmits its inferences."""
    driver = driver_with_two_inferences()
    driver.take_over(submit=False)
    assert {"a"} == set(driver.vtc.counted()["bills"])

    driver.handle(ev.ApplicationClosed("a"))
    assert {} == driver.vtc.counted()["bills"]


def test_weight_of_a_tenant_survives_a_restart() -> None:
    driver = PolicyDriver("vtc", {"unit": "tenant"})
    driver.open("a", tenant="x", weight=1)
    driver.open("b", tenant="x", weight=4)
    driver.pull(seats=1)
    driver.submit("b1", "b", prompt=8)
    driver.take_over()
    driver.submit("a1", "a")

    assert 4 == driver.vtc.counters["x"].weight


def test_unconfirmed_lease_is_not_charged_again_after_a_restart() -> None:
    driver = _driver_in_mid_run()
    driver.take_over()
    driver.wait(5)
    driver.pull("r1", seats=3)
    assert 20 == driver.counter("a")

    driver.pull("r1", progress={driver.holds["a1"]: 5}, seats=3)
    assert 20 == driver.counter("a")
    driver.pull("r1", progress={driver.holds["a1"]: 7}, seats=3)
    assert 24 == driver.counter("a")


def test_service_before_a_restart_is_charged_at_the_end_of_the_inference() -> None:
    driver = PolicyDriver("vtc")
    driver.open("a")
    driver.pull(seats=2)
    driver.submit("a1", "a", output=100)
    driver.submit("a2", "a", output=100)
    leases = (driver.holds["a1"], driver.holds["a2"])
    driver.pull(progress={leases[0]: 5, leases[1]: 50}, seats=2)
    assert 130 == driver.counter("a")
    driver.take_over()
    driver.pull(progress={leases[0]: 10, leases[1]: 50}, seats=2)
    assert 130 == driver.counter("a")
    driver.pull(progress={leases[1]: 50}, finished={leases[0]: 10}, seats=2)

    assert 140 == driver.counter("a")


def test_admission_that_a_dead_scheduler_did_not_save_is_not_charged() -> None:
    driver = driver_with_two_inferences()
    record = driver.record()
    for bills in record["clock"]["counted"]["counted"]["bills"].values():
        bills.clear()
    driver.take_over(record=record)
    driver.report_tokens("a1", 2)

    assert 10 + 2 * 2 == driver.counter("a")
    assert [14, 0, 2, 1] == driver.vtc.counted()["bills"]["a"]["a1"], "nothing was predicted"
    assert {"a"} == set(driver.vtc.counters)
    driver.finish("a1", 3)
    assert 10 + 2 * 3 + 10 == driver.counter("a")  # a2 is admitted


def test_stored_counters_name_the_policy_options() -> None:
    """After an upgrade an option of another name would silently drop every counter."""
    record = driver_with_two_inferences().record()

    assert {"cost": "compute", "unit": "application"} == record["clock"]["counted"]["options"]


def test_counters_stored_with_another_unit_or_cost_are_not_restored() -> None:
    """A scheduler whose clients are tenants must not use the counters of applications."""
    driver = driver_with_two_inferences()
    for options in ({"unit": "tenant"}, {"cost": "kv_token_time"}):
        record = driver.record()
        other = PolicyDriver("vtc", options)
        restore(other.core, record["clock"], record["applications"])

        assert {} == other.vtc.counted()["clients"]["counters"]


@pytest.mark.parametrize("name", ["clients", "bills", "waiting"])
def test_incomplete_record_of_counters_is_refused(name: str) -> None:
    """A missing part would mean that no service was counted."""
    record = driver_with_two_inferences().record()
    del record["clock"]["counted"]["counted"][name]

    with pytest.raises(StoreError, match=r"clock\.counted: the stored record is damaged"):
        restore(PolicyDriver("vtc").core, record["clock"], record["applications"])
