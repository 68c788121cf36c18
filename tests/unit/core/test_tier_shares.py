"""KV shares by tier: guaranteed and lent memory, and its display in the outlook."""

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.kv_shares import KvShares
from justitia_ray.core.outlook import Reason
from justitia_ray.core.tenants import (
    TIERS,
    KvShare,
    TenantNode,
    TenantTree,
    Tier,
    check_guaranteed,
)
from justitia_ray.errors import ConfigError
from tests.core_driver import PATIENT, CoreDriver, granted

_KEPT = {**TIERS, "priority": Tier(4.0, KvShare(guaranteed=0.4, lends=0.0))}


def _guaranteed_shares(
    lends: float = 0.0, tree: TenantTree | None = None, most: float = 1.0
) -> KvShares:
    """Return shares with 40 of 100 guaranteed to the tier `priority`."""
    share = KvShare(guaranteed=0.4, lends=lends, most=most)
    return KvShares(tree or TenantTree(), {"priority": Tier(4.0, share)})


@pytest.mark.parametrize(("lends", "is_refused"), [(0.0, True), (0.5, False), (1.0, False)])
def test_unused_part_of_a_guaranteed_tier_share_is_reserved(lends: float, is_refused: bool) -> None:
    """The less other tiers have borrowed, the more is reserved."""
    shares = _guaranteed_shares(lends)
    shares.hold("f", "acme", 50, "flex")

    assert shares.tier_refuses("flex", 20, 100) == is_refused
    assert not shares.tier_refuses("priority", 50, 100)


def test_used_part_of_a_guaranteed_tier_share_is_not_reserved() -> None:
    shares = _guaranteed_shares()
    shares.hold("p", "acme", 30, "priority")
    shares.hold("f", "acme", 40, "flex")

    assert (shares.tier_refuses("flex", 20, 100), shares.tier_refuses("flex", 21, 100)) == (
        False,
        True,
    )

    shares.release("p")

    assert shares.tier_refuses("flex", 21, 100)


def test_inference_too_large_for_unreserved_memory_runs_alone() -> None:
    """A large inference must not wait forever."""
    shares = _guaranteed_shares()
    assert not shares.tier_refuses("flex", 70, 100)

    shares.hold("p", "acme", 95, "priority")
    assert not shares.tier_refuses("flex", 5, 100)

    both = KvShares(
        TenantTree(),
        {"priority": Tier(4.0, KvShare(0.4, lends=0.0)), "default": Tier(1.0, KvShare(0.1, 1, 0))},
    )
    both.hold("p", "acme", 85, "priority")

    assert both.tier_refuses("flex", 10, 100)


def test_tier_holds_at_most_its_maximum_share() -> None:
    """A tier may always run one inference, as a tenant may."""
    shares = _guaranteed_shares(most=0.5)
    assert not shares.tier_refuses("priority", 60, 100)

    shares.hold("p", "acme", 30, "priority")

    assert (shares.tier_refuses("priority", 20, 100), shares.tier_refuses("priority", 21, 100)) == (
        False,
        True,
    )


def test_reservations_of_tenants_and_tiers_add_up() -> None:
    tree = TenantTree({"acme": TenantNode(kv_share=KvShare(guaranteed=0.3, lends=0.0))})
    shares = _guaranteed_shares(tree=tree)
    shares.hold("o", "other", 20, "flex")

    def refused_by(tenant: str, tier: str, tokens: int) -> tuple[bool, str | None]:
        return shares.tier_refuses(tier, tokens, 100), shares.refuses(tenant, tokens, 100, tier)

    assert refused_by("other", "flex", 10) == (False, None)
    assert refused_by("other", "flex", 11) == (False, "other")  # the two together
    assert refused_by("other", "flex", 41) == (True, "other")
    assert refused_by("acme", "flex", 30) == (False, None)
    assert refused_by("other", "priority", 40) == (False, None)
    # the reservation of tenant acme is separate from that of its tier
    assert refused_by("other", "priority", 51) == (False, "other")


def _driver_with_tiers(policy: str, options: dict[str, object], flex: int = 40) -> CoreDriver:
    """Open applications of tier flex with 30 tokens each, then one of tier priority."""
    driver = CoreDriver(SchedulerCore(policy, options, tiers=_KEPT, timeouts=PATIENT))
    for number in range(flex):
        _open_in_tier(driver, f"f{number}", f"t{number % 3}", "flex")
    _open_in_tier(driver, "p", "late", "priority", 1e9)
    return driver


def _open_in_tier(driver: CoreDriver, name: str, tenant: str, tier: str, cost: float = 100) -> None:
    driver.handle(ev.ApplicationArrived(name, "c", tenant, 1.0, cost, "i0", tier=tier))
    driver.submit(f"{name}-1", name, prompt=20, output=10)


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("justitia", {}),
        ("justitia", {"fairness": "tenant"}),
        ("justitia", {"fairness": "tenant", "order": "sgps", "guard_iterations": 300}),
        ("fcfs", {}),
        ("vtc", {}),
    ],
)
def test_priority_application_behind_many_of_another_tier_is_found(
    policy: str, options: dict[str, object]
) -> None:
    driver = _driver_with_tiers(policy, options)
    names = granted(driver.pull(kv=100))

    assert "p-1" == names[-1]
    # two applications of tier flex use 60 tokens; the other 40 are reserved for tier priority
    assert 3 == len(names)


def test_freed_memory_is_granted_to_the_same_tier_again() -> None:
    driver = _driver_with_tiers("justitia", {"fairness": "tenant"}, flex=5)
    driver.pull(kv=100)
    lease = driver.lease_of("f0-1")

    assert ["f2-1"] == granted(driver.pull(kv=100, finished={lease: 10}))


def test_changed_tier_shares_apply_at_once() -> None:
    driver = _driver_with_tiers("justitia", {}, flex=5)
    driver.handle(ev.ApplicationCancelled("p"))
    assert 2 == len(granted(driver.pull(kv=100)))

    assert 1 == len(granted(driver.handle(ev.TenantsChanged(TenantTree(), TIERS))))


def test_outlook_names_the_tier_that_delays_an_application() -> None:
    """There is free memory, but not for the application's tier."""
    driver = _driver_with_tiers("justitia", {}, flex=3)
    driver.handle(ev.ApplicationCancelled("p"))
    driver.pull(kv=100)
    told = driver.core.outlooks.ask(["f2", "f0"])

    assert [Reason.TIER, Reason.RUNNING] == [one.reason for one in told.values()]


def test_guaranteed_shares_of_tiers_and_tenants_are_checked_together() -> None:
    tree = TenantTree({"acme": TenantNode(kv_share=KvShare(guaranteed=0.7))})

    with pytest.raises(ConfigError, match=r"1\.1 in sum \(priority 0\.4, and 0\.7 of tenants"):
        check_guaranteed(tree, _KEPT)
    check_guaranteed(TenantTree(), _KEPT)
    with pytest.raises(ConfigError, match=r"tiers\.flex\.kv_share: guaranteed is 0\.5: at most `m"):
        check_guaranteed(tree, {"flex": Tier(1.0, KvShare(guaranteed=0.5, most=0.3))})
