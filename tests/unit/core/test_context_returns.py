"""Returns of applications whose contexts were kept."""

from justitia_ray.core import events as ev
from justitia_ray.core.entities import Outcome
from justitia_ray.core.scheduler import SchedulerCore
from tests.core_driver import PATIENT, CoreDriver

KV = 10_000


def core_with_idle_context(*, counts: bool = True) -> CoreDriver:
    """Return a core on which `agent` has left a context of 5,000 tokens.

    With `counts` the context has delayed a decision, so that a gap of 3 s counts.
    """
    driver = CoreDriver(SchedulerCore("justitia", {}, "peak", PATIENT))
    driver.pull(progress=None, kv=KV, caches=True)
    driver.open("runs", 1e8)
    driver.open("agent", 2e8)
    driver.open("next", 3e8)
    driver.submit("runs1", "runs", prompt=10)
    run_turn(driver, "agent1", 4_000, cached=0)
    run_turn(driver, "agent2", 4_990, cached=3_900)
    if counts:
        driver.submit("next1", "next", prompt=5_000)
    return driver


def run_turn(driver: CoreDriver, name: str, prompt: int, *, cached: int | None) -> None:
    """Run a turn of `agent` that finds these tokens in the cache."""
    driver.submit(name, "agent", prompt=prompt)
    lease = driver.core.state.leases[driver.lease_of(name)]
    end = ev.LeaseFinished(lease.lease_id, prompt, 10, Outcome.FINISHED, cached_tokens=cached)
    driver.handle(ev.ReplicaReported(lease.replica_id, (), (end,), asks=True))


def found_and_missed(driver: CoreDriver) -> tuple[int, int]:
    counters = driver.core.state.counters
    return counters.contexts_found, counters.contexts_missed


def test_turn_within_the_keep_time_is_counted_as_context_hit_or_miss() -> None:
    for cached, expected in ((4_900, (1, 0)), (2_400, (0, 1)), (0, (0, 1))):
        driver = core_with_idle_context()
        driver.now += 1.0
        run_turn(driver, "agent3", 5_100, cached=cached)
        driver.handle(ev.ApplicationClosed("agent"))

        assert expected == found_and_missed(driver)


def test_turn_after_its_context_expired_is_not_counted_as_hit_or_miss() -> None:
    driver = core_with_idle_context()
    driver.now += 4.0
    run_turn(driver, "agent3", 5_100, cached=0)
    driver.handle(ev.ApplicationClosed("agent"))

    assert (0, 0) == found_and_missed(driver)


def test_turn_counts_as_hit_or_miss_once_contexts_of_its_class_delay_starts() -> None:
    driver = core_with_idle_context(counts=False)
    driver.now += 1.0
    run_turn(driver, "agent3", 5_100, cached=0)
    driver.handle(ev.ApplicationClosed("agent"))

    assert (0, 0) == found_and_missed(driver)


def test_context_hit_or_miss_of_a_turn_is_counted_at_the_next_turn() -> None:
    driver = core_with_idle_context()
    driver.now += 1.0
    run_turn(driver, "agent3", 5_100, cached=0)
    assert (0, 0) == found_and_missed(driver)

    driver.now += 1.0
    run_turn(driver, "agent4", 4_900, cached=4_800)
    assert (0, 1) == found_and_missed(driver)
    driver.handle(ev.ApplicationClosed("agent"))
    assert (1, 1) == found_and_missed(driver)


def test_turn_that_ends_before_its_prompt_is_computed_is_not_counted() -> None:
    driver = core_with_idle_context()
    driver.now += 1.0
    driver.submit("agent3", "agent", prompt=5_100)
    driver.handle(ev.ApplicationCancelled("agent"))
    driver.last_word(*driver.core.state.leaving)

    assert (0, 0) == found_and_missed(driver)


def test_policy_change_keeps_the_counts_of_context_hits_and_misses() -> None:
    driver = core_with_idle_context()
    driver.now += 1.0
    run_turn(driver, "agent3", 5_100, cached=0)
    driver.handle(ev.ApplicationClosed("agent"))
    driver.handle(ev.PolicyChanged("justitia", (("working_set", False),)))

    assert (0, 1) == found_and_missed(driver)


def test_counts_of_context_hits_forget_ended_applications() -> None:
    driver = core_with_idle_context()
    driver.now += 1.0
    run_turn(driver, "agent3", 5_100, cached=0)
    driver.handle(ev.ApplicationClosed("agent"))
    gate = driver.core.ledger.gate
    assert gate is not None

    assert {} == gate._returns.open
