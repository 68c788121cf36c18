"""Shortest predicted inference first."""

from tests.unit.core.policy_driver import PolicyDriver


def test_shortest_prediction_goes_first_whatever_its_application() -> None:
    """Inside an application too, or a long inference would hold back short ones behind it."""
    driver = PolicyDriver("sjf")
    driver.arrive("a")
    driver.arrive("b")
    for name, output in (("a9", 9), ("a3", 3), ("b5", 5), ("b1", 1), ("a4", 4)):
        driver.submit(name, name[0], prompt=100 - output, output=output)

    assert driver.drain() == ["b1", "a3", "a4", "b5", "a9"]


def test_equal_predictions_go_by_application_and_then_by_submission() -> None:
    """Which of equals is first must not depend on a hash, nor on who submits last."""
    driver = PolicyDriver("sjf")
    driver.arrive("b")
    driver.arrive("a")
    for name in ("a1", "b1", "b2", "a2"):
        driver.submit(name, name[0], output=7)

    assert driver.drain() == ["b1", "b2", "a1", "a2"]


def test_engine_is_told_the_prediction() -> None:
    """When KV overflows, the engine gives up the longest inference: the last in this order."""
    driver = PolicyDriver("sjf")
    driver.arrive("a")
    driver.submit("a1", output=7)
    policy = driver.core.order.policy

    assert 7 == policy.engine_priority(driver.application("a"), driver.inference("a1"), 77)


def test_waiting_inference_keeps_its_place_over_a_restart() -> None:
    """The order is of what is submitted again alone: nothing has to be stored for it."""
    driver = PolicyDriver("sjf")
    driver.arrive("a")
    for name, output in (("a9", 9), ("a3", 3), ("a4", 4)):
        driver.submit(name, output=output)

    assert ["a3"] == driver.restart(reverse=True)
    assert ["a4"] == driver.step(make={"a3": 3}, finish=["a3"])
    assert {} == driver.state()
