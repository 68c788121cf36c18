"""KV shares by node of the tenant tree: maximum, guaranteed and lent memory."""

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.invariants import check
from justitia_ray.core.kv_shares import KvShares
from justitia_ray.core.tenants import KvShare, TenantNode, TenantTree, Tier
from tests.core_driver import CoreDriver, granted


def _tree_of_shares(**shares: KvShare) -> TenantTree:
    paths = {name.replace("__", "/"): share for name, share in shares.items()}
    return TenantTree({path: TenantNode(kv_share=share) for path, share in paths.items()})


def _shares_with_leases(tree: TenantTree, **held: int) -> KvShares:
    shares = KvShares(tree)
    for name, tokens in held.items():
        shares.hold(name, name.replace("__", "/"), tokens)
    return shares


def test_maximum_shares_of_a_tenant_and_its_parents_limit_its_kv_memory() -> None:
    """All tenants below a node count against its maximum."""
    tree = _tree_of_shares(acme=KvShare(most=0.5), acme__a=KvShare(most=0.2))
    shares = _shares_with_leases(tree, acme__a=15, acme__b=20)

    assert shares.refuses("acme/a", 10, 100) == "acme/a"
    assert shares.refuses("acme/c", 15, 100) is None
    assert shares.refuses("acme/c", 16, 100) == "acme"
    assert shares.refuses("other", 60, 100) is None


def test_tenant_without_leases_gets_one_inference_of_any_size() -> None:
    """An inference that exceeds the share must not wait forever."""
    assert _shares_with_leases(_tree_of_shares(a=KvShare(most=0.1))).refuses("a", 90, 100) is None


@pytest.mark.parametrize(("lends", "refused"), [(0.0, "b"), (0.5, None), (1.0, None)])
def test_unused_part_of_a_guaranteed_kv_share_is_reserved(
    lends: float, refused: str | None
) -> None:
    """The less other tenants have borrowed, the more is reserved."""
    shares = _shares_with_leases(_tree_of_shares(a=KvShare(guaranteed=0.4, lends=lends)), b=50)

    assert shares.refuses("b", 20, 100) == refused
    assert shares.refuses("a", 40, 100) is None


def test_used_part_of_a_guaranteed_kv_share_is_not_reserved() -> None:
    shares = _shares_with_leases(_tree_of_shares(a=KvShare(guaranteed=0.4, lends=0.0)), a=30, b=40)

    assert shares.refuses("b", 20, 100) is None
    assert shares.refuses("b", 21, 100) == "b"


def test_new_tenant_does_not_take_memory_reserved_for_others() -> None:
    tree = _tree_of_shares(
        a=KvShare(guaranteed=0.1, lends=0.0), z=KvShare(guaranteed=0.2, lends=0.0)
    )
    shares = _shares_with_leases(tree, a=80)

    assert shares.refuses("b", 10, 100) == "b"
    assert shares.refuses("b", 71, 100) is None


def test_kv_reservation_of_a_child_counts_once_for_its_parent() -> None:
    tree = _tree_of_shares(
        a=KvShare(guaranteed=0.4, lends=0.0), a__x=KvShare(guaranteed=0.3, lends=0.0)
    )
    shares = _shares_with_leases(tree, b=40)

    assert (shares.refuses("b", 20, 100), shares.refuses("b", 21, 100)) == (None, "b")
    assert shares.refuses("a/y", 40, 100) is None
    assert shares.refuses("a/x", 30, 100) is None


def test_released_lease_no_longer_counts_against_a_kv_share() -> None:
    shares = _shares_with_leases(_tree_of_shares(), a__x=10)
    shares.release("a__x")

    assert (shares.held("a"), shares.held(""), shares.nodes()) == (0, 0, [])


@pytest.mark.parametrize("policy", ["justitia", "fcfs"])
def test_tenant_at_its_maximum_share_is_overtaken_by_other_tenants(policy: str) -> None:
    options: dict[str, object] = {"fairness": "tenant"} if policy == "justitia" else {}
    tree = _tree_of_shares(acme=KvShare(most=0.3))
    driver = CoreDriver(SchedulerCore(policy, options, tenants=tree))
    for name, tenant in (("a", "acme/x"), ("b", "acme/y"), ("c", "other")):
        driver.open(name, 100, tenant=tenant)
    for name in "abc":
        driver.submit(f"{name}1", name, prompt=200, output=10)

    assert {"a1", "c1"} == set(granted(driver.pull(kv=1000)))
    check(driver.core)

    assert ["b1"] == granted(driver.handle(ev.TenantsChanged(TenantTree())))


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("justitia", {}),
        ("justitia", {"fairness": "tenant"}),
        ("justitia-guarded", {}),
        ("fcfs", {}),
        ("vtc", {"unit": "tenant"}),
    ],
)
def test_application_behind_many_of_a_tenant_at_its_maximum_share_is_found(
    policy: str, options: dict[str, object]
) -> None:
    tree = _tree_of_shares(acme=KvShare(most=0.3))
    driver = CoreDriver(SchedulerCore(policy, options, tenants=tree))
    for number in range(40):
        driver.open(f"a{number}", 100, tenant=f"acme/t{number % 3}")
        driver.submit(f"a{number}-1", f"a{number}", prompt=200, output=10)
    driver.open("late", 1e9, tenant="other")
    driver.submit("late-1", "late", prompt=200, output=10)

    assert ["a0-1", "late-1"] == granted(driver.pull(kv=1000))
    check(driver.core)


def test_weight_of_an_application_is_scaled_by_its_tier_and_capped_by_its_tenants() -> None:
    """A tier is a factor that must not exceed an operator's limit."""
    tree = TenantTree({"acme": TenantNode(max_weight=3.0)})
    core = SchedulerCore(tenants=tree, tiers={"default": Tier(), "priority": Tier(4.0)})
    for name, tenant, weight, tier in (
        ("a", "acme/x", 0.5, "priority"),
        ("b", "acme/x", 2.0, "priority"),
        ("c", "other", 2.0, "priority"),
        ("d", "other", 2.0, "unknown"),
    ):
        core.handle(ev.ApplicationArrived(name, "c", tenant, weight, 10, "i", tier=tier), now=0)
    core.handle(ev.WeightChanged("c", 5.0), now=0)

    weights = {name: one.weight for name, one in core.state.applications.items()}
    assert weights == {"a": 2.0, "b": 3.0, "c": 20.0, "d": 2.0}
