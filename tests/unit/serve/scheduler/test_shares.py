"""Shares of the tenant tree's nodes, as the status shows them."""

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core.tenants import KvShare, TenantNode, TenantTree
from justitia_ray.serve.scheduler import shares
from justitia_ray.serve.scheduler.shares import shares_view
from tests.core_driver import CoreDriver


def _driver_with_node(policy: str, options: dict[str, object]) -> CoreDriver:
    tree = TenantTree({"T": TenantNode(weight=3.0, kv_share=KvShare(guaranteed=0.1))})
    driver = CoreDriver(SchedulerCore(policy, options, tenants=tree))
    for name, tenant in (("a", "T/x"), ("b", "T/y"), ("u", "U")):
        driver.open(name, 10_000, tenant=tenant)
        driver.submit(f"{name}1", name, prompt=190, output=10)
    driver.pull(kv=400)
    return driver


def test_tenant_nodes_report_weight_fair_share_and_usage() -> None:
    """Node T has 3 of 4 shares, and its two children half of that each.

    Two inferences hold half each.
    """
    told = shares_view(_driver_with_node("justitia", {"fairness": "tenant"}).core)

    assert [one.node for one in told] == ["T", "T/x", "T/y", "U"]
    assert [one.weight for one in told] == [3, 1, 1, 1]
    assert [one.fair_share for one in told] == [0.75, 0.375, 0.375, 0.25]
    assert [one.used for one in told] == [1, 0.5, 0.5, 0]
    assert [one.borrowed for one in told] == [0.25, 0.125, 0.125, 0]
    assert [(one.waiting, one.running) for one in told] == [(0, 2), (0, 1), (0, 1), (1, 0)]


def test_no_fair_share_is_reported_without_tenant_fairness() -> None:
    """Usage and waiting inferences are reported in any case."""
    told = shares_view(_driver_with_node("fcfs", {}).core)

    assert {one.fair_share for one in told} == {None}
    assert {one.weight for one in told} == {None}
    assert sum(one.used for one in told if "/" not in one.node) == 1


def test_tenant_nodes_with_the_largest_usage_are_listed_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer has a limited size, however many tenants exist."""
    monkeypatch.setattr(shares, "MAX_NODES", 2)
    told = shares_view(_driver_with_node("justitia", {"fairness": "tenant"}).core)

    assert [one.node for one in told] == ["T", "T/x"]
