"""The simple policies: app-fcfs, srjf and sjf."""

from justitia_ray.core.policies.simple import remaining_cost
from tests.unit.core.policies.policy_driver import PolicyDriver


def test_inferences_of_two_applications_are_not_interleaved() -> None:
    driver = PolicyDriver("app-fcfs")
    driver.open_and_submit("b")
    driver.open_and_submit("a", "a1", "a2")
    driver.submit("b1", "b")
    driver.submit("a3", "a")
    driver.submit("b2", "b")

    assert driver.drain() == ["b1", "b2", "a1", "a2", "a3"]


def test_later_application_is_served_during_a_tool_call_of_an_earlier_one() -> None:
    driver = PolicyDriver("app-fcfs")
    driver.open_and_submit("a", "a1")
    driver.open_and_submit("b", "b1", "b2")

    assert ["a1"] == driver.step()
    assert ["b1"] == driver.step(make={"a1": 1}, finish=["a1"])
    driver.submit("a2", "a")
    assert ["a2"] == driver.step(make={"b1": 1}, finish=["b1"])


def test_inference_with_the_shortest_prediction_is_served_first() -> None:
    """Within an application, too, a long inference must not delay short ones."""
    driver = PolicyDriver("sjf")
    driver.open_and_submit("a")
    driver.open_and_submit("b")
    for name, output in (("a9", 9), ("a3", 3), ("b5", 5), ("b1", 1), ("a4", 4)):
        driver.submit(name, name[0], prompt=100 - output, output=output)

    assert driver.drain() == ["b1", "a3", "a4", "b5", "a9"]


def test_finished_inferences_move_an_application_forward_in_the_queue() -> None:
    driver = PolicyDriver("srjf")
    driver.open_and_submit("b", cost=100)
    driver.open_and_submit("a", "a1", "a2", cost=500)

    assert ["a1"] == driver.step()
    driver.submit("b1", "b")
    assert ["a2"] == driver.step(make={"a1": 20}, finish=["a1"])
    assert 90 == remaining_cost(driver.application("a"))


def test_running_inferences_do_not_reduce_the_remaining_cost() -> None:
    """The end of a running inference is unknown."""
    driver = PolicyDriver("srjf")
    driver.open_and_submit("b", cost=100)
    driver.open_and_submit("a", "a1", "a2", cost=500)
    driver.step()
    driver.submit("b1", "b")

    assert ["b1"] == driver.step(seats=2, make={"a1": 20})
    assert 500 == remaining_cost(driver.application("a"))


def test_remaining_cost_of_an_underpredicted_application_is_zero() -> None:
    """A negative remaining cost would place an application before those that are almost done."""
    driver = PolicyDriver("srjf")
    driver.open_and_submit("a", "a1", cost=10)
    driver.open_and_submit("b", "b1", cost=10)
    driver.step(seats=2)
    driver.submit("b2", "b")
    driver.submit("a2", "a")
    order = driver.step(seats=2, make={"a1": 1, "b1": 20}, finish=["a1", "b1"])

    assert [0, 0] == [remaining_cost(driver.application(name)) for name in "ab"]
    assert ["a2", "b2"] == order
