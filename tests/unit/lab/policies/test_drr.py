"""Adapted deficit round robin; `tests/property/test_round_robin.py` compares it with its source."""

import pytest

from justitia_ray.core import events as ev
from justitia_ray.core.entities import Application
from justitia_ray.core.policies import Delivery, parse_options, policy_path
from justitia_ray.lab.policies.drr import DrrPolicy
from tests.unit.core.policies.policy_driver import PolicyDriver
from tests.unit.core.stub_policy import create_application, stub_context


def test_deficit_round_robin_order_equals_a_hand_calculation() -> None:
    driver = PolicyDriver("drr", {"quantum": 20})
    driver.open_and_submit("a", *(f"a{n}" for n in range(1, 8)))
    driver.open_and_submit("b", *(f"b{n}" for n in range(1, 5)))

    assert ["a1", "a2", "b1", "b2"] == driver.step(seats=4)
    assert ["a3", "b3"] == driver.step(seats=6, make={"a1": 5})
    assert ["b4"] == driver.step(seats=7)
    assert ["a4"] == driver.step(seats=8, make={"b3": 20})
    assert ["a5", "a6", "a7"] == driver.step(seats=11)


def _policy_after_overtaking(times: int) -> tuple[DrrPolicy, Application, Application]:
    """Return a DRR policy that has skipped the waiting client a, and granted b `times` times.

    Prompts cost a quantum. The order is violated, as when no inference of a fits on a replica.
    """
    a, b = create_application("a", 1, 2, 3), create_application("b", 1, 2, 3, 4, 5)
    policy = DrrPolicy(stub_context(parse_options(policy_path("drr"), {"quantum": 10}), a, b))
    for one in (a, b):
        for inference in one.waiting:
            inference.prompt_tokens = 10
            policy.submitted(one, inference)
    for inference in list(b.waiting)[:times]:
        b.waiting.remove_inference(inference)
        policy.dispatched(b, inference)
    return policy, a, b


@pytest.fixture
def policy_after_four_rounds() -> tuple[DrrPolicy, Application, Application]:
    """Return a DRR policy after four rounds in which it skipped client a and served b."""
    return _policy_after_overtaking(times=4)


def test_skipped_client_keeps_its_turn_without_a_new_quantum(
    policy_after_four_rounds: tuple[DrrPolicy, Application, Application],
) -> None:
    """With credit for each skipped round, the client could occupy the machine later."""
    policy, a, b = policy_after_four_rounds
    assert policy.key("a", a) == (0, a.sequence) < policy.key("b", b) == (4, b.sequence)
    policy.dispatched(a, a.waiting.first)

    assert (4, a.sequence) == policy.key("a", a)


def test_service_of_a_skipped_client_is_charged_against_one_quantum(
    policy_after_four_rounds: tuple[DrrPolicy, Application, Application],
) -> None:
    policy, a, _ = policy_after_four_rounds
    policy.served([Delivery("a", "a0", 10, 0, 6, 81)])

    assert (4, a.sequence) == policy.key("a", a)


def test_skipped_client_keeps_its_turn_while_its_balance_lasts(
    policy_after_four_rounds: tuple[DrrPolicy, Application, Application],
) -> None:
    policy, a, _ = policy_after_four_rounds
    for made in (2, 4):
        policy.served([Delivery("a", "a0", 10, made - 2, made, 1)])

        assert (0, a.sequence) == policy.key("a", a)


def test_client_skipped_once_keeps_its_round_robin_turn() -> None:
    policy, a, _ = _policy_after_overtaking(times=1)
    policy.served([Delivery("a", "a0", 10, 0, 2, 1)])

    assert (0, a.sequence) == policy.key("a", a)


def test_skipped_client_keeps_its_turn_over_a_restart(
    policy_after_four_rounds: tuple[DrrPolicy, Application, Application],
) -> None:
    """The client still waits, but is resubmitted to the new scheduler only later."""
    policy, a, _ = policy_after_four_rounds
    state = policy.state()
    other = DrrPolicy(policy.context)
    other.restore(state)
    other.submitted(a, a.waiting.first)

    assert (0, a.sequence) == other.key("a", a)


def _balance_of_client(driver: PolicyDriver, client: str) -> float:
    balance: float = driver.state()["counted"]["ring"][client]["balance"]
    return balance


def test_client_without_waiting_inferences_gets_no_credit() -> None:
    driver = PolicyDriver("drr", {"quantum": 20})
    driver.open_and_submit("a", "a1", "a2")
    driver.open_and_submit("b", *(f"b{n}" for n in range(1, 12)))
    driver.step(seats=8)
    driver.step(seats=8, make={"a1": 10})
    driver.submit("a3")

    assert -20 == _balance_of_client(driver, "a")
    assert ["b7", "b8", "a3"] == driver.step(seats=11)


def test_client_without_waiting_inferences_keeps_its_balance() -> None:
    """A client may come back for the unused part of its quantum, and for no more."""
    driver = PolicyDriver("drr", {"quantum": 20, "cost": "kv_token_time"})
    driver.open_and_submit("a", "a1")
    driver.open_and_submit("b", "b1", "b2", "b3", "b4")
    driver.step(seats=2)
    for number in range(1, 4):
        driver.step(seats=1 + number, make={f"b{number}": 2})
        driver.step(seats=2 + number)
        driver.submit(f"a{number + 1}")
        driver.handle(ev.InferenceCancelled(f"a{number + 1}"))

        assert 20 == _balance_of_client(driver, "a")


def test_client_in_debt_without_waiting_inferences_is_refilled() -> None:
    driver = PolicyDriver("drr", {"quantum": 20})
    driver.open_and_submit("a", "a1", "a2")
    driver.open_and_submit("b", *(f"b{n}" for n in range(1, 7)))
    driver.step(seats=2)
    driver.step(seats=8, make={"a1": 5})
    driver.submit("a3")

    assert 10 == _balance_of_client(driver, "a")


def test_returning_client_gets_only_the_rest_of_its_quantum() -> None:
    driver = PolicyDriver("drr", {"quantum": 20})
    driver.open_and_submit("a", "a1")
    driver.open_and_submit("b", *(f"b{n}" for n in range(1, 5)))
    driver.step(seats=2)
    for name in ("a2", "a3"):
        driver.submit(name, "a")

    assert ["b2", "a2", "b3", "b4", "a3"] == driver.step(seats=7)


def test_waiting_client_in_debt_is_refilled_once_in_each_round() -> None:
    driver = PolicyDriver("drr", {"quantum": 20})
    driver.open_and_submit("a", "a1", "a2", "a3")
    driver.open_and_submit("b", "b1", "b2", "b3")
    driver.step(seats=2)
    driver.step(seats=5, make={"a1": 20})
    driver.step(seats=5, make={"a1": 1})

    assert -20 - 2 == _balance_of_client(driver, "a")


def test_prompts_that_cost_nothing_do_not_end_the_turn_of_a_client() -> None:
    """Prompts cost nothing in KV token-time, so a turn lasts until tokens are reported."""
    driver = PolicyDriver("drr", {"quantum": 20, "cost": "kv_token_time"})
    driver.open_and_submit("a", "a1", "a2", "a3")
    driver.open_and_submit("b", "b1", "b2")

    assert ["a1", "a2"] == driver.step(seats=2)
    assert ["b1", "b2"] == driver.step(seats=4, make={"a1": 2})


def test_service_under_another_policy_is_not_charged() -> None:
    driver = PolicyDriver("fcfs")
    driver.open_and_submit("a", "a1")
    driver.open_and_submit("b", "b1")
    driver.step(seats=1)
    driver.step(seats=1, make={"a1": 9})
    driver.handle(ev.PolicyChanged(policy_path("drr")))
    driver.step(seats=1, make={"a1": 2})

    assert {"a": -4, "b": 0} == {
        client: place["balance"] for client, place in driver.state()["counted"]["ring"].items()
    }
