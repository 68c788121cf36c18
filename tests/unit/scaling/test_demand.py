"""The demand for replicas computed from a queue."""

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.scaling.demand import Demand, read_demand
from tests.core_driver import PATIENT, CoreDriver

HOLD_S = 60.0
ONE = 155
"""Cost of an inference of 10 prompt and 10 output tokens: 10·10 + 10·11/2."""


@pytest.fixture
def driver() -> CoreDriver:
    return CoreDriver(SchedulerCore(timeouts=PATIENT))


def read(driver: CoreDriver) -> Demand:
    return read_demand(driver.core, driver.now, HOLD_S)


def test_empty_queue_asks_for_nothing(driver: CoreDriver) -> None:
    assert Demand(at=100.0) == read(driver)


def test_work_is_the_sum_of_waiting_running_and_expected_inferences(driver: CoreDriver) -> None:
    driver.open("a", 4 * ONE)
    driver.submit("x")
    driver.pull(kv=25)
    driver.submit("y")
    demand = read(driver)

    assert (ONE, ONE, 2 * ONE) == (demand.queued, demand.in_flight, demand.expected_more)
    assert 4 * ONE == demand.work
    assert (1, 1, 2, 1) == (demand.waiting, demand.running, demand.sequences, demand.applications)
    assert (1, 25) == (demand.replicas, demand.kv_tokens)
    assert demand.held_tokens + 20 == demand.usable_kv_tokens


def test_closed_application_has_no_expected_work(driver: CoreDriver) -> None:
    driver.open("a", 4 * ONE)
    driver.submit("x")
    driver.handle(ev.ApplicationClosed("a"))

    assert (ONE, 0) == (read(driver).queued, read(driver).expected_more)


def test_idle_application_counts_for_as_long_as_a_tool_gap_may_take(driver: CoreDriver) -> None:
    """An agent that never closes its application must not keep a replica for ten minutes."""
    driver.open("a", 4 * ONE)
    before = read(driver)
    driver.now += HOLD_S
    within = read(driver)
    driver.now += 1.0
    after = read(driver)

    assert (4 * ONE, 1) == (before.work, before.applications)
    assert (4 * ONE, 1) == (within.work, within.applications)
    assert (0, 0) == (after.work, after.applications)


def test_replica_that_drains_does_not_serve(driver: CoreDriver) -> None:
    """Running inferences continue, but no new ones are granted to the replica."""
    driver.open("a", ONE)
    driver.submit("x")
    driver.pull(kv=100)
    driver.pull(kv=100, draining=True, progress=None)
    demand = read(driver)

    assert (0, 0, ONE) == (demand.replicas, demand.kv_tokens, demand.in_flight)


def test_waiting_application_has_a_promise(driver: CoreDriver) -> None:
    """The promise is the predicted start of its outlook, converted to work."""
    driver.open("a", ONE)
    driver.submit("x")
    driver.pull(kv=25)
    driver.open("b", ONE)
    driver.submit("y", "b")
    outlook = driver.core.outlooks.ask(["b"])["b"]
    demand = read(driver)

    assert ["b"] == [*demand.promises]
    assert outlook.guaranteed_by_s is not None
    assert 0 < demand.promises["b"]
