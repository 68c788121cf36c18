"""Least service of finished calls, fixed at submission."""

import pytest

from justitia_ray.core import events as ev
from tests.unit.core.policy_driver import PolicyDriver


def test_program_with_least_finished_service_goes_first() -> None:
    """Nothing of c has finished; 10·1 + 1 = 11 of a, 10·2 + 3 = 23 of b."""
    driver = PolicyDriver("plas")
    driver.arrive("b", "b1")
    driver.arrive("a", "a1")
    driver.step(seats=2)
    driver.step(seats=2, make={"b1": 2, "a1": 1}, finish=["b1", "a1"])
    driver.submit("b2", "b")
    driver.submit("a2")
    driver.arrive("c", "c1")

    assert ["c1", "a2", "b2"] == driver.drain()


def test_priority_is_fixed_at_submission() -> None:
    """Calls submitted together keep together, whatever of their program ends meanwhile."""
    driver = PolicyDriver("plas")
    driver.arrive("a", "a1", "a2", "a3")
    driver.arrive("b", "b1", "b2")

    assert ["a1"] == driver.step()
    assert ["a2"] == driver.step(make={"a1": 30}, finish=["a1"])
    driver.submit("a4")
    assert ["a3", "b1", "b2", "a4"] == [
        name
        for last in ("a2", "a3", "b1", "b2")
        for name in driver.step(make={last: 1}, finish=[last])
    ]


def test_running_call_does_not_count_before_its_end() -> None:
    """Service of finished calls only: else a program of one long call would be behind at once."""
    driver = PolicyDriver("plas")
    driver.arrive("a", "a1")
    driver.arrive("b", "b1")
    driver.step(seats=2)
    driver.step(seats=1, make={"a1": 50, "b1": 1}, finish=["b1"])
    driver.submit("b2", "b")
    driver.submit("a2")

    assert ["a2"] == driver.step(seats=2)


def test_priority_comes_before_the_order_of_submission() -> None:
    """An ingress may be late: what its caller sent before a2 was fixed after a1 had finished."""
    driver = PolicyDriver("plas")
    driver.now = 10.0
    driver.arrive("a", "a1", "a2")
    driver.step()
    driver.arrive("b", "b1")
    assert ["a2"] == driver.step(make={"a1": 1}, finish=["a1"])
    driver.submit("a3", age_s=5)

    assert ["a2"] == driver.step(requeue=["a2"])


def test_requeued_inference_keeps_its_priority() -> None:
    """It was submitted before its program had finished anything."""
    driver = PolicyDriver("plas")
    driver.arrive("a", "a1", "a2")
    driver.arrive("b", "b1")
    driver.step(seats=2)
    driver.step(seats=2, make={"a1": 30}, finish=["a1"])
    driver.submit("b2", "b")

    assert ["a2"] == driver.step(seats=2, requeue=["a2"])


def test_ties_go_to_the_tenant_first_seen() -> None:
    """Equal priorities are the rule at the start; inside a tenant the application decides."""
    driver = PolicyDriver("plas", {"unit": "tenant"})
    driver.arrive("a", "a1", tenant="t")
    driver.arrive("b", "b1", tenant="u")
    driver.arrive("c", "c1", tenant="t")

    assert ["a1", "c1", "b1"] == driver.drain()


def test_tenant_orders_its_applications_by_priority() -> None:
    """A call of before the first finished one passes a later call of an older application."""
    driver = PolicyDriver("plas", {"unit": "tenant"})
    driver.arrive("a", "a1", tenant="t")
    driver.arrive("b", "b1", tenant="t")
    driver.step()
    driver.submit("a2")
    driver.step(make={"a1": 1}, finish=["a1"])
    driver.submit("a3")
    driver.arrive("c", "c1", tenant="t")
    driver.arrive("d", "d1", tenant="u")

    assert ["b1", "d1", "a3", "c1"] == [
        name
        for last in ("a2", "b1", "d1", "a3")
        for name in driver.step(make={last: 1}, finish=[last])
    ]


def test_call_that_made_nothing_adds_nothing() -> None:
    """With a price on prompts alone, one cancelled in the queue would count as service."""
    driver = PolicyDriver("plas", {"cost": "compute"})
    driver.arrive("a", "a1", "a2")
    driver.step()
    driver.handle(ev.InferenceCancelled("a2"))
    assert {} == driver.state()["counted"]["finished"]
    driver.step(make={"a1": 4}, finish=["a1"])
    assert {"a": 10 + 2 * 4} == driver.state()["counted"]["finished"]
    assert {"a": {}} == driver.state()["counted"]["fixed"]


def test_finished_calls_of_a_program_add_up() -> None:
    """From 0: the third call has the service of both before it, h = p + 2d."""
    driver = PolicyDriver("plas", {"cost": "compute"})
    driver.arrive("a", "a1")
    fixed = [driver.state()["counted"]["fixed"]["a"]["a1"]]
    for number, tokens in ((1, 4), (2, 3)):
        driver.step()
        driver.step(make={f"a{number}": tokens}, finish=[f"a{number}"])
        driver.submit(f"a{number + 1}")
        fixed.append(driver.state()["counted"]["fixed"]["a"][f"a{number + 1}"])

    assert [0, 18, 18 + 16] == fixed


def test_call_of_several_sequences_adds_that_of_each() -> None:
    """Two of 5 prompt and 3 output tokens: 2·(5·3 + 6), not 10·6 + 21."""
    driver = PolicyDriver("plas")
    driver.arrive("a")
    driver.submit("a1", choices=2)
    driver.step(seats=2)
    driver.step(seats=2, make={"a1": 6}, finish=["a1"])

    assert {"a": 42} == driver.state()["counted"]["finished"]


def test_restart_keeps_what_was_fixed_at_submission() -> None:
    """What waits is submitted again, after calls of its program have finished."""
    driver = PolicyDriver("plas")
    driver.arrive("a", "a1", "a2", "a3")
    driver.step(seats=2)
    driver.step(seats=1, make={"a1": 30}, finish=["a1"])
    driver.submit("a4")
    driver.arrive("b", "b1", "b2")
    finished = driver.state()["counted"]["finished"]

    assert ["a2"] == driver.restart(lost=["a2"])
    assert finished == driver.state()["counted"]["finished"] == {"a": 10 * 30 + 465}
    assert ["a3", "b1", "b2", "a4"] == [
        name
        for last in ("a2", "a3", "b1", "b2")
        for name in driver.step(make={last: 1}, finish=[last])
    ]


def test_nothing_is_kept_of_an_application_that_ended() -> None:
    """Applications come without end; tenants stay, and count."""
    kept = {}
    for unit in ("application", "tenant"):
        driver = PolicyDriver("plas", {"unit": unit})
        driver.arrive("a", "a1", "a2", tenant="t")
        driver.step()
        driver.step(make={"a1": 1}, finish=["a1"])
        driver.handle(ev.ApplicationCancelled("a"))
        kept[unit] = driver.state()["counted"]

    assert {"first_seen": {}, "finished": {}, "fixed": {}} == kept["application"]
    assert {"first_seen": {"t": 1}, "finished": {"t": 11}, "fixed": {}} == kept["tenant"]


def test_changing_to_it_fixes_what_waits() -> None:
    """Service is counted from then on; what runs gets its priority when it is re-queued."""
    driver = PolicyDriver("fcfs")
    driver.arrive("b", "b1", "b2")
    driver.arrive("a", "a1")
    driver.step()
    driver.handle(ev.PolicyChanged("plas"))

    assert ["b1"] == driver.step(requeue=["b1"])
    assert ["b2"] == driver.step(make={"b1": 1}, finish=["b1"])


@pytest.mark.parametrize(
    ("field", "value"),
    [("first_seen", {"a": 0.5}), ("finished", {"a": float("inf")}), ("finished", None),
     ("fixed", {"a": 1}), ("fixed", {"a": {"a1": True}})],
)  # fmt: skip
def test_damaged_state_is_refused(field: str, value: object) -> None:
    """Better a scheduler that does not start than one that counts wrong in silence."""
    policy = PolicyDriver("plas").core.order.policy
    policy.restore(good := policy.state())
    good["counted"][field] = value

    with pytest.raises((KeyError, TypeError, ValueError)):
        policy.restore(good)
