"""Scheduler metrics of the tenant tree and of messages to the quota accounts."""

from dataclasses import replace

from justitia_ray.accounts.messages import NodeStanding
from justitia_ray.core.state import Counters
from justitia_ray.core.tenants import TenantNode, TenantTree, Unit
from justitia_ray.observability.tenant_metrics import ExchangeMeter, TenantMetrics
from tests.unit.observability.recording_backend import export_once, new_measures

STANDING = NodeStanding(
    Unit.TOKENS, "day", 100.0, 20.0, 50.0, 30.0, 60.0, 86_400.0, "reject", exceeded=2
)
"""Quota of 100 tokens a day, of which 20 are used and 50 reserved."""
TREE = TenantTree({"acme": TenantNode(), "acme/*": TenantNode(), "acme/search": TenantNode()})


def test_quotas_are_exported_per_configured_node() -> None:
    """Tenants that callers create below `acme/*` form one series."""
    source = new_measures("scheduler")
    quotas = dict.fromkeys(("acme", "acme/search", "acme/x", "acme/y"), (STANDING,))
    TenantMetrics(source).measure_quotas(quotas, TREE, 7)
    told = export_once(source)

    names = ("quota_limit", "quota_used", "quota_reserved", "quota_exceeded")
    assert {
        "acme": [100, 20, 50, 2],
        "acme/search": [100, 20, 50, 2],
        "acme/*": [200, 40, 100, 4],
    } == {
        node: [told.gauges[name, node, "tokens", "day"] for name in names]
        for node in ("acme", "acme/search", "acme/*")
    }
    assert 12 == sum(key[0] in names for key in told.gauges)
    assert 7 == told.counts["refusals_total", "quota_exhausted"]


def test_metric_of_a_removed_quota_is_reset() -> None:
    """A gauge keeps its last value, so a removed quota would look exhausted."""
    source = new_measures("scheduler")
    metrics = TenantMetrics(source)
    metrics.measure_quotas({"acme": (STANDING,)}, TREE, 0)
    metrics.measure_quotas({"acme": (replace(STANDING, per="hour"),)}, TREE, 0)
    told = export_once(source).gauges

    assert 1 == told["quota_left_ratio", "acme", "tokens", "day"]
    assert (0, 100) == (
        told["quota_limit", "acme", "tokens", "day"],
        told["quota_limit", "acme", "tokens", "hour"],
    )


def test_token_usage_is_counted_at_the_lowest_configured_tenant_node() -> None:
    """Counted at one node only, the usage of all nodes can be added up."""
    source, counters = new_measures("scheduler"), Counters()
    metrics = TenantMetrics(source)
    for tenant in ("acme/search/alice", "acme/x", "acme", "bare"):
        counters.count_services([(tenant, 10)])
        counters.count_tokens(tenant, 3, 4)
    metrics.measure_usage(counters, TREE)
    counters.count_services([("bare", 5)])
    metrics.measure_usage(counters, TenantTree({"bare": TenantNode()}))
    told = export_once(source).counts

    nodes = ("acme/search", "acme/*", "acme", "other", "bare")
    assert [10, 10, 10, 10, 5] == [told["node_kv_token_time_total", node] for node in nodes]
    assert [(3, 4)] * 4 == [
        tuple(told["node_tokens_total", node, way] for way in ("prompt", "output"))
        for node in nodes[:4]
    ]


def test_number_of_exported_tenant_nodes_is_bounded() -> None:
    """An operator may configure thousands of nodes, more than Prometheus should store."""
    source, counters = new_measures("scheduler", max_tenants=2), Counters()
    tree = TenantTree({name: TenantNode() for name in "abcd"})
    for tenant in "abcd":
        counters.count_services([(tenant, 1)])
    TenantMetrics(source).measure_usage(counters, tree)
    told = export_once(source).counts

    assert {"a": 1, "b": 1, "other": 2} == {
        key[1]: count for key, count in told.items() if key[0] == "node_kv_token_time_total"
    }


def test_messages_to_the_accounts_actor_are_counted_and_timed_once() -> None:
    """Every opening of an application waits for the single accounts process."""
    source, meter = new_measures("scheduler"), ExchangeMeter()
    metrics = TenantMetrics(source)
    meter.record_answer(0.25)
    meter.record_failure()
    metrics.measure_exchanges(meter, 4)
    meter.record_answer(0.5)
    metrics.measure_exchanges(meter, 3)
    told = export_once(source)

    assert (2, 0.75) == told.histograms["accounts_exchange_seconds",]
    assert (2, 1) == tuple(
        told.counts["accounts_exchanges_total", result] for result in ("answered", "failed")
    )
    assert 3 == told.gauges["waiting_claims",]
