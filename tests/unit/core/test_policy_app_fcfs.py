"""First opened application first."""

from tests.unit.core.policy_driver import PolicyDriver


def test_applications_are_not_interleaved() -> None:
    """A later inference of an earlier application passes what later applications submitted."""
    driver = PolicyDriver("app-fcfs")
    driver.arrive("b")
    driver.arrive("a", "a1", "a2")
    driver.submit("b1", "b")
    driver.submit("a3", "a")
    driver.submit("b2", "b")

    assert driver.drain() == ["b1", "b2", "a1", "a2", "a3"]


def test_later_application_is_served_in_the_tool_gap_of_an_earlier_one() -> None:
    """Not interleaved does not mean idle: the first has nothing that could run."""
    driver = PolicyDriver("app-fcfs")
    driver.arrive("a", "a1")
    driver.arrive("b", "b1", "b2")

    assert ["a1"] == driver.step()
    assert ["b1"] == driver.step(make={"a1": 1}, finish=["a1"])
    driver.submit("a2", "a")
    assert ["a2"] == driver.step(make={"b1": 1}, finish=["b1"])


def test_engine_is_told_the_arrival_of_the_application() -> None:
    """When KV overflows, the engine gives up the last application, not the last grant."""
    driver = PolicyDriver("app-fcfs")
    driver.arrive("a", "a1")
    driver.arrive("b", "b1")
    policy = driver.core.order.policy
    first, second = (
        policy.engine_priority(driver.application(name), driver.inference(f"{name}1"), grant)
        for name, grant in (("a", 2), ("b", 1))
    )

    assert first < second


def test_restart_keeps_the_order_of_applications() -> None:
    """It is that of their opening, which is stored, and not of their coming back."""
    driver = PolicyDriver("app-fcfs")
    driver.arrive("a", "a1")
    driver.arrive("b", "b1")

    assert ["a1"] == driver.restart(reverse=True)
    assert ["b1"] == driver.step(make={"a1": 1}, finish=["a1"])
