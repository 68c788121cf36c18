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


def a_driver(
    policy: str = "justitia",
    options: dict[str, Any] | None = None,
    *,
    cost: int = 1_000_000,
    knows_times: bool = True,
) -> CoreDriver:
    """Return a core in which `a` has its context on r0, which `b` fills for 0.2 s; r1 is empty."""
    driver = CoreDriver(SchedulerCore(policy, options, timeouts=PATIENT))
    if knows_times:
        teach_times(driver)
    driver.pull("r0", kv=KV, caches=True)
    driver.open("a", cost)
    driver.submit("a1", "a", prompt=CONTEXT - 10, output=10)
    driver.pull("r0", finished={driver.lease_of("a1"): 10}, kv=KV, caches=True)
    lie(driver, CONTEXT)
    driver.open("b", 1_000)
    assert ["b1"] == granted(driver.submit("b1", "b", prompt=1_940, output=20, max_output=1_000))
    driver.pull("r0", progress={driver.lease_of("b1"): 10}, kv=KV, caches=True)
    driver.pull("r1", kv=KV, caches=True)
    return driver


def teach_times(driver: CoreDriver) -> None:
    """Report 40 stretches of 16 iterations, every other one with a computed prompt token."""
    times, now = driver.core.state.engine_times, 0.0
    for computed in (0, 1) * 20:
        times.report("another replica", 16, 16, computed, now, is_busy=True)
        now += 16 * ITERATION_S
        now += PROMPT_TOKEN_S * (1 - computed)  # the next report has the token


def lie(driver: CoreDriver, tokens: int) -> None:
    """Let the context of `a` on r0 have this many tokens."""
    contexts = driver.core.state.replicas["r0"].contexts
    for _, context in [*contexts.idle()]:
        contexts.forget("a", context)
    contexts.put("a", Context(tokens, tokens), KV)


def places(driver: CoreDriver, *requests: str) -> list[str | None]:
    """Return the replica of each request; None: it waits."""
    leases, inferences = driver.core.state.leases, driver.core.state.inferences
    names = [inferences[request].lease_id for request in requests]
    return [None if name is None else leases[name].replica_id for name in names]


def ask(driver: CoreDriver) -> None:
    for name in ("r0", "r1"):
        driver.handle(ev.ReplicaReported(name, asks=True))


def test_first_in_order_waits_for_the_replica_with_its_context_and_starts_there() -> None:
    """On r1 it would compute 1,100 tokens in 1.1 s; r0 has the memory in 0.2 s."""
    driver = a_driver()
    assert [] == granted(driver.submit("a2", "a", prompt=1_100, output=10))

    driver.now += 0.2
    driver.pull("r0", finished={driver.lease_of("b1"): 20}, kv=KV, caches=True)
    assert ["r0"] == places(driver, "a2")


def test_others_start_on_other_replicas_meanwhile() -> None:
    driver = a_driver()
    driver.submit("a2", "a", prompt=1_100, output=10)
    driver.open("c", 10_000_000)

    assert ["c1"] == granted(driver.submit("c1", "c", prompt=100, output=10))
    assert [None, "r1"] == places(driver, "a2", "c1")


def test_others_leave_the_memory_with_which_it_could_start_at_once() -> None:
    driver = a_driver()
    driver.submit("a2", "a", prompt=1_100, output=10)
    driver.open("c", 10_000_000)

    assert [] == granted(driver.submit("c1", "c", prompt=1_900, output=10))
    assert ["c1"] != granted(driver.wait(0.05))
    driver.open("d", 20_000_000)
    assert [] == granted(driver.submit("d1", "d", prompt=10, output=10)), "c waits for memory"


def test_others_leave_the_seat_with_which_it_could_start_at_once() -> None:
    driver = a_driver()
    driver.pull("r1", kv=KV, seats=1, caches=True)
    driver.submit("a2", "a", prompt=1_100, output=10)
    driver.open("c", 10_000_000)

    assert [] == granted(driver.submit("c1", "c", prompt=10, output=10))


def test_nothing_overtakes_it_on_the_replica_that_it_waits_for() -> None:
    driver = a_driver()
    driver.submit("a2", "a", prompt=1_100, output=10)
    driver.open("c", 10_000_000)
    driver.submit("c1", "c", prompt=1_900, output=10)
    driver.open("d", 20_000_000)
    driver.submit("d1", "d", prompt=100, output=10)

    assert [None, None, None] == places(driver, "a2", "c1", "d1")


def test_wait_ends_when_it_has_taken_as_long_as_it_could_have_saved() -> None:
    driver = a_driver()
    driver.submit("a2", "a", prompt=1_100, output=10)
    wait = driver.core.state.inferences["a2"].holder_wait
    assert wait is not None
    # 1,100 tokens that delay one inference, less 100 that delay two and 0.5 for reading contexts
    assert 0.9 == pytest.approx(wait.until - driver.now, abs=0.01)

    assert wait.until == driver.core.next_deadline()
    driver.now = wait.until
    assert ["a2"] == granted(driver.handle(ev.DeadlinePassed()))
    assert ["r1"] == places(driver, "a2")


def test_wait_ends_when_the_replica_turns_out_to_be_full_for_longer() -> None:
    """`b` outlives its prediction: it is expected to take twice as long, and twice again."""
    driver = a_driver()
    driver.submit("a2", "a", prompt=1_100, output=10)
    driver.now += 0.2
    driver.pull("r0", progress={driver.lease_of("b1"): 20}, kv=KV, caches=True)
    assert [None] == places(driver, "a2")

    driver.open("c", 1)
    driver.now += 0.7
    driver.pull("r0", progress={driver.lease_of("b1"): 40}, kv=KV, caches=True)
    driver.pull("r1", kv=KV, caches=True)
    assert ["r1"] == places(driver, "a2")


def test_inference_waits_once() -> None:
    """Its lease on r1 came to nothing: it starts there again at once."""
    driver = a_driver()
    driver.submit("a2", "a", prompt=1_100, output=10)
    driver.wait(1.5)
    assert ["r1"] == places(driver, "a2")

    driver.handle(ev.LeaseNacked(driver.lease_of("a2"), ev.NackReason.LEASE))
    assert ["r1"] == places(driver, "a2")


def test_no_inference_waits_longer_than_computing_its_prompt_takes() -> None:
    driver = a_driver()
    lie(driver, 100)  # it would save a tenth of a second

    assert ["a2"] == granted(driver.submit("a2", "a", prompt=1_100, output=10))
    assert ["r1"] == places(driver, "a2")


def test_no_inference_waits_while_the_times_of_the_engines_are_unknown() -> None:
    driver = a_driver(knows_times=False)
    driver.submit("a2", "a", prompt=1_100, output=10)

    assert ["r1"] == places(driver, "a2")


def test_no_inference_waits_for_a_replica_that_takes_no_leases() -> None:
    driver = a_driver()
    driver.pull("r0", progress={driver.lease_of("b1"): 1}, kv=KV, caches=True, draining=True)
    driver.submit("a2", "a", prompt=1_100, output=10)

    assert ["r1"] == places(driver, "a2")


def test_no_inference_waits_for_a_replica_that_refuses_it_although_it_has_the_memory() -> None:
    """The engine of r0 accepts 100 prompt tokens at once."""
    driver = a_driver()
    ended = ev.LeaseFinished(driver.lease_of("b1"), 0, 20, Outcome.FINISHED)
    asks = ev.ReplicaReported("r0", (), (ended,), asks=True, most_prompt_tokens=100)
    driver.handle(asks)
    driver.submit("a2", "a", prompt=1_100, output=10)

    assert ["r1"] == places(driver, "a2")


def test_application_that_gps_has_finished_does_not_wait() -> None:
    """V reaches its tag with the next token of `b`; the order promises that it is not late."""
    driver = a_driver(cost=10_000)  # of which its first turn took 9,955
    driver.submit("a2", "a", prompt=1_100, output=10)
    assert [None] == places(driver, "a2")

    driver.pull("r0", progress={driver.lease_of("b1"): 11}, kv=KV, caches=True)
    assert ["r1"] == places(driver, "a2")


@pytest.mark.parametrize("options", [{"order": "sgps"}, {}])
def test_no_inference_waits_under_an_order_that_lets_others_overtake(
    options: dict[str, Any],
) -> None:
    driver = a_driver("justitia-guarded", options)
    driver.submit("a2", "a", prompt=1_100, output=10)

    assert ["r1"] == places(driver, "a2")


def test_policies_without_tags_wait_too() -> None:
    driver = a_driver("fcfs")
    driver.submit("a2", "a", prompt=1_100, output=10)

    assert [None] == places(driver, "a2")


def test_outlook_names_the_replica_and_for_how_long_it_is_full() -> None:
    driver = a_driver()
    driver.submit("a2", "a", prompt=1_100, output=10)
    outlook = outlook_of(driver, "a")

    assert "context:r0" == outlook.reason
    assert "time: its context lies on r0, which is full for 0.2 s" == outlook.what_would_help
    assert outlook.context_full_s == pytest.approx(0.2, rel=0.01)
    assert outlook.expected_start_s is not None
    assert 0.1 < outlook.expected_start_s.p90

    driver.now += 0.2
    driver.pull("r0", finished={driver.lease_of("b1"): 20}, kv=KV, caches=True)
    outlook = outlook_of(driver, "a")
    assert ("running", None) == (outlook.reason, outlook.context_full_s)


def outlook_of(driver: CoreDriver, name: str) -> Outlook:
    return driver.core.outlooks.ask([name], now=driver.now)[name]
