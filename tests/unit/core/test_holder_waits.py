"""Waiting for the replica that holds an inference's context, while others may overtake it."""

from typing import Any

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.contexts import Context
from justitia_ray.core.entities import Outcome
from justitia_ray.core.outlook import Outlook
from tests.core_driver import PATIENT, CoreDriver, granted

KV = 3_000
CONTEXT = 1_000
PROMPT_TOKEN_S, ITERATION_S = 0.001, 0.02


def core_with_full_holder(
    policy: str = "justitia",
    options: dict[str, Any] | None = None,
    *,
    cost: int = 1_000_000,
    knows_times: bool = True,
) -> CoreDriver:
    """Return a core where the replica with the context of `a` is full and the other one empty."""
    driver = CoreDriver(SchedulerCore(policy, options, timeouts=PATIENT))
    if knows_times:
        teach_engine_times(driver)
    driver.pull("r0", kv=KV, caches=True)
    driver.open("a", cost)
    driver.submit("a1", "a", prompt=CONTEXT - 10, output=10)
    driver.pull("r0", finished={driver.lease_of("a1"): 10}, kv=KV, caches=True)
    set_context_tokens(driver, CONTEXT)
    driver.open("b", 1_000)
    assert ["b1"] == granted(driver.submit("b1", "b", prompt=1_940, output=20, max_output=1_000))
    driver.pull("r0", progress={driver.lease_of("b1"): 10}, kv=KV, caches=True)
    driver.pull("r1", kv=KV, caches=True)
    return driver


def teach_engine_times(driver: CoreDriver) -> None:
    """Report 40 stretches of 16 iterations, every second one with a computed prompt token."""
    times, now = driver.core.state.engine_times, 0.0
    for computed in (0, 1) * 20:
        times.report("another replica", 16, 16, computed, now, is_busy=True)
        now += 16 * ITERATION_S
        now += PROMPT_TOKEN_S * (1 - computed)


def set_context_tokens(driver: CoreDriver, tokens: int) -> None:
    """Set the number of tokens of the context of `a` on r0."""
    contexts = driver.core.state.replicas["r0"].contexts
    for _, context in [*contexts.idle()]:
        contexts.forget("a", context)
    contexts.put("a", Context(tokens, tokens), KV)


def replicas_of_requests(driver: CoreDriver, *requests: str) -> list[str | None]:
    """Return the replica of each request, or None while it waits."""
    leases, inferences = driver.core.state.leases, driver.core.state.inferences
    names = [inferences[request].lease_id for request in requests]
    return [None if name is None else leases[name].replica_id for name in names]


def let_replicas_ask(driver: CoreDriver) -> None:
    for name in ("r0", "r1"):
        driver.handle(ev.ReplicaReported(name, asks=True))


def test_first_application_waits_for_the_replica_with_its_context() -> None:
    driver = core_with_full_holder()
    assert [] == granted(driver.submit("a2", "a", prompt=1_100, output=10))

    driver.now += 0.2
    driver.pull("r0", finished={driver.lease_of("b1"): 20}, kv=KV, caches=True)
    assert ["r0"] == replicas_of_requests(driver, "a2")


def test_other_applications_start_elsewhere_while_the_first_waits_for_its_context() -> None:
    driver = core_with_full_holder()
    driver.submit("a2", "a", prompt=1_100, output=10)
    driver.open("c", 10_000_000)

    assert ["c1"] == granted(driver.submit("c1", "c", prompt=100, output=10))
    assert [None, "r1"] == replicas_of_requests(driver, "a2", "c1")


def test_memory_is_reserved_for_an_application_that_waits_for_its_context() -> None:
    driver = core_with_full_holder()
    driver.submit("a2", "a", prompt=1_100, output=10)
    driver.open("c", 10_000_000)

    assert [] == granted(driver.submit("c1", "c", prompt=1_900, output=10))
    assert ["c1"] != granted(driver.wait(0.05))
    driver.open("d", 20_000_000)
    assert [] == granted(driver.submit("d1", "d", prompt=10, output=10)), "c waits for memory"


def test_seat_is_reserved_for_an_application_that_waits_for_its_context() -> None:
    driver = core_with_full_holder()
    driver.pull("r1", kv=KV, seats=1, caches=True)
    driver.submit("a2", "a", prompt=1_100, output=10)
    driver.open("c", 10_000_000)

    assert [] == granted(driver.submit("c1", "c", prompt=10, output=10))


def test_application_that_waits_for_its_context_is_not_overtaken_on_that_replica() -> None:
    driver = core_with_full_holder()
    driver.submit("a2", "a", prompt=1_100, output=10)
    driver.open("c", 10_000_000)
    driver.submit("c1", "c", prompt=1_900, output=10)
    driver.open("d", 20_000_000)
    driver.submit("d1", "d", prompt=100, output=10)

    assert [None, None, None] == replicas_of_requests(driver, "a2", "c1", "d1")


def test_wait_for_a_context_is_limited_by_the_prefill_time_it_saves() -> None:
    driver = core_with_full_holder()
    driver.submit("a2", "a", prompt=1_100, output=10)
    wait = driver.core.state.inferences["a2"].holder_wait
    assert wait is not None
    assert 0.9 == pytest.approx(wait.until - driver.now, abs=0.01)

    assert wait.until == driver.core.next_deadline()
    driver.now = wait.until
    assert ["a2"] == granted(driver.handle(ev.DeadlinePassed()))
    assert ["r1"] == replicas_of_requests(driver, "a2")


def test_wait_for_a_context_ends_when_its_replica_is_full_for_longer_than_expected() -> None:
    """A lease that outlives its prediction is expected to take twice as long."""
    driver = core_with_full_holder()
    driver.submit("a2", "a", prompt=1_100, output=10)
    driver.now += 0.2
    driver.pull("r0", progress={driver.lease_of("b1"): 20}, kv=KV, caches=True)
    assert [None] == replicas_of_requests(driver, "a2")

    driver.open("c", 1)
    driver.now += 0.7
    driver.pull("r0", progress={driver.lease_of("b1"): 40}, kv=KV, caches=True)
    driver.pull("r1", kv=KV, caches=True)
    assert ["r1"] == replicas_of_requests(driver, "a2")


def test_inference_waits_for_its_context_once() -> None:
    driver = core_with_full_holder()
    driver.submit("a2", "a", prompt=1_100, output=10)
    driver.wait(1.5)
    assert ["r1"] == replicas_of_requests(driver, "a2")

    driver.handle(ev.LeaseNacked(driver.lease_of("a2"), ev.NackReason.LEASE))
    assert ["r1"] == replicas_of_requests(driver, "a2")


def test_wait_for_a_context_never_exceeds_the_time_to_compute_the_prompt() -> None:
    driver = core_with_full_holder()
    set_context_tokens(driver, 100)  # computing the context again would take a tenth of a second

    assert ["a2"] == granted(driver.submit("a2", "a", prompt=1_100, output=10))
    assert ["r1"] == replicas_of_requests(driver, "a2")


def test_no_inference_waits_for_its_context_while_engine_times_are_unknown() -> None:
    driver = core_with_full_holder(knows_times=False)
    driver.submit("a2", "a", prompt=1_100, output=10)

    assert ["r1"] == replicas_of_requests(driver, "a2")


def test_no_inference_waits_for_a_replica_that_takes_no_leases() -> None:
    driver = core_with_full_holder()
    driver.pull("r0", progress={driver.lease_of("b1"): 1}, kv=KV, caches=True, draining=True)
    driver.submit("a2", "a", prompt=1_100, output=10)

    assert ["r1"] == replicas_of_requests(driver, "a2")


def test_no_inference_waits_for_a_replica_that_refuses_it_with_free_memory() -> None:
    driver = core_with_full_holder()
    ended = ev.LeaseFinished(driver.lease_of("b1"), 0, 20, Outcome.FINISHED)
    asks = ev.ReplicaReported("r0", (), (ended,), asks=True, most_prompt_tokens=100)
    driver.handle(asks)
    driver.submit("a2", "a", prompt=1_100, output=10)

    assert ["r1"] == replicas_of_requests(driver, "a2")


def test_application_that_gps_has_finished_does_not_wait_for_its_context() -> None:
    """Waiting would make the application late, because GPS has already finished it."""
    driver = core_with_full_holder(cost=10_000)
    driver.submit("a2", "a", prompt=1_100, output=10)
    assert [None] == replicas_of_requests(driver, "a2")

    driver.pull("r0", progress={driver.lease_of("b1"): 11}, kv=KV, caches=True)
    assert ["r1"] == replicas_of_requests(driver, "a2")


@pytest.mark.parametrize("options", [{"order": "sgps"}, {}])
def test_policies_that_allow_overtaking_let_no_inference_wait_for_its_context(
    options: dict[str, Any],
) -> None:
    driver = core_with_full_holder("justitia-guarded", options)
    driver.submit("a2", "a", prompt=1_100, output=10)

    assert ["r1"] == replicas_of_requests(driver, "a2")


def test_inferences_wait_for_contexts_under_policies_without_tags() -> None:
    driver = core_with_full_holder("fcfs")
    driver.submit("a2", "a", prompt=1_100, output=10)

    assert [None] == replicas_of_requests(driver, "a2")


def test_outlook_of_a_wait_for_a_context_names_the_full_replica() -> None:
    driver = core_with_full_holder()
    driver.submit("a2", "a", prompt=1_100, output=10)
    outlook = read_outlook(driver, "a")

    assert "context:r0" == outlook.reason
    assert "time: its context lies on r0, which is full for 0.2 s" == outlook.what_would_help
    assert outlook.context_full_s == pytest.approx(0.2, rel=0.01)
    assert outlook.expected_start_s is not None
    assert 0.1 < outlook.expected_start_s.p90

    driver.now += 0.2
    driver.pull("r0", finished={driver.lease_of("b1"): 20}, kv=KV, caches=True)
    outlook = read_outlook(driver, "a")
    assert ("running", None) == (outlook.reason, outlook.context_full_s)


def read_outlook(driver: CoreDriver, name: str) -> Outlook:
    return driver.core.outlooks.ask([name], now=driver.now)[name]
