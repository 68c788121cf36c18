"""The rpm policy: a maximum number of grants per client and minute."""

from tests.core_driver import granted
from tests.unit.core.policies.policy_driver import PolicyDriver

LIMIT_2 = {"requests_per_minute": 2}


def test_inferences_beyond_the_rate_limit_wait_for_the_next_window() -> None:
    driver = PolicyDriver("rpm", LIMIT_2)
    driver.now = 59.0
    driver.open_and_submit("a", "a1", "a2", "a3", "a4", "a5")

    assert ["a1", "a2"] == driver.step(seats=9)
    assert 60.0 == driver.core.next_deadline()
    driver.now = 60.0
    assert ["a3", "a4"] == driver.step(seats=9)
    assert 120.0 == driver.core.next_deadline()
    driver.now = 119.5
    assert [] == driver.step(seats=9)
    driver.now = 120.0
    assert ["a5"] == driver.step(seats=9)


def test_arrival_in_a_new_window_releases_rate_limited_inferences() -> None:
    driver = PolicyDriver("rpm", LIMIT_2)
    driver.open_and_submit("a", "a1", "a2", "a3")
    driver.pull(seats=9)

    driver.now = 59.0
    assert [] == granted(driver.open("b"))
    driver.now = 60.0
    assert ["a3"] == granted(driver.open("c"))


def test_clients_within_their_limit_are_served_in_order_of_submission() -> None:
    """A client that has used up its window delays no other."""
    driver = PolicyDriver("rpm", LIMIT_2)
    driver.open_and_submit("b")
    driver.open_and_submit("a", "a1", "a2", "a3")
    driver.submit("b1", "b")
    driver.submit("a4")
    driver.submit("b2", "b")

    assert ["a1", "a2", "b1", "b2"] == driver.step(seats=9)


def test_tenant_has_one_limit_for_all_its_applications() -> None:
    """A tenant must not gain by opening an application for each inference."""
    driver = PolicyDriver("rpm", {**LIMIT_2, "unit": "tenant"})
    for name in "abc":
        driver.open_and_submit(name, f"{name}1", tenant="t")
    driver.open_and_submit("d", "d1")

    assert ["a1", "b1", "d1"] == driver.step(seats=9)
    driver.step(seats=9, make={"a1": 1}, finish=["a1"])
    driver.close("a")
    assert [] == driver.step(seats=9)
    driver.now = 60.0
    assert ["c1"] == driver.step(seats=9)


def test_requeued_inference_counts_once_in_its_rate_window() -> None:
    """The client is not charged for the loss of a replica, and gains nothing by it."""
    driver = PolicyDriver("rpm", LIMIT_2)
    driver.open_and_submit("a", "a1", "a2", "a3")
    driver.step(seats=9)

    assert ["a2"] == driver.step(seats=9, requeue=["a2"])
    assert 60.0 == driver.core.next_deadline()
    assert ["a1", "a2"] == driver.step(seats=9, requeue=["a1", "a2"])
    assert 60.0 == driver.core.next_deadline()


def test_inference_requeued_after_its_rate_window_is_not_counted_again() -> None:
    driver = PolicyDriver("rpm", LIMIT_2)
    driver.open_and_submit("a", "a1", "a2", "a3", "a4", "a5")
    driver.step(seats=2)
    driver.now = 61.0

    assert ["a1", "a3", "a4"] == driver.step(seats=9, requeue=["a1"])


def test_inference_requeued_in_a_used_up_rate_window_waits() -> None:
    driver = PolicyDriver("rpm", LIMIT_2)
    driver.open_and_submit("a", "a1", "a2", "a3", "a4", "a5")
    driver.step(seats=9)
    driver.now = 61.0
    driver.step(seats=9)

    assert [] == driver.step(seats=9, requeue=["a1"])
    driver.now = 120.0
    assert ["a1", "a5"] == driver.step(seats=9)


def test_ended_inference_still_counts_in_its_rate_window() -> None:
    """The limit is on grants, not on concurrency."""
    driver = PolicyDriver("rpm", LIMIT_2)
    driver.open_and_submit("a", "a1", "a2", "a3")
    driver.step(seats=9)

    assert [] == driver.step(seats=9, make={"a1": 1, "a2": 1}, finish=["a1", "a2"])
    assert {"a": {}} == driver.state()["counted"]["inferences"]


def test_restart_keeps_the_counts_of_rate_windows() -> None:
    """A new scheduler must not give every client a new window."""
    driver = PolicyDriver("rpm", LIMIT_2)
    driver.open_and_submit("a", "a1", "a2", "a3", "a4")
    driver.open_and_submit("b", "b1", "b2", "b3")
    driver.step(seats=3)

    assert ["a2", "b2"] == driver.restart(seats=9, lost=["a2"])
    assert [] == driver.step(seats=9)
    driver.now = 60.0
    assert ["a3", "a4", "b3"] == driver.step(seats=9)


def test_counts_of_another_rate_limit_are_forgotten() -> None:
    """Counts are also dropped when the options of a running scheduler change."""
    driver = PolicyDriver("rpm", LIMIT_2)
    driver.open_and_submit("a", "a1", "a2", "a3", "a4")
    driver.step(seats=9)

    assert ["a3"] == driver.restart({"requests_per_minute": 1}, seats=9)
