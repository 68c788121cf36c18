"""The demand for replicas computed from a queue."""

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.scaling.demand import Demand, read_demand
from tests.core_driver import PATIENT, CoreDriver

HOLD_S = 60.0
ONE = 155
"""KV token-time of an inference of 10 prompt and 10 output tokens: 10·10 + 10·11/2."""


@pytest.fixture
def new_driver() -> CoreDriver:
    return CoreDriver(SchedulerCore(timeouts=PATIENT))


def read_at_now(new_driver: CoreDriver) -> Demand:
    return read_demand(new_driver.core, new_driver.now, HOLD_S)


def test_empty_queue_has_no_scaling_demand(new_driver: CoreDriver) -> None:
    assert Demand(at=100.0) == read_at_now(new_driver)


def test_demand_is_the_cost_of_waiting_running_and_expected_inferences(
    new_driver: CoreDriver,
) -> None:
    new_driver.open("a", 4 * ONE)
    new_driver.submit("x")
    new_driver.pull(kv=25)
    new_driver.submit("y")
    demand = read_at_now(new_driver)

    assert (ONE, ONE, 2 * ONE) == (demand.queued, demand.in_flight, demand.expected_more)
    assert 4 * ONE == demand.work
    assert (1, 1, 2, 1) == (demand.waiting, demand.running, demand.sequences, demand.applications)
    assert (1, 25) == (demand.replicas, demand.kv_tokens)
    assert demand.held_tokens + 20 == demand.usable_kv_tokens


def test_closed_application_has_no_expected_work(new_driver: CoreDriver) -> None:
    new_driver.open("a", 4 * ONE)
    new_driver.submit("x")
    new_driver.handle(ev.ApplicationClosed("a"))

    assert (ONE, 0) == (read_at_now(new_driver).queued, read_at_now(new_driver).expected_more)


def test_idle_application_counts_as_demand_during_a_tool_call(new_driver: CoreDriver) -> None:
    """An agent that never closes its application must not keep a replica for ten minutes."""
    new_driver.open("a", 4 * ONE)
    before = read_at_now(new_driver)
    new_driver.now += HOLD_S
    within = read_at_now(new_driver)
    new_driver.now += 1.0
    after = read_at_now(new_driver)

    assert (4 * ONE, 1) == (before.work, before.applications)
    assert (4 * ONE, 1) == (within.work, within.applications)
    assert (0, 0) == (after.work, after.applications)


def test_draining_replica_does_not_count_as_serving(new_driver: CoreDriver) -> None:
    """A draining replica finishes its inferences and is granted no new ones."""
    new_driver.open("a", ONE)
    new_driver.submit("x")
    new_driver.pull(kv=100)
    new_driver.pull(kv=100, draining=True, progress=None)
    demand = read_at_now(new_driver)

    assert (0, 0, ONE) == (demand.replicas, demand.kv_tokens, demand.in_flight)


def test_waiting_application_is_promised_its_predicted_start(new_driver: CoreDriver) -> None:
    """The promise is the predicted start given to the caller, converted to work."""
    new_driver.open("a", ONE)
    new_driver.submit("x")
    new_driver.pull(kv=25)
    new_driver.open("b", ONE)
    new_driver.submit("y", "b")
    outlook = new_driver.core.outlooks.ask(["b"])["b"]
    demand = read_at_now(new_driver)

    assert ["b"] == [*demand.promises]
    assert outlook.guaranteed_by_s is not None
    assert 0 < demand.promises["b"]
