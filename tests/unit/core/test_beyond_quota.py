"""Work beyond a deprioritising quota is served after all work within quota, of any tenant."""

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, Grant
from justitia_ray.core.clock.tenant_share import TenantShare
from justitia_ray.core.snapshot import restore, snapshot
from justitia_ray.core.tenants import KvShare, TenantNode, TenantTree
from tests.core_driver import PATIENT, CoreDriver, granted

_TREE = TenantTree({"T": TenantNode(weight=9.0), "T/x": TenantNode(weight=4.0)})
_OPTIONS: list[dict[str, object]] = [{}, {"order": "sgps"}, {"guard_iterations": 300}]


def _create_core(
    options: dict[str, object] | None = None, tree: TenantTree = _TREE
) -> SchedulerCore:
    wanted = {"fairness": "tenant", **(options or {})}
    return SchedulerCore("justitia", wanted, tenants=tree, timeouts=PATIENT)


def _open_three_tenants(
    options: dict[str, object] | None = None, tree: TenantTree = _TREE
) -> CoreDriver:
    """Open applications of tenants T and U, and one of T's child x that is beyond its quota."""
    driver = CoreDriver(_create_core(options, tree))
    for name, cost, tenant in (("t", 100, "T"), ("x", 100, "T/x"), ("u", 900, "U")):
        driver.open(name, cost, tenant=tenant)
        if name != "u":
            driver.handle(ev.ApplicationDeprioritised(name, True))
        for number in "12":
            driver.submit(f"{name}{number}", name)
    return driver


def _grant_priorities(actions: list[Action]) -> list[int]:
    return [action.priority for action in actions if isinstance(action, Grant)]


@pytest.mark.parametrize("options", _OPTIONS)
def test_tenant_beyond_its_quota_waits_behind_a_tenant_of_lower_weight(
    options: dict[str, object],
) -> None:
    driver = _open_three_tenants(options)
    order = [one.application_id for one in driver.core.ledger.queue.in_order()]

    assert ["u", "x", "t"] == order
    assert ["u1", "u2", "x1"] == granted(driver.pull(seats=3))


def test_engine_ranks_work_beyond_a_quota_last() -> None:
    """An engine without free memory stops the inferences beyond a quota first."""
    priorities = _grant_priorities(_open_three_tenants().pull(seats=6))

    assert sorted(priorities) == priorities
    assert priorities[1] < priorities[2] <= priorities[3] < priorities[4] < 1 << 63


@pytest.mark.parametrize("options", _OPTIONS)
def test_application_no_longer_deprioritised_is_served_in_its_turn(
    options: dict[str, object],
) -> None:
    driver = _open_three_tenants(options)
    driver.pull(seats=3)
    driver.handle(ev.ApplicationDeprioritised("t", False))
    first = driver.core.ledger.queue.first()

    assert first is not None
    assert "t" == first.application_id
    assert 1 == driver.account("t").weight

    driver.handle(ev.ApplicationDeprioritised("x", False))
    share = driver.core.ledger.fair_share
    driver.core.ledger.fair_share.take_changed()
    assert isinstance(share, TenantShare)
    assert (9, None) == (share.nodes.branches["T"].weight, share.nodes.branches.get("."))


@pytest.mark.parametrize("options", _OPTIONS)
def test_restarted_scheduler_still_serves_work_beyond_quotas_last(
    options: dict[str, object],
) -> None:
    driver = _open_three_tenants(options)
    driver.pull(seats=4)
    driver.pull(progress={"1": 3, "3": 5}, seats=4)
    driver.handle(ev.ApplicationDeprioritised("x", False))
    record = driver.record()
    core = _create_core(options)
    restore(core, record["clock"], record["applications"])

    assert snapshot(core) == record
    assert [core.tag(name) for name in "txu"] == [driver.core.tag(name) for name in "txu"]
    assert [True, False, False] == [core.state.applications[n].is_deprioritised for n in "txu"]


def test_stored_state_with_a_single_tenant_tree_is_loaded() -> None:
    """Earlier releases gave an application beyond its quota a millionth of its weight."""
    driver = CoreDriver(_create_core())
    driver.open("t", 100, tenant="T", weight=1)
    driver.open("u", 100, tenant="U")
    record = driver.record()
    low = record["applications"]["t"]
    low["full_weight"], low["weight"] = low["weight"], low["weight"] * 1e-6
    driver.hand_over(_create_core(), record=record)
    driver.submit("t1", "t")
    driver.submit("u1", "u")

    assert 1 == driver.account("t").weight
    assert ["u1"] == granted(driver.pull(seats=1))


def test_node_at_its_maximum_share_is_skipped_in_both_trees() -> None:
    """A tenant at its maximum must get no memory, whether within or beyond its quota."""
    tree = TenantTree({"T": TenantNode(kv_share=KvShare(most=0.1))})
    driver = CoreDriver(_create_core(tree=tree))
    for number in range(24):
        driver.open(f"t{number}", 10, tenant="T/x")
    driver.open("u", 900, tenant="U")
    for name in [*(f"t{number}" for number in range(24)), "u"]:
        driver.handle(ev.ApplicationDeprioritised(name, True))
        driver.submit(f"{name}-1", name)

    assert ["t0-1", "u-1"] == granted(driver.pull(kv=200))


def test_tenant_leaf_beyond_a_quota_becomes_a_branch() -> None:
    driver = CoreDriver(_create_core())
    for name, tenant in (("t", "T"), ("y", "T/y")):
        driver.open(name, 100, tenant=tenant)
        driver.submit(f"{name}1", name)
    driver.handle(ev.ApplicationDeprioritised("t", True))
    driver.handle(ev.ApplicationDeprioritised("y", True))
    driver.handle(ev.TenantsChanged(TenantTree({"T/y": TenantNode(weight=3.0)})))

    assert ["y1", "t1"] == granted(driver.pull())


def test_application_beyond_its_quota_has_a_millionth_of_its_weight() -> None:
    driver = CoreDriver(SchedulerCore(timeouts=PATIENT))
    driver.open("a", weight=4)
    driver.submit("a1", "a")
    driver.handle(ev.ApplicationDeprioritised("a", True))
    weights = [driver.account("a").weight]
    for options in ((("fairness", "tenant"),), (("fairness", "application"),)):
        driver.handle(ev.PolicyChanged("justitia", options))
        weights.append(driver.account("a").weight)

    assert [4e-6, 4, 4e-6] == weights
