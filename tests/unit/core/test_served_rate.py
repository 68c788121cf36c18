"""Recent rate of service."""

import pytest

from justitia_ray.core import events as ev
from justitia_ray.core.served_rate import HALF_LIFE_S, USUAL_ITERATION_S, ServedRate
from tests.core_driver import CoreDriver


def test_service_rate_is_service_over_busy_time() -> None:
    """Expected waits are computed from this rate."""
    rate = ServedRate()
    rate.record(1000, 2.0, 50, 5, 100)
    rate.record(2000, 4.0, 50, 5, 200)

    assert rate.kv_per_s(0) == pytest.approx(500)
    assert rate.iteration_s == pytest.approx(50 / 500)


def test_iteration_time_is_that_of_a_generated_token() -> None:
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


def test_cut_and_repeated_leases_give_no_iteration_time() -> None:
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


def test_service_rate_follows_half_of_a_change_in_a_half_life() -> None:
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
