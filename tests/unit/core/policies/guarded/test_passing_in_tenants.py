"""Shortest first and the guard inside a tenant's share, by hand.

T has x of 20 inferences and y of 21, U has v of 25, each inference of 155 token·iterations. So T
finishes x at 3,100 of V and y at 6,355, U finishes v at 3,875.
"""

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.clock.tenant_share import TenantShare
from justitia_ray.core.invariants import check
from justitia_ray.core.policies.guarded.foretold import ForetoldVtc
from justitia_ray.core.policies.guarded.policy import GuardedPolicy
from justitia_ray.core.snapshot import clock_record, restore
from justitia_ray.cost import PrefillCost
from tests.core_driver import CoreDriver, granted

GUARD: dict[str, object] = {"fairness": "tenant", "guard_iterations": 1000}
SHORTEST: dict[str, object] = {"fairness": "tenant", "order": "sgps"}


def _driver_with_load(
    options: dict[str, object], prefill_cost: PrefillCost | None = None
) -> CoreDriver:
    driver = CoreDriver(
        SchedulerCore("justitia", options, lease_prefix="1-", prefill_cost=prefill_cost)
    )
    for name, tenant, count in (("x", "T", 20), ("y", "T", 21), ("v", "U", 25)):
        driver.open(name, 155 * count, tenant=tenant)
        for number in range(count):
            driver.submit(f"{name}{number}", name)
    return driver


def _application_ids(request_ids: list[str]) -> list[str]:
    return [request_id[0] for request_id in request_ids]


@pytest.fixture
def y_is_urgent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the guard's simulation of VTC call application y urgent."""
    monkeypatch.setattr(
        ForetoldVtc,
        "urgent",
        lambda shadow, now, waits: ["y"] if "y" in shadow.clock.shadows else [],
    )


@pytest.mark.usefixtures("y_is_urgent")
@pytest.mark.parametrize(("prefill_cost", "cost"), [(None, 155), (PrefillCost(10), 155 + 100)])
def test_tenant_pays_for_overtaking_among_its_applications(
    prefill_cost: PrefillCost | None, cost: int
) -> None:
    """Each overtaking moves the overtaken application back by the cost of an inference.

    Then T continues with y, and with x when no inference of y waits.
    """
    driver = _driver_with_load(GUARD, prefill_cost)
    order = _application_ids(granted(driver.pull(kv=20 * 66)))

    assert ["y"] * 5 + ["v"] * 25 + ["y"] * 16 + ["x"] * 20 == order
    assert [(20 + 21) * cost, 41 * cost, 25 * cost] == [driver.core.tag(name) for name in "xyv"]
    check(driver.core)


@pytest.mark.usefixtures("y_is_urgent")
def test_urgent_application_may_not_overtake_without_a_guard() -> None:
    driver = _driver_with_load({"fairness": "tenant"})

    assert ["x"] * 20 + ["v"] * 25 + ["y"] * 21 == _application_ids(
        granted(driver.pull(kv=20 * 66))
    )


@pytest.mark.usefixtures("y_is_urgent")
def test_applications_of_an_overdue_tenant_are_served_in_order() -> None:
    """An overdue application must not be delayed further by one that overtakes it."""
    driver = _driver_with_load(GUARD)
    driver.core.ledger.fair_share.deliver([("v", 3500), ("y", 2800)])

    assert 3150 == driver.core.ledger.fair_share.clock.virtual_time
    assert ["x"] == _application_ids(granted(driver.pull(kv=20, seats=1)))
    check(driver.core)


def test_shortest_application_overtakes_where_slack_allows() -> None:
    driver = CoreDriver(SchedulerCore("justitia", SHORTEST, lease_prefix="1-"))
    for name, tenant, count in (("p", "T", 10), ("x", "T", 20), ("z", "T", 30), ("v", "U", 60)):
        driver.open(name, 155 * count, tenant=tenant)
        for number in range(count):
            driver.submit(f"{name}{number}", name)

    assert ["p"] * 10 == _application_ids(granted(driver.pull(kv=200, seats=10)))

    share = driver.core.ledger.fair_share
    share.deliver([("v", 1500), ("p", 1500)])
    driver.open("w", 155 * 17, tenant="T")

    assert (1500, 3135) == (share.clock.virtual_time, share.tag_in_tenant("w"))
    assert 1500 + 50 + 3100 == share.tag("x")

    driver.submit("w0", "w")

    assert ["w"] == _application_ids(granted(driver.pull("r1", kv=20, seats=1)))
    assert 1500 + 50 + 3100 + 155 == share.tag("x")
    check(driver.core)


@pytest.mark.usefixtures("y_is_urgent")
def test_policy_may_change_while_applications_overtake() -> None:
    driver = _driver_with_load({"fairness": "tenant"})
    options: list[tuple[str, dict[str, object]]] = [
        ("justitia", SHORTEST),
        ("justitia", GUARD),
        ("vtc", {}),
        ("justitia", GUARD | SHORTEST),
        ("vtc", {"fairness": "tenant"}),
        ("justitia", {"guard_iterations": 30}),
        ("justitia", GUARD),
        ("justitia", {"fairness": "tenant"}),
    ]
    started = granted(driver.pull(kv=100, seats=1))
    for number, (policy, chosen) in enumerate(options, 1):
        driver.handle(ev.PolicyChanged(policy, tuple(chosen.items())))
        check(driver.core)
        started += granted(driver.pull(finished={f"1-{number}": 10}, kv=100, seats=1))
        check(driver.core)

    assert len(options) + 1 == len(set(started))


@pytest.mark.usefixtures("y_is_urgent")
def test_tenant_without_applications_is_forgotten() -> None:
    driver = _driver_with_load(GUARD)
    driver.pull(kv=60, seats=3)
    policy, share = driver.core.ledger.policy, driver.core.ledger.fair_share
    assert isinstance(policy, GuardedPolicy)
    assert isinstance(share, TenantShare)
    assert {"T", "U"} == set(policy.state()["tenants"]) == set(share._watched)

    for name in "xy":
        driver.handle(ev.ApplicationCancelled(name))
    driver.last_word(*driver.core.state.leaving)

    assert {"U"} == set(policy.state()["tenants"]) == set(share._watched) == set(policy._order_in)

    driver.open("x", 100, tenant="T")
    driver.submit("x0", "x")

    assert {"T", "U"} == set(policy._order_in)
    check(driver.core)


def test_simulation_of_a_tenant_has_its_share_of_the_memory() -> None:
    """The simulated VTC of a tenant has memory in proportion to the tenant's weight."""
    driver = _driver_with_load(GUARD)
    driver.pull(kv=60, seats=3)
    policy = driver.core.ledger.policy
    assert isinstance(policy, GuardedPolicy)
    x0 = driver.lease_of("x0")
    driver.pull(kv=60, seats=3, progress={x0: 1})

    assert 30 == policy._foretold_in["T"].clock.kv_in_flight

    driver.handle(ev.ApplicationCancelled("v"))
    driver.pull(kv=60, seats=3, progress={x0: 2})

    assert 60 == policy._foretold_in["T"].clock.kv_in_flight


@pytest.mark.usefixtures("y_is_urgent")
def test_requeued_inference_is_charged_for_overtaking_once() -> None:
    """An inference whose lease ended starts again, but its tenant has paid already.

    y1 is on the replica that y0 avoids, and y2 is next.
    """
    driver = _driver_with_load(GUARD)
    driver.pull(kv=20, seats=2)
    booked = driver.core.tag("x")
    driver.handle(ev.LeaseNacked("1-1", ev.NackReason.CONNECTION))
    driver.pull("r1", kv=20, seats=2)

    assert (3100 + 2 * 155, 3100 + 3 * 155) == (booked, driver.core.tag("x"))
    assert 155 * 41 == driver.core.tag("y")
    check(driver.core)


@pytest.mark.usefixtures("y_is_urgent")
def test_reported_queue_order_is_the_order_of_service() -> None:
    driver = _driver_with_load(GUARD)
    queue = driver.core.ledger.queue

    assert ["y", "x", "v"] == [application.application_id for application in queue.in_order()]
    assert ["v", "x", "y"] == sorted(application.application_id for application in queue.heads())
    assert driver.core.ledger.policy.moves_with_service


@pytest.mark.usefixtures("y_is_urgent")
@pytest.mark.parametrize("options", [SHORTEST, GUARD, {"fairness": "tenant"}])
def test_guarded_scheduler_restarts_with_other_options(options: dict[str, object]) -> None:
    """A policy without a guard drops the guard's counters."""
    driver = _driver_with_load(GUARD)
    driver.pull(kv=60, seats=3)
    record = driver.record()
    record["clock"]["counted"]["tenants"]["gone"] = record["clock"]["counted"]["tenants"]["T"]
    core = SchedulerCore("justitia", options, lease_prefix="2-")
    core.recover([], driver.now)
    restore(core, record["clock"], record["applications"])
    state = clock_record(core)["counted"]

    assert ({"tenants"} if options is GUARD else set()) == set(state)
    assert {"T", "U"} >= set(state.get("tenants", {}))
    assert driver.core.tag("x") == core.tag("x")
    check(core)
