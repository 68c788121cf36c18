"""Deadlines of the first lease: refused on submission or when they pass, never granted later."""

import math

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, EndApplication
from tests.core_driver import PATIENT, CoreDriver, granted, refused


def busy_driver() -> CoreDriver:
    """Return a core whose replica is full for 10 iterations."""
    driver = CoreDriver(SchedulerCore(timeouts=PATIENT))
    driver.open("runs", 155)
    driver.submit("x", "runs")
    driver.pull(kv=25)
    return driver


def submit_with_deadline(
    driver: CoreDriver,
    request_id: str = "a1",
    *,
    deadline_s: float | None = 5.0,
    age_s: float = 0.0,
    lease_id: str | None = None,
    resubmitted: bool = False,
) -> list[Action]:
    return driver.handle(
        ev.InferenceSubmitted(
            request_id,
            "a",
            request_id,
            "i0",
            10,
            10,
            10,
            deadline_s=deadline_s,
            age_s=age_s,
            lease_id=lease_id,
            resubmitted=resubmitted,
        )
    )


def test_inference_is_refused_when_its_deadline_passes() -> None:
    """The caller has stopped waiting, so its inference would run in vain."""
    driver = busy_driver()
    driver.open("a")
    assert [] == submit_with_deadline(driver)
    assert [] == driver.wait(4.9)
    told = driver.wait(0.1)

    assert [("a1", "deadline")] == refused(told)
    assert "a1" not in driver.core.state.inferences


def test_inference_past_its_deadline_is_not_granted_in_the_same_pull() -> None:
    """Deadlines are checked before grants, also at the same instant."""
    driver = busy_driver()
    driver.open("a")
    submit_with_deadline(driver)
    driver.now += 5.0
    told = driver.pull(finished={driver.lease_of("x"): 10}, kv=25)

    assert ([("a1", "deadline")], []) == (refused(told), granted(told))


def test_missed_deadline_refunds_the_charge() -> None:
    """Later applications must not wait for service that will not be used."""
    driver = busy_driver()
    driver.open("a", 500)
    submit_with_deadline(driver)
    driver.wait(5.0)
    driver.pull(progress={driver.lease_of("x"): 1}, kv=25)

    assert driver.account("a").withdrawn
    assert driver.core.ledger.fair_share.clock.owed("a") == 0


def test_application_with_a_missed_deadline_is_not_learned_from() -> None:
    """The predictor must not learn from an application that used less than its class does."""
    driver = busy_driver()
    driver.open("a")
    submit_with_deadline(driver)
    driver.handle(ev.ApplicationClosed("a"))
    [end] = [told for told in driver.wait(5.0) if isinstance(told, EndApplication)]

    assert ("a", 1) == (end.application_id, end.failed)


def test_inference_that_is_sure_to_miss_its_deadline_is_refused_at_once() -> None:
    """The caller can still use another service, which it could not after the wait."""
    driver = busy_driver()
    driver.open("big", 50_000)
    driver.submit("big1", "big", prompt=10, output=10)
    driver.open("a", 90_000)
    told = submit_with_deadline(driver, deadline_s=0.5)

    assert [("a1", "deadline")] == refused(told)


def test_inference_that_can_still_meet_its_deadline_waits() -> None:
    """Only a deadline before the early estimate of the start is refused at once."""
    driver = busy_driver()
    driver.open("a", 155)

    assert [] == submit_with_deadline(driver, deadline_s=0.3)


def test_inference_that_starts_at_once_is_never_refused_for_its_deadline() -> None:
    driver = CoreDriver(SchedulerCore(timeouts=PATIENT))
    driver.pull(kv=1000)
    driver.open("a")

    assert ["a1"] == granted(submit_with_deadline(driver, deadline_s=0.001))


def test_deadline_does_not_end_a_leased_inference() -> None:
    """The deadline limits the wait in the queue only."""
    driver = CoreDriver(SchedulerCore(timeouts=PATIENT))
    driver.pull(kv=1000)
    driver.open("a")
    submit_with_deadline(driver)

    assert [] == driver.wait(60.0)
    assert "a1" in driver.core.state.inferences


def test_inference_requeued_from_a_lost_replica_has_no_deadline() -> None:
    """The caller is not to blame for a lost replica, and half an answer may be sent already."""
    driver = CoreDriver(SchedulerCore(timeouts=PATIENT))
    driver.pull(kv=1000)
    driver.open("a")
    submit_with_deadline(driver)
    driver.handle(ev.ReplicaLost("r0"))

    assert [] == driver.wait(60.0)
    assert ["a1"] == granted(driver.pull("r1", kv=1000))


def test_inference_without_a_deadline_inherits_the_deadline_of_its_application() -> None:
    """The deadline of an inference replaces that of its application."""
    driver = busy_driver()
    driver.handle(ev.ApplicationArrived("a", "class", "tenant", 1.0, 100, "i0", deadline_s=5.0))
    submit_with_deadline(driver, "default", deadline_s=None)
    submit_with_deadline(driver, "own", deadline_s=8.0)
    submit_with_deadline(driver, "none", deadline_s=math.inf)

    assert [("default", "deadline")] == refused(driver.wait(5.0))
    assert [("own", "deadline")] == refused(driver.wait(3.0))
    assert [] == driver.wait(100.0)


def test_deadline_of_an_application_survives_a_scheduler_restart() -> None:
    driver = busy_driver()
    driver.handle(ev.ApplicationArrived("a", "class", "tenant", 1.0, 100, "i0", deadline_s=5.0))
    driver.hand_over(SchedulerCore(lease_prefix="2-"))

    assert 5.0 == driver.application("a").deadline_s


def test_deadline_counts_the_age_of_an_inference_before_a_restart() -> None:
    """A caller has waited since its first request, over all schedulers."""
    driver = busy_driver()
    driver.open("a")

    assert [("late", "deadline")] == refused(
        submit_with_deadline(driver, "late", age_s=5.0, resubmitted=True)
    )
    assert [] == submit_with_deadline(driver, "soon", age_s=4.0, resubmitted=True)
    assert [("soon", "deadline")] == refused(driver.wait(1.0))


def test_inference_resubmitted_with_a_running_lease_has_no_deadline() -> None:
    driver = busy_driver()
    driver.open("a")
    submit_with_deadline(driver, lease_id="1-7", age_s=50.0, resubmitted=True)

    assert [] == driver.wait(60.0)
    assert "a1" in driver.core.state.inferences


@pytest.mark.parametrize("deadline_s", [0.0, -1.0, math.inf, math.nan])
def test_invalid_deadline_of_an_application_is_an_error(deadline_s: float) -> None:
    """A stored record with an invalid deadline could not be read again."""
    with pytest.raises(ValueError, match="deadline_s is"):
        ev.ApplicationArrived("a", "c", "t", 1.0, 1.0, "i", deadline_s=deadline_s)
