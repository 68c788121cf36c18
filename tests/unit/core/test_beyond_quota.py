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


def _core(options: dict[str, object] | None = None, tree: TenantTree = _TREE) -> SchedulerCore:
    wanted = {"fairness": "tenant", **(options or {})}
    return SchedulerCore("justitia", wanted, tenants=tree, timeouts=PATIENT)


def _driver(options: dict[str, object] | None = None, tree: TenantTree = _TREE) -> CoreDriver:
    """Open t of T, x of T/x beyond a quota, and u of U, with two inferences each."""
    driver = CoreDriver(_core(options, tree))
    for name, cost, tenant in (("t", 100, "T"), ("x", 100, "T/x"), ("u", 900, "U")):
        driver.open(name, cost, tenant=tenant)
        if name != "u":
            driver.handle(ev.ApplicationDeprioritised(name, True))
        for number in "12":
            driver.submit(f"{name}{number}", name)
    return driver


def _priorities(actions: list[Action]) -> list[int]:
    return [action.priority for action in actions if isinstance(action, Grant)]


@pytest.mark.parametrize("options", _OPTIONS)
def test_tenant_beyond_its_quota_is_behind_a_tenant_of_less_weight(
    options: dict[str, object],
) -> None:
    """T would be first by its weight of 9; beyond quotas T/x has 4 times the share of T."""
    driver = _driver(options)
    order = [one.application_id for one in driver.core.ledger.queue.in_order()]

    assert ["u", "x", "t"] == order
    assert ["u1", "u2", "x1"] == granted(driver.pull(seats=3))


def test_engine_ranks_work_beyond_a_quota_last() -> None:
    """Where its memory overflows it stops them first, in the reverse of their own order."""
    priorities = _priorities(_driver().pull(seats=6))

    assert sorted(priorities) == priorities
    assert priorities[1] < priorities[2] <= priorities[3] < priorities[4] < 1 << 63


@pytest.mark.parametrize("options", _OPTIONS)
def test_application_that_has_quota_again_is_first_in_its_turn(options: dict[str, object]) -> None:
    """The weights of application and tenant apply again, though it was moved while it waited."""
    driver = _driver(options)
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
def test_new_scheduler_keeps_work_beyond_quotas_behind(options: dict[str, object]) -> None:
    """The keys of both trees and the debts left by a move survive the restart."""
    driver = _driver(options)
    driver.pull(seats=4)
    driver.pull(progress={"1": 3, "3": 5}, seats=4)
    driver.handle(ev.ApplicationDeprioritised("x", False))
    record = driver.record()
    core = _core(options)
    restore(core, record["clock"], record["applications"])

    assert snapshot(core) == record
    assert [core.tag(name) for name in "txu"] == [driver.core.tag(name) for name in "txu"]
    assert [True, False, False] == [core.state.applications[n].is_deprioritised for n in "txu"]


def test_state_of_a_version_that_had_one_tree_still_loads() -> None:
    """There it had a millionth of its weight inside its tenant."""
    driver = CoreDriver(_core())
    driver.open("t", 100, tenant="T", weight=1)
    driver.open("u", 100, tenant="U")
    record = driver.record()
    low = record["applications"]["t"]
    low["full_weight"], low["weight"] = low["weight"], low["weight"] * 1e-6
    driver.hand_over(_core(), record=record)
    driver.submit("t1", "t")
    driver.submit("u1", "u")

    assert 1 == driver.account("t").weight
    assert ["u1"] == granted(driver.pull(seats=1))


def test_node_that_holds_its_share_is_left_out_of_both_trees() -> None:
    """Others beyond their quota pass: T must get no more, U may."""
    tree = TenantTree({"T": TenantNode(kv_share=KvShare(most=0.1))})
    driver = CoreDriver(_core(tree=tree))
    for number in range(24):
        driver.open(f"t{number}", 10, tenant="T/x")
    driver.open("u", 900, tenant="U")
    for name in [*(f"t{number}" for number in range(24)), "u"]:
        driver.handle(ev.ApplicationDeprioritised(name, True))
        driver.submit(f"{name}-1", name)

    assert ["t0-1", "u-1"] == granted(driver.pull(kv=200))


def test_leaf_beyond_a_quota_becomes_a_branch() -> None:
    """T has no weight there until T/y arrives, and its levels are compared from then on."""
    driver = CoreDriver(_core())
    for name, tenant in (("t", "T"), ("y", "T/y")):
        driver.open(name, 100, tenant=tenant)
        driver.submit(f"{name}1", name)
    driver.handle(ev.ApplicationDeprioritised("t", True))
    driver.handle(ev.ApplicationDeprioritised("y", True))
    driver.handle(ev.TenantsChanged(TenantTree({"T/y": TenantNode(weight=3.0)})))

    assert ["y1", "t1"] == granted(driver.pull())


def test_without_shares_by_tenant_it_has_a_millionth_of_its_weight() -> None:
    """There is one clock then; a change to tenants and back gives it a place in each."""
    driver = CoreDriver(SchedulerCore(timeouts=PATIENT))
    driver.open("a", weight=4)
    driver.submit("a1", "a")
    driver.handle(ev.ApplicationDeprioritised("a", True))
    weights = [driver.account("a").weight]
    for options in ((("fairness", "tenant"),), (("fairness", "application"),)):
        driver.handle(ev.PolicyChanged("justitia", options))
        weights.append(driver.account("a").weight)

    assert [4e-6, 4, 4e-6] == weights
