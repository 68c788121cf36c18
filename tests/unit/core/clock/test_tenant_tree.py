"""Fairness over a tree of tenants, by hand and in exact arithmetic."""

from fractions import Fraction

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.clock.tenant_share import TenantShare
from justitia_ray.core.clock.virtual_clock import VirtualClock
from justitia_ray.core.snapshot import restore, snapshot
from justitia_ray.core.tenants import TenantNode, TenantTree
from justitia_ray.errors import StoreError
from tests.core_driver import CoreDriver, granted
from tests.exact import exact


def _tree_of_weights(**weights: int) -> TenantTree:
    return TenantTree(
        {path.replace("__", "/"): TenantNode(weight=exact(w)) for path, w in weights.items()}
    )


def _open_in_tree(tree: TenantTree, **applications: tuple[str, int]) -> TenantShare:
    """Open applications of weight 1, given by (tenant, cost)."""
    share = TenantShare(VirtualClock(exact(0)), tree)
    for sequence, (name, (tenant, cost)) in enumerate(applications.items()):
        share.arrive(name, exact(cost), exact(1), sequence, tenant)
    return share


def _policy_keys(share: TenantShare, *names: str) -> list[float]:
    return [share.tag(name) for name in names]


def test_finish_tags_of_three_tenants_equal_a_hand_calculation() -> None:
    share = _open_in_tree(_tree_of_weights(T=1), a=("T/a", 10), b=("T/b", 30), u=("U", 20))

    assert _policy_keys(share, "a", "u", "b") == [20, 20, 40]
    branch = share.nodes.branches.get("T")
    assert (share.keys.key_in(branch, "a"), share.keys.key_in(branch, "b")) == (10, 30)


def test_weight_of_a_tree_node_applies_among_its_siblings() -> None:
    share = _open_in_tree(
        _tree_of_weights(T=4, T__a=3, T__b=1), a=("T/a", 30), b=("T/b", 30), u=("U", 100)
    )

    assert _policy_keys(share, "a", "b", "u") == [10, 15, 100]


def test_tenant_that_gets_children_is_still_owed_its_service() -> None:
    share = _open_in_tree(_tree_of_weights(T=1), t=("T", 10), u=("U", 50))
    share.deliver([("t", exact(4)), ("u", exact(4))])  # V = 4
    share.arrive("a", exact(10), exact(1), 9, "T/a")

    assert share.clock.session("T").finish == 4 + 6 + 10
    assert _policy_keys(share, "t", "a", "u") == [4 + 12, 20, 50]
    assert share.take_reordered_tenants() == ["T"]


def test_unused_charge_of_a_child_goes_to_its_siblings_first() -> None:
    share = _open_in_tree(_tree_of_weights(T=1), a=("T/a", 20), b=("T/b", 30), u=("U", 100))
    share.deliver([("u", exact(12))])
    share.settle("a")

    assert share.clock.session("T").finish == 30
    assert share.clock.virtual_time == 6
    assert _policy_keys(share, "b", "u") == [30, 100]


def test_debts_of_tree_nodes_stay_when_their_weights_change() -> None:
    share = _open_in_tree(_tree_of_weights(T=1), a=("T/a", 10), b=("T/b", 30), u=("U", 100))
    share.deliver([("u", exact(20))])
    share.apply_weights(_tree_of_weights(T=2, T__b=5))

    assert share.clock.owed("T") == 30
    assert share.tag("b") == 10 + 15  # all that T is owed, at φ = 2
    branch = share.nodes.branches.get("T")
    assert branch is not None
    assert (branch.clock.owed("T/a"), branch.clock.owed("T/b")) == (5, 25)

    share.apply_weights(TenantTree())

    assert (branch.weight, share.clock.owed("T"), branch.clock.owed("T/b")) == (1, 30, 25)


def test_service_owed_to_ended_tenants_is_served_at_the_new_weight() -> None:
    share = _open_in_tree(_tree_of_weights(T=1), a=("T/x", 30), u=("U", 100))
    share.deliver([("a", exact(20))])
    share.deliver([("a", exact(10))])
    share.settle("a")
    owed, now = share.clock.owed("T"), share.clock.virtual_time
    share.apply_weights(_tree_of_weights(T=2, T__x=5))

    branch = share.nodes.branches.get("T")
    assert branch is not None
    assert (owed, owed, owed) == (15, share.clock.owed("T"), branch.clock.owed("T/x"))
    share.deliver([("u", exact(22))])
    assert now + Fraction(22, 3) == share.clock.virtual_time
    assert exact(15) - Fraction(44, 3) == share.clock.owed("T")


def test_branch_without_tenants_leaves_no_state() -> None:
    """Tenants without work and without debt must take no memory."""
    share = _open_in_tree(_tree_of_weights(), a=("T/x/a", 10), b=("T/b", 10), u=("U", 10))
    for name in "ab":
        share.deliver([(name, exact(10))])
        share.settle(name)
    share.deliver([("u", exact(10))])
    share.take_changed()

    assert (list(share.nodes.leaves), share.nodes.branches, list(share.nodes.path_of)) == (
        ["U"],
        {},
        ["u"],
    )


def _driver_with_tree(options: dict[str, object], tree: TenantTree | None = None) -> CoreDriver:
    driver = CoreDriver(SchedulerCore("justitia", {"fairness": "tenant", **options}, tenants=tree))
    for name, cost, tenant in (
        ("a", 300, "T/x"),
        ("b", 100, "T/y/z"),
        ("t", 150, "T"),
        ("u", 250, "U"),
    ):
        driver.open(name, cost, tenant=tenant)
        driver.submit(f"{name}1", name)
        driver.submit(f"{name}2", name)
    return driver


@pytest.mark.parametrize("options", [{}, {"order": "sgps", "guard_iterations": 300}])
def test_tenants_take_turns_and_children_take_turns_within_a_tenant(
    options: dict[str, object],
) -> None:
    driver = _driver_with_tree(options)
    order = [application.application_id for application in driver.core.ledger.queue.in_order()]

    assert [driver.core.tag(name) for name in "ubta"] == [250, 300, 400, 550]
    assert order == ["u", "b", "t", "a"]
    assert granted(driver.pull(seats=3)) == ["u1", "u2", "b1"]


@pytest.mark.parametrize("options", [{}, {"guard_iterations": 300}])
def test_restored_core_has_the_same_keys_and_order(options: dict[str, object]) -> None:
    driver = _driver_with_tree(options, TenantTree({"T": TenantNode(weight=3.0)}))
    driver.pull(seats=2)
    driver.pull(progress={"1": 5}, seats=2)
    record = snapshot(driver.core)
    core = SchedulerCore(
        "justitia", {"fairness": "tenant", **options}, tenants=driver.core.state.tenants
    )
    restore(core, record["clock"], record["applications"])

    assert {name: core.tag(name) for name in "abtu"} == {
        name: driver.core.tag(name) for name in "abtu"
    }
    assert snapshot(core) == record


def test_record_without_branches_of_an_earlier_release_is_loaded() -> None:
    driver = _driver_with_tree({})
    record = snapshot(driver.core)
    del record["clock"]["branches"]
    core = SchedulerCore("justitia", {"fairness": "tenant"})
    restore(core, record["clock"], record["applications"])

    assert [core.tag(name) for name in "abtu"] == [300, 100, 150, 250]
    assert snapshot(core)["clock"]["branches"].keys() == {"T", "T/y"}


def test_error_of_a_damaged_branch_record_names_the_branch() -> None:
    record = snapshot(_driver_with_tree({}).core)
    record["clock"]["branches"]["T"]["since"] = "now"
    core = SchedulerCore("justitia", {"fairness": "tenant"})

    with pytest.raises(StoreError, match=r"clock\.branches.*since"):
        restore(core, record["clock"], record["applications"])


def test_restored_branch_without_its_children_is_still_owed_their_service() -> None:
    """If a scheduler dies between two parts of a save, the node's share must not be lost."""
    record = snapshot(_driver_with_tree({}).core)
    del record["applications"]["a"]
    core = SchedulerCore("justitia", {"fairness": "tenant"})
    restore(core, record["clock"], record["applications"])
    share = core.ledger.fair_share

    assert isinstance(share, TenantShare)
    branch = share.nodes.branches.get("T")
    assert branch is not None
    assert share.clock.owed("T") == branch.clock.backlog() == 250


def test_tree_of_tenants_survives_a_policy_change_and_return() -> None:
    driver = _driver_with_tree({"guard_iterations": 300})
    driver.handle(ev.PolicyChanged("fcfs"))
    driver.open("late", 10, tenant="T/new")
    driver.handle(ev.PolicyChanged("justitia", (("fairness", "tenant"),)))
    driver.handle(ev.TenantsChanged(TenantTree({"T": TenantNode(weight=4.0)})))

    assert granted(driver.pull(seats=2)) == ["b1", "b2"]
