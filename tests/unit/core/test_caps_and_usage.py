"""Caps of an application and its counted usage, over restarts of the scheduler."""

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, Refusal, Refuse
from justitia_ray.core.tenants import LEAST_WEIGHT, ApplicationCaps, TenantNode, TenantTree
from justitia_ray.core.usage import UsageTotals
from tests.core_driver import PATIENT, CoreDriver


def _driver_with_caps(**caps: float) -> CoreDriver:
    driver = CoreDriver(SchedulerCore(timeouts=PATIENT))
    node = TenantNode(caps=ApplicationCaps(**caps))  # type: ignore[arg-type]
    driver.handle(ev.TenantsChanged(TenantTree({"tenant": node})))
    return driver


def _cap_refusals(actions: list[Action]) -> list[tuple[str, str]]:
    """Return the inferences that a cap refuses, with the unit of the cap."""
    return [
        (action.request_id, action.limit.unit)
        for action in actions
        if isinstance(action, Refuse)
        and action.reason is Refusal.CAP_REACHED
        and action.limit is not None
        and action.limit.scope == "application"
    ]


def test_capped_inferences_are_refused_at_submission() -> None:
    """A cap stops a runaway agent, but no other application of its tenant."""
    driver = _driver_with_caps(inferences=2)
    driver.open("a")
    driver.open("b")
    told = [driver.submit(f"q{k}", "a") for k in range(3)]
    other = driver.submit("r", "b")

    assert [[], [], [("q2", "inferences")]] == [_cap_refusals(actions) for actions in told]
    assert [] == _cap_refusals(other)


def test_application_beyond_a_cap_keeps_its_running_inferences() -> None:
    """The answer of a running inference is worth more than the memory that its abort frees."""
    driver = _driver_with_caps(kv_token_time=50)
    driver.open("a")
    driver.submit("q0", prompt=10, output=10)
    driver.pull(kv=25, seats=1)
    driver.submit("q1", prompt=10, output=10)
    lease = driver.lease_of("q0")
    before = driver.pull(progress={lease: 2}, kv=25, seats=1)
    beyond = driver.pull(progress={lease: 8}, kv=25, seats=1)

    assert [] == _cap_refusals(before)
    assert [("q1", "kv_token_time")] == _cap_refusals(beyond)
    assert lease == driver.lease_of("q0")
    assert [("q2", "kv_token_time")] == _cap_refusals(driver.submit("q2"))


def test_application_is_ended_at_its_time_cap() -> None:
    """An agent that waits forever must not exceed its time, also after a restart."""
    driver = _driver_with_caps(seconds=60)
    driver.open("a")
    driver.submit("q0")
    successor = _driver_with_caps(seconds=60).core
    assert [] == driver.wait(59)
    driver.hand_over(successor)
    driver.submit("q0", resubmitted=True)

    assert [("q0", "seconds")] == _cap_refusals(driver.wait(1.5))


def test_deprioritised_application_gets_its_weight_back() -> None:
    driver = CoreDriver(SchedulerCore(timeouts=PATIENT))
    driver.open("a", weight=4)
    driver.handle(ev.ApplicationDeprioritised("a", True))
    driver.hand_over(SchedulerCore(timeouts=PATIENT))
    low = driver.account("a").weight
    driver.handle(ev.ApplicationDeprioritised("a", False))

    assert (4 * LEAST_WEIGHT, 4) == (low, driver.account("a").weight)
    assert 4 == driver.application("a").weight


def test_token_usage_counts_each_report_once() -> None:
    driver = CoreDriver(SchedulerCore(timeouts=PATIENT))
    driver.open("a")
    driver.submit("q0", prompt=10, output=3)
    driver.pull()
    lease = driver.lease_of("q0")
    for _ in range(2):
        driver.pull(progress={lease: 2})
    for _ in range(2):
        driver.pull(finished={lease: 3})

    usage = driver.core.state.usage.totals[0]["tenant"]
    served = driver.application("a").kv_token_time
    assert UsageTotals(1, 1, 10, 3, served) == usage
    assert served > 0


def test_restarted_scheduler_counts_only_usage_missing_in_saved_totals() -> None:
    driver = CoreDriver(SchedulerCore(timeouts=PATIENT))
    driver.open("a")
    driver.submit("q0", prompt=10, output=9)
    driver.pull()
    lease, inference = driver.lease_of("q0"), driver.inference("q0")
    driver.pull(progress={lease: 4})
    saved, record = driver.core.state.usage.take_changed(), driver.record()
    driver.pull(progress={lease: 6})
    successor = SchedulerCore(timeouts=PATIENT)
    successor.state.usage.restore(saved)
    driver.hand_over(successor, ("r0",), record)
    driver.pull(progress={lease: 6})
    driver.resubmit(inference, lease)
    driver.pull(finished={lease: 9})

    usage = driver.core.state.usage.totals[0]["tenant"]
    assert UsageTotals(1, 1, 10, 9, driver.application("a").kv_token_time) == usage
    assert usage.kv_token_time == sum(10 + k for k in range(1, 10))


def test_saved_usage_of_old_days_is_dropped() -> None:
    """A scheduler that runs for years must not keep all days."""
    driver = CoreDriver(SchedulerCore(timeouts=PATIENT))
    for day in range(3):
        driver.now = 86_400 * day + 10
        driver.open(f"a{day}")
    book = driver.core.state.usage

    assert [0, 1, 2] == sorted(book.take_changed())
    book.note_saved()
    assert {} == book.take_changed()
    assert [1, 2] == sorted(book.totals)


def test_usage_of_a_day_is_final_only_after_its_save() -> None:
    """After a failed save a new scheduler changes the totals that a billing system has read."""
    driver = CoreDriver(SchedulerCore(timeouts=PATIENT))
    driver.open("a")
    book = driver.core.state.usage
    first = book.take_changed()
    driver.now += 86_400

    assert {0} == book.unsaved_days()
    assert first == book.take_changed()
    book.note_saved()
    assert set() == book.unsaved_days()


def test_error_of_a_damaged_usage_record_names_the_field() -> None:
    with pytest.raises(ValueError, match="inferences is -1"):
        SchedulerCore().state.usage.restore({0: {"t": UsageTotals().record() | {"inferences": -1}}})
