"""Policies by attained service: levels, FIFO inside a level."""

import pytest

from justitia_ray.core import events as ev
from justitia_ray.core.policies import policy_path
from justitia_ray.lab.policies.attained_service import MlfqPolicy
from justitia_ray.units import Tokens
from tests.unit.core.policies.policy_driver import PolicyDriver

LENGTHS = {"cost": "tests.unit.lab.policies.test_attained_service:output_token_cost", "quantum": 10}
"""Options with one unit of service per token, so that levels begin at 0, 10, 30, 70, 150."""


def output_token_cost(prompt_tokens: Tokens, output_tokens: Tokens) -> Tokens:
    """Return the cost of a call with p prompt and d output tokens, here d."""
    return output_tokens


def _client_level(driver: PolicyDriver, client: str) -> int:
    policy = driver.core.ledger.policy
    assert isinstance(policy, MlfqPolicy)
    return policy.level(client)


@pytest.mark.parametrize(
    ("attained", "level"), [(0, 0), (9, 0), (10, 1), (29, 1), (30, 2), (69, 2), (70, 3), (150, 4)]
)
def test_quantum_doubles_with_each_feedback_level(attained: int, level: int) -> None:
    driver = PolicyDriver("mlfq", LENGTHS)
    driver.open_and_submit("a", "a1")
    driver.step()
    driver.step(make={"a1": attained})

    assert level == _client_level(driver, "a")


def test_client_at_a_lower_feedback_level_overtakes() -> None:
    driver = PolicyDriver("mlfq", LENGTHS)
    driver.open_and_submit("a", "a1", "a2")
    driver.open_and_submit("b", "b1", "b2")
    driver.open_and_submit("c", "c1")

    assert ["a1"] == driver.step()
    assert ["b1"] == driver.step(make={"a1": 10}, finish=["a1"])
    assert ["b2"] == driver.step(make={"b1": 9}, finish=["b1"])
    assert ["c1"] == driver.step(make={"b2": 3}, finish=["b2"])
    driver.submit("b3", "b")
    assert ["a2"] == driver.step(make={"c1": 1}, finish=["c1"])
    assert ["b3"] == driver.step(make={"a2": 1}, finish=["a2"])


def test_feedback_level_of_a_client_changes_when_service_is_reported() -> None:
    """A long inference must not keep other inferences of its client in front."""
    driver = PolicyDriver("mlfq", LENGTHS)
    driver.open_and_submit("a", "a1", "a2")
    driver.open_and_submit("b", "b1")
    driver.step()

    assert ["b1"] == driver.step(seats=2, make={"a1": 10})


def test_feedback_level_of_a_client_never_improves() -> None:
    """The attained service of a client never falls."""
    driver = PolicyDriver("mlfq", LENGTHS)
    driver.open_and_submit("a", "a1")
    driver.step()
    driver.step(make={"a1": 30}, finish=["a1"])
    driver.now += 1000
    driver.open_and_submit("b", "b1", "b2")
    driver.submit("a2")

    assert ["b1", "b2", "a2"] == driver.drain()


def test_client_demoted_by_a_grant_is_overtaken_at_once() -> None:
    """One client must not fill all seats of a pull with long prompts."""
    driver = PolicyDriver("mlfq", {"cost": "compute", "quantum": 10})
    driver.open_and_submit("a", "a1", "a2")
    driver.open_and_submit("b", "b1")

    assert ["a1", "b1", "a2"] == driver.step(seats=3)


def test_attained_service_is_counted_per_tenant() -> None:
    """Attained service belongs to the client, and stays when an application ends."""
    driver = PolicyDriver("mlfq", {**LENGTHS, "unit": "tenant"})
    driver.open_and_submit("a", "a1", tenant="t")
    driver.step()
    driver.open_and_submit("b", "b1", tenant="t")
    driver.open_and_submit("c", "c1", tenant="a")
    driver.step(make={"a1": 9})
    driver.handle(ev.ApplicationClosed("a"))

    assert ["c1"] == driver.step(make={"a1": 1}, finish=["a1"])
    assert 1 == _client_level(driver, "t")
    driver.step(make={"c1": 10})
    driver.handle(ev.ApplicationCancelled("c"))
    driver.open_and_submit("a", tenant="u")
    driver.close("a")
    assert 1 == _client_level(driver, "a"), "a tenant, not the application of that name"


def test_restart_keeps_feedback_levels_and_charges_nothing_twice() -> None:
    driver = PolicyDriver("mlfq", {"cost": "compute", "quantum": 10})
    driver.open_and_submit("a", "a1", "a2")
    driver.open_and_submit("b", "b1", "b2")
    driver.step(seats=3)
    driver.step(seats=3, make={"a1": 3, "a2": 4, "b1": 2})
    attained = driver.state()["counted"]["attained"]

    assert {"a": 20 + 14, "b": 10 + 4} == attained
    assert ["b2", "a2"] == driver.restart(seats=4, lost=["a2"])
    assert {"a": 34, "b": 24} == driver.state()["counted"]["attained"]
    driver.step(seats=4, make={"a1": 1, "a2": 6, "b1": 1}, finish=["a1", "a2", "b1"])
    assert {"a": 34 + 2 + 4, "b": 26} == driver.state()["counted"]["attained"]


def test_service_missed_during_a_restart_is_charged_at_the_end() -> None:
    driver = PolicyDriver("mlfq", LENGTHS)
    driver.open_and_submit("a", "a1", "a2")
    driver.open_and_submit("b", "b1")
    driver.step(seats=3)
    driver.step(seats=2, make={"a1": 14, "a2": 14, "b1": 10}, finish=["b1"])
    driver.submit("b2", "b")
    driver.restart(seats=1, lost=["a1"])

    assert ["b2"] == driver.step(make={"a2": 2}, finish=["a2"]), "a1 was in its level, and first"
    assert {"a": 30, "b": 10} == driver.state()["counted"]["attained"]


def test_service_under_another_policy_is_not_charged() -> None:
    driver = PolicyDriver("fcfs")
    driver.open_and_submit("a", "a1", "a2", "a3")
    driver.step(seats=3)
    driver.step(seats=3, make={"a1": 9, "a2": 9, "a3": 9})
    driver.step(seats=2, make={"a3": 9}, requeue=["a3"])
    driver.handle(ev.PolicyChanged(policy_path("mlfq"), tuple(LENGTHS.items())))
    driver.step(seats=3, make={"a1": 2, "a2": 1})
    driver.step(seats=3, make={"a3": 19}, finish=["a1", "a2"])

    assert {"a": 2 + 1 + 1} == driver.state()["counted"]["attained"]


def test_attained_service_under_another_cost_function_is_forgotten() -> None:
    driver = PolicyDriver("mlfq", LENGTHS)
    driver.open_and_submit("a", "a1")
    driver.step()
    driver.step(make={"a1": 30})
    driver.restart({**LENGTHS, "cost": "compute"})

    assert {} == driver.state()["counted"]["attained"]


def test_program_with_the_least_finished_service_is_served_first() -> None:
    driver = PolicyDriver("plas")
    driver.open_and_submit("b", "b1")
    driver.open_and_submit("a", "a1")
    driver.step(seats=2)
    driver.step(seats=2, make={"b1": 2, "a1": 1}, finish=["b1", "a1"])
    driver.submit("b2", "b")
    driver.submit("a2")
    driver.open_and_submit("c", "c1")

    assert ["c1", "a2", "b2"] == driver.drain()


def test_priority_of_a_call_is_fixed_at_submission() -> None:
    """Calls that are submitted together stay together, whatever ends meanwhile."""
    driver = PolicyDriver("plas")
    driver.open_and_submit("a", "a1", "a2", "a3")
    driver.open_and_submit("b", "b1", "b2")

    assert ["a1"] == driver.step()
    assert ["a2"] == driver.step(make={"a1": 30}, finish=["a1"])
    driver.submit("a4")
    assert ["a3", "b1", "b2", "a4"] == [
        name
        for last in ("a2", "a3", "b1", "b2")
        for name in driver.step(make={last: 1}, finish=[last])
    ]


def test_running_call_adds_no_service_before_its_end() -> None:
    """A program of one long call must not move back at once."""
    driver = PolicyDriver("plas")
    driver.open_and_submit("a", "a1")
    driver.open_and_submit("b", "b1")
    driver.step(seats=2)
    driver.step(seats=1, make={"a1": 50, "b1": 1}, finish=["b1"])
    driver.submit("b2", "b")
    driver.submit("a2")

    assert ["a2"] == driver.step(seats=2)


def test_calls_are_ordered_by_priority_before_order_of_submission() -> None:
    driver = PolicyDriver("plas")
    driver.now = 10.0
    driver.open_and_submit("a", "a1", "a2")
    driver.step()
    driver.open_and_submit("b", "b1")
    assert ["a2"] == driver.step(make={"a1": 1}, finish=["a1"])
    driver.submit("a3", age_s=5)

    assert ["a2"] == driver.step(requeue=["a2"])


def test_requeued_inference_keeps_its_priority() -> None:
    driver = PolicyDriver("plas")
    driver.open_and_submit("a", "a1", "a2")
    driver.open_and_submit("b", "b1")
    driver.step(seats=2)
    driver.step(seats=2, make={"a1": 30}, finish=["a1"])
    driver.submit("b2", "b")

    assert ["a2"] == driver.step(seats=2, requeue=["a2"])


def test_applications_of_a_tenant_are_ordered_by_priority() -> None:
    driver = PolicyDriver("plas", {"unit": "tenant"})
    driver.open_and_submit("a", "a1", tenant="t")
    driver.open_and_submit("b", "b1", tenant="t")
    driver.step()
    driver.submit("a2")
    driver.step(make={"a1": 1}, finish=["a1"])
    driver.submit("a3")
    driver.open_and_submit("c", "c1", tenant="t")
    driver.open_and_submit("d", "d1", tenant="u")

    assert ["b1", "d1", "a3", "c1"] == [
        name
        for last in ("a2", "b1", "d1", "a3")
        for name in driver.step(make={last: 1}, finish=[last])
    ]


def test_call_without_output_adds_no_service() -> None:
    """With a price on prompts, a call cancelled in the queue would otherwise count as service."""
    driver = PolicyDriver("plas", {"cost": "compute"})
    driver.open_and_submit("a", "a1", "a2")
    driver.step()
    driver.handle(ev.InferenceCancelled("a2"))
    assert {} == driver.state()["counted"]["finished"]
    driver.step(make={"a1": 4}, finish=["a1"])
    assert {"a": 10 + 2 * 4} == driver.state()["counted"]["finished"]
    assert {"a": {}} == driver.state()["counted"]["fixed"]


def test_finished_calls_of_a_program_add_up() -> None:
    driver = PolicyDriver("plas", {"cost": "compute"})
    driver.open_and_submit("a", "a1")
    fixed = [driver.state()["counted"]["fixed"]["a"]["a1"]]
    for number, tokens in ((1, 4), (2, 3)):
        driver.step()
        driver.step(make={f"a{number}": tokens}, finish=[f"a{number}"])
        driver.submit(f"a{number + 1}")
        fixed.append(driver.state()["counted"]["fixed"]["a"][f"a{number + 1}"])

    assert [0, 18, 18 + 16] == fixed


def test_call_of_several_sequences_adds_the_service_of_each() -> None:
    driver = PolicyDriver("plas")
    driver.open_and_submit("a")
    driver.submit("a1", choices=2)
    driver.step(seats=2)
    driver.step(seats=2, make={"a1": 6}, finish=["a1"])

    assert {"a": 42} == driver.state()["counted"]["finished"]


def test_policy_change_sets_the_priorities_of_waiting_calls() -> None:
    driver = PolicyDriver("fcfs")
    driver.open_and_submit("b", "b1", "b2")
    driver.open_and_submit("a", "a1")
    driver.step()
    driver.handle(ev.PolicyChanged(policy_path("plas")))

    assert ["b1"] == driver.step(requeue=["b1"])
    assert ["b2"] == driver.step(make={"b1": 1}, finish=["b1"])


def test_inferences_of_a_feedback_level_are_served_first_in_first_out() -> None:
    driver = PolicyDriver("mlfq", LENGTHS)
    driver.open_and_submit("c")
    driver.open_and_submit("a", "a1")
    driver.submit("c1", "c")

    assert ["a1", "c1"] == driver.drain()
