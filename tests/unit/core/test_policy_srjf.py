"""Least remaining predicted cost first."""

from justitia_ray.core.policies.justitia import rank_preserving_integer
from justitia_ray.core.policies.srjf import remaining_cost
from tests.unit.core.policy_driver import PolicyDriver


def test_finished_inferences_bring_an_application_forward() -> None:
    """Remaining, not total, cost: a = 500 less 10·20 + 210 = 410 leaves 90, less than b's 100."""
    driver = PolicyDriver("srjf")
    driver.arrive("b", cost=100)
    driver.arrive("a", "a1", "a2", cost=500)

    assert ["a1"] == driver.step()
    driver.submit("b1", "b")
    assert ["a2"] == driver.step(make={"a1": 20}, finish=["a1"])
    assert 90 == remaining_cost(driver.application("a"))


def test_service_of_what_still_runs_does_not_count() -> None:
    """Its end is not known; were it counted, every running application would come first."""
    driver = PolicyDriver("srjf")
    driver.arrive("b", cost=100)
    driver.arrive("a", "a1", "a2", cost=500)
    driver.step()
    driver.submit("b1", "b")

    assert ["b1"] == driver.step(seats=2, make={"a1": 20})
    assert 500 == remaining_cost(driver.application("a"))


def test_application_predicted_too_small_has_nothing_left_and_no_less() -> None:
    """Below 0 it would pass those that are really almost done; ties go to the first opened."""
    driver = PolicyDriver("srjf")
    driver.arrive("a", "a1", cost=10)
    driver.arrive("b", "b1", cost=10)
    driver.step(seats=2)
    driver.submit("b2", "b")
    driver.submit("a2", "a")
    order = driver.step(seats=2, make={"a1": 1, "b1": 20}, finish=["a1", "b1"])

    assert [0, 0] == [remaining_cost(driver.application(name)) for name in "ab"]
    assert ["a2", "b2"] == order


def test_engine_is_told_the_remaining_cost() -> None:
    """When KV overflows, the engine gives up the application with most left."""
    driver = PolicyDriver("srjf")
    driver.arrive("a", "a1", cost=10.5)
    policy = driver.core.order.policy
    priority = policy.engine_priority(driver.application("a"), driver.inference("a1"), 77)

    assert rank_preserving_integer(10.5) == priority


def test_restart_keeps_what_remains() -> None:
    """Finished inferences are not submitted again, yet their cost stays subtracted."""
    driver = PolicyDriver("srjf")
    driver.arrive("b", cost=100)
    driver.arrive("a", "a1", "a2", "a3", cost=500)
    driver.step()
    driver.step(make={"a1": 20}, finish=["a1"])
    driver.submit("b1", "b")
    driver.restart()

    assert ["a3"] == driver.step(make={"a2": 1}, finish=["a2"])
