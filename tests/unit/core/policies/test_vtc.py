"""VTC by hand: what is charged when, and which client is lifted to which counter.

h = p + 2d unless a test says otherwise; a replica of one seat, so that one inference runs.
"""

import pytest

from justitia_ray.core import events as ev
from tests.core_driver import granted
from tests.exact import exact
from tests.unit.core.policies.policy_driver import (
    PolicyDriver,
    driver_with_two_clients,
    driver_with_two_inferences,
)


def test_vtc_charges_the_prompt_at_admission_and_each_output_token() -> None:
    """A prompt costs 10 at once, then each token 2 (VTC, Alg. 2, lines 25 and 31)."""
    driver = driver_with_two_inferences()
    charged = [driver.counter("a")]
    for tokens in (1, 4):
        driver.report_tokens("a1", tokens)
        charged.append(driver.counter("a"))

    assert [10, 12, 18] == charged


def test_client_with_the_lowest_vtc_counter_is_granted_first() -> None:
    """Counters include the last report at every grant (VTC, Alg. 2, line 21)."""
    driver = driver_with_two_inferences()
    driver.submit("b1", "b", prompt=20)

    assert ["b1"] == driver.finish("a1", 4)
    assert (18, 30) == (driver.counter("a"), driver.counter("b"))
    assert ["a2"] == driver.finish("b1", 1)
    assert (28, 32) == (driver.counter("a"), driver.counter("b"))


def test_vtc_counter_of_a_new_client_is_lifted_to_the_least_waiting_counter() -> None:
    """Without the lift, new clients would always be served first (VTC, Alg. 2, lines 12 to 14)."""
    driver = driver_with_two_inferences()
    driver.report_tokens("a1", 2)
    driver.submit("b1", "b")

    assert 14 == driver.counter("b")
    assert ["a2"] == driver.finish("a1", 2)  # a tie goes to the client first seen


def test_counter_lift_of_a_new_client_never_lowers_its_counter() -> None:
    """A client that comes back keeps the service counted earlier."""
    driver = driver_with_two_inferences()
    driver.submit("b1", "b", prompt=500)
    driver.finish("a1", 1)
    driver.finish("b1", 1)  # a2 runs
    driver.submit("a3", "a")
    driver.submit("b2", "b")

    assert (22, 512) == (driver.counter("a"), driver.counter("b"))


def test_counter_of_a_waiting_client_is_not_raised_again() -> None:
    """A second inference of a waiting client changes no counter (VTC, Alg. 2, line 8)."""
    driver = driver_with_two_inferences()
    driver.submit("b1", "b")
    driver.report_tokens("a1", 50)
    driver.submit("b2", "b")

    assert (110, 10) == (driver.counter("a"), driver.counter("b"))


def test_client_with_only_running_inferences_does_not_count_as_waiting() -> None:
    """A running inference does not keep the counter of its client down (VTC, Alg. 2, line 8)."""
    driver = PolicyDriver("vtc")
    driver.open("a")
    driver.open("b")
    driver.pull(seats=2)
    driver.submit("b1", "b", prompt=1)
    driver.submit("a1", "a", prompt=100)
    driver.submit("a2", "a", prompt=100)
    driver.submit("b2", "b", prompt=1)

    assert 101 == driver.counter("a")
    assert 101 == driver.counter("b")


def test_empty_queue_lifts_a_new_client_to_the_counter_of_the_last_client() -> None:
    """The counter includes the tokens made since that client left (VTC, Alg. 2, lines 9 to 11)."""
    driver = driver_with_two_inferences()
    driver.finish("a1", 4)  # a2 runs, no inference waits; the counter of client a is 28
    driver.report_tokens("a2", 3)
    driver.submit("b1", "b")

    assert (34, 34) == (driver.counter("a"), driver.counter("b"))


def test_counter_level_of_an_ended_application_stays() -> None:
    """A new client gathers no credit after the queue was empty (VTC, Alg. 2, line 11)."""
    driver = driver_with_two_inferences()
    driver.handle(ev.ApplicationClosed("a"))
    driver.finish("a1", 4)
    driver.finish("a2", 1)
    driver.submit("b1", "b")

    assert {"b"} == set(driver.vtc.counted()["clients"]["counters"])
    assert {"b"} == set(driver.vtc.counted()["bills"])
    assert 30 + 10 == driver.counter("b")


def test_requeued_inference_is_not_charged_again_and_lifts_no_counter() -> None:
    """The client is not charged for a lost replica."""
    driver = driver_with_two_inferences()
    driver.report_tokens("a1", 3)
    driver.open("c")
    driver.pull("r1", seats=1)  # r1 takes a2
    driver.submit("c1", "c", prompt=7)
    driver.submit("b1", "b", prompt=60)
    assert (26, 26, 26) == tuple(driver.counter(name) for name in "abc")

    driver.pull("r1", finished={driver.lease_of("a2"): 1}, seats=1)  # b1 or c1: b was seen first
    driver.pull("r1", finished={driver.lease_of("b1"): 1}, seats=1)  # then r1 takes c1
    assert (28, 88, 33) == tuple(driver.counter(name) for name in "abc")
    driver.submit("b2", "b")
    driver.handle(ev.ReplicaLost("r0"))

    assert (28, 88) == (driver.counter("a"), driver.counter("b"))
    assert ["a1"] == granted(driver.pull("r2", seats=1))
    assert 28 == driver.counter("a")
    driver.pull("r2", progress={driver.lease_of("a1"): 3}, seats=1)
    assert 28 == driver.counter("a")
    driver.pull("r2", progress={driver.lease_of("a1"): 4}, seats=1)
    assert 30 == driver.counter("a")


def test_vtc_charges_are_divided_by_the_weight_of_the_client() -> None:
    """A client of weight 3 gets three times the service of weight 1 (VTC, Sec. 4.3)."""
    driver = PolicyDriver("vtc")
    driver.open("a", weight=exact(3))
    driver.open("b", weight=exact(1, 2))
    driver.pull(seats=2)
    driver.submit("a1", "a", prompt=10)
    driver.submit("b1", "b", prompt=10)

    assert exact(10, 3) == driver.counter("a")
    assert exact(10, 3) + 20 == driver.counter("b")  # lifted when a had left


def test_changed_weight_applies_to_later_charges() -> None:
    driver = driver_with_two_inferences()
    driver.report_tokens("a1", 2)
    driver.handle(ev.WeightChanged("a", 2))
    driver.report_tokens("a1", 5)

    assert 17 == driver.counter("a")


def test_vtc_counters_stay_exact_whole_numbers() -> None:
    """The bounds of the paper are tested without a tolerance."""
    driver = PolicyDriver("vtc")
    driver.open("a", weight=exact(1))
    driver.pull(seats=1)
    driver.submit("a1", "a", prompt=2**60 + 1, output=1)
    driver.report_tokens("a1", 1)

    assert 2**60 + 3 == driver.counter("a")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [12, 16]),
        ({"cost": "kv_token_time"}, [0, 14]),
        ({"cost": "profiled"}, [2 * (2.1 * 6 + 11.46), 2 * (2.1 * 6 + 1 + 0.24 + 0.032 + 11.46)]),
    ],
)
def test_every_cost_function_charges_a_lease_by_its_sequences(
    options: dict[str, object], expected: list[float]
) -> None:
    driver = PolicyDriver("vtc", options)
    driver.open("a")
    driver.pull(seats=2)
    driver.submit("a1", "a", prompt=12, output=20, choices=2)
    charged = [driver.counter("a")]
    driver.report_tokens("a1", 2, seats=2)
    charged.append(driver.counter("a"))

    assert expected == pytest.approx(charged)


@pytest.mark.parametrize(("counted", "expected"), [(13, [17, 19]), (7, [11, 13]), (1, [10, 10])])
def test_prompt_is_charged_by_the_token_count_of_the_replica(
    counted: int, expected: list[int]
) -> None:
    """The ingress estimates without the chat template, and a counter of VTC never falls."""
    driver = driver_with_two_inferences()
    charged = []
    for tokens in (2, 3):
        lease_id = driver.lease_of("a1")
        driver.pull(progress=[ev.LeaseProgress(lease_id, counted, tokens, running=True)], seats=1)
        charged.append(driver.counter("a"))
    driver.finish("a1", 3)

    assert expected == charged
    assert expected[-1] + 10 == driver.counter("a")  # a2 is admitted


def test_tenants_are_compared_by_all_their_applications() -> None:
    """A tenant gains nothing by opening another application."""
    driver = PolicyDriver("vtc", {"unit": "tenant"})
    for name, tenant in (("a", "x"), ("b", "x/below"), ("c", "y")):
        driver.open(name, tenant=tenant)
    driver.pull(seats=1)
    driver.submit("b1", "b", prompt=30)
    driver.submit("b2", "b")
    driver.submit("a1", "a")
    driver.submit("c1", "c", prompt=5)

    assert (30, 30) == (driver.counter("x"), driver.counter("y"))
    assert [["c1"], ["b2"], ["a1"]] == [driver.finish(name, 1) for name in ("b1", "c1", "b2")]


def test_counter_of_a_tenant_outlives_its_applications() -> None:
    """A tenant cannot lose its debt by closing an application."""
    driver = PolicyDriver("vtc", {"unit": "tenant"})
    driver.open("a", tenant="x")
    driver.pull(seats=1)
    driver.submit("a1", "a")
    driver.handle(ev.ApplicationClosed("a"))
    driver.finish("a1", 5)

    assert 20 == driver.counter("x")
    assert {} == driver.vtc.counted()["bills"]


def test_last_opened_application_sets_the_weight_of_its_tenant() -> None:
    """If applications of a tenant disagree, the order of reports must not decide."""
    driver = PolicyDriver("vtc", {"unit": "tenant"})
    driver.open("a", tenant="x", weight=1)
    driver.open("b", tenant="x", weight=4)
    driver.pull(seats=3)
    driver.submit("a1", "a", prompt=8)
    weights = [driver.vtc.counters["x"].weight]
    driver.submit("b1", "b", prompt=8)
    driver.submit("a2", "a", prompt=8)
    weights.append(driver.vtc.counters["x"].weight)

    assert [1, 4] == weights
    assert 8 + 2 + 2 == driver.counter("x")


def test_lcf_policy_does_not_lift_the_counter_of_a_new_client() -> None:
    """Under LCF, a client that was away is served alone until it has caught up."""
    driver = driver_with_two_clients("lcf")
    for name in ("a1", "a2", "a3"):
        driver.submit(name, "a")
    driver.report_tokens("a1", 8)
    for name in ("b1", "b2"):
        driver.submit(name, "b")

    assert (26, 0) == (driver.counter("a"), driver.counter("b"))
    assert [["b1"], ["b2"]] == [driver.finish("a1", 8), driver.finish("b1", 1)]


def test_new_policy_starts_all_counters_at_zero() -> None:
    """A running inference pays only for tokens generated under the new policy."""
    driver = PolicyDriver("fcfs")
    driver.open("a")
    driver.open("b")
    driver.pull("r0", seats=1)
    driver.pull("r1", seats=1)
    for name in ("a1", "a2", "a3"):
        driver.submit(name, "a")
    driver.submit("b1", "b")
    driver.report_tokens("a1", 4)
    driver.handle(ev.PolicyChanged("vtc", (("unit", "tenant"),), "peak"))
    assert 0 == driver.counter("tenant")

    driver.report_tokens("a1", 5)
    assert 2 == driver.counter("tenant")
    driver.pull("r0", seats=1)  # the replica no longer reports a1
    assert (2, ["a3"]) == (driver.counter("tenant"), driver.waiting("a"))


def test_inference_admitted_under_another_policy_is_charged_at_readmission() -> None:
    driver = PolicyDriver("fcfs")
    driver.open("a")
    driver.pull(seats=1)
    driver.submit("a1", "a")
    driver.report_tokens("a1", 4)
    driver.handle(ev.PolicyChanged("vtc", (), "peak"))
    driver.handle(ev.ReplicaLost("r0"))
    driver.pull(seats=1)
    assert 10 == driver.counter("a")
    assert [18, 0, 4, 1] == driver.vtc.counted()["bills"]["a"]["a1"]

    driver.report_tokens("a1", 6)
    assert 10 + 2 * 2 == driver.counter("a")
