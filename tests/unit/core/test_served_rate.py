"""Recent rate of service."""

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.policies.guarded.policy import GuardedPolicy
from justitia_ray.core.prefixes import Prefix, pack_prefixes
from justitia_ray.core.served_rate import (
    HALF_LIFE_S,
    USUAL_ITERATION_S,
    USUAL_USE,
    ServedRate,
)
from tests.core_driver import CoreDriver


def test_service_rate_is_service_over_busy_time() -> None:
    """Expected waits are computed from this rate."""
    rate = ServedRate()
    rate.record(1000, 2.0, 50, 5, 100)
    rate.record(2000, 4.0, 50, 5, 200)

    assert rate.kv_per_s(0) == pytest.approx(500)
    assert rate.iteration_s == pytest.approx(50 / 500)


def test_iteration_time_is_the_time_per_generated_token() -> None:
    """Service is no measure of iteration time, because most of it may be prefill."""
    rates = [ServedRate() for _ in range(2)]
    for rate, per_iteration in zip(rates, (50, 5000), strict=True):
        rate.record(20 * per_iteration, 2.0, 50, 5, 100)

    assert [0.1, 0.1] == [pytest.approx(rate.iteration_s) for rate in rates]
    rates[0].record(2000, 4.0, 50, 5, 200, (40, 8.0))
    assert rates[0].iteration_s == pytest.approx(0.2)


def test_light_load_does_not_change_the_measured_iteration_time() -> None:
    """Under light load most samples find no running inference."""
    driver = CoreDriver()
    driver.pull("r0", kv=10_000)
    driver.open("a", 10**6)
    for number in range(20):
        request = f"a{number}"
        driver.submit(request, output=20)
        lease = driver.lease_of(request)
        driver.now += 0.9
        driver.pull("r0", {lease: 18}, kv=10_000)
        driver.now += 0.1
        driver.end(request, 10, 20)
        driver.now += 1.0

    assert driver.core.outlooks.iteration_s == pytest.approx(0.05)


def test_lease_that_a_lost_replica_interrupted_gives_no_iteration_time() -> None:
    driver = CoreDriver()
    driver.pull("r0", kv=10_000)
    driver.open("a", 10**6)
    driver.submit("cut", output=20)
    driver.now += 5.0
    driver.handle(ev.ReplicaLost("r0"))
    driver.pull("r0", kv=10_000)
    driver.now += 1.0
    driver.end("cut", 10, 20)

    counters = driver.core.state.counters
    assert (counters.iterations, counters.iterating_s) == (0, 0)


def test_idle_time_does_not_change_the_service_rate() -> None:
    """After an idle night the expected rate is that of the evening."""
    rate = ServedRate()
    rate.record(1000, 2.0, 50, 5, 100)
    before = rate.kv_per_s(0)
    rate.record(1000, 2.0, 0, 0, 100)

    assert rate.kv_per_s(0) == before
    assert 2.0 == rate.busy_s


def test_measured_service_rate_follows_half_of_a_change_in_one_half_life() -> None:
    """An added replica must show in the rate within minutes."""
    rate, served, busy_s = ServedRate(), 0.0, 0.0
    for per_s, lasts_s in ((100, 20 * HALF_LIFE_S), (200, HALF_LIFE_S)):
        for _ in range(round(lasts_s)):
            served, busy_s = served + per_s, busy_s + 1.0
            rate.record(served, busy_s, 10, 1, round(busy_s))

    assert rate.kv_per_s(0) == pytest.approx(150, rel=0.02)


def test_initial_service_rate_is_estimated_from_the_memory() -> None:
    """The first application needs an expected wait before any service was measured."""
    rate = ServedRate()

    assert 0 < rate.kv_per_s(0) < rate.kv_per_s(3000) < 3000 / USUAL_ITERATION_S
    assert rate.iteration_s == USUAL_ITERATION_S


def test_service_per_iteration_is_measured_while_inferences_wait() -> None:
    """An hour in which nothing waits does not lower it, and prefill raises it above the memory."""
    rate, kv = ServedRate(), 1000
    assert rate.kv_per_iteration(kv) == USUAL_USE * kv
    rate.record(10, 100.0, 10, 1, 100, (100, 10.0))
    assert rate.kv_per_iteration(kv) == USUAL_USE * kv
    rate.record(10 + 200_000, 110.0, kv, 10, 1100, (1100, 110.0), waits=True)
    assert rate.kv_per_iteration(kv) == pytest.approx(0.1 * 20_000)
    rate.record(10 + 200_010, 3710.0, 10, 1, 1200, (1200, 120.0))

    assert rate.kv_per_iteration(kv) == pytest.approx(0.1 * 20_000)
    assert rate.kv_per_s(kv) < 1


def test_rate_of_generated_tokens_is_measured_without_prefill() -> None:
    rate = ServedRate()
    assert rate.decoded_per_iteration == 0
    rate.record(5000, 2.0, 50, 5, 100, (20, 2.0), 1000)

    assert rate.decoded_per_iteration == pytest.approx(1000 / 2 * 0.1)


def test_shared_prefixes_allow_more_tokens_in_flight_than_the_memory_holds() -> None:
    """Five prompts of 110 tokens, the first 100 of which they share, hold 150 tokens of memory."""
    driver = CoreDriver(SchedulerCore("justitia-guarded"))
    driver.pull("r0", kv=200, caches=True)
    driver.open("a", 10**6)
    common = pack_prefixes([Prefix(100, b"systems")])
    for number in range(5):
        driver.handle(
            ev.InferenceSubmitted(
                f"a{number}", "a", f"a{number}", "i0", 110, 10, 10, prefixes=common
            )
        )
    assert driver.core.state.kv_in_flight() == 200
    leases = [driver.lease_of(f"a{number}") for number in range(5)]
    for made in range(1, 10):
        driver.now += 0.3
        driver.pull("r0", dict.fromkeys(leases, made), kv=200, caches=True)

    assert driver.core.state.kv_in_flight() == pytest.approx(5 * 115, rel=0.05)
    policy = driver.core.ledger.policy
    assert isinstance(policy, GuardedPolicy)
    assert policy.state()["kv_tokens"] == pytest.approx(5 * 115, rel=0.05)
