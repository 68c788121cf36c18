"""Metrics of the tree of tenants: quotas and use of described nodes, exchanges with accounts."""

from collections import deque
from collections.abc import Mapping, Sequence

from justitia_ray.accounts.messages import NodeStanding
from justitia_ray.core.actions import Refusal
from justitia_ray.core.state import Counters
from justitia_ray.core.tenants import TenantTree
from justitia_ray.observability import metrics as m
from justitia_ray.observability.measures import OTHER, Measures
from justitia_ray.units import ClientId, Seconds

_MOST_DURATIONS = 10_000
"""Durations that are kept where nobody exports them."""
_NODE_GAUGES = (m.QUOTA_LIMIT, m.QUOTA_USED, m.QUOTA_RESERVED, m.QUOTA_EXCEEDED)


class ExchangeMeter:
    """Counts exchanges with the accounts, and keeps the durations of those that were answered."""

    def __init__(self) -> None:
        self.answered = 0
        self.failed = 0
        self._durations: deque[Seconds] = deque(maxlen=_MOST_DURATIONS)

    def record_answer(self, duration_s: Seconds) -> None:
        """Count an exchange that was answered."""
        self.answered += 1
        self._durations.append(duration_s)

    def record_failure(self) -> None:
        """Count an exchange that got no answer, and is repeated."""
        self.failed += 1

    def take_durations(self) -> list[Seconds]:
        """Return the durations since the last call."""
        taken = list(self._durations)
        self._durations.clear()
        return taken


class TenantMetrics:
    """Measures quotas, use by node, and the exchanges with the accounts, before an export."""

    def __init__(self, measures: Measures) -> None:
        """Start to measure for a scheduler."""
        self._measures = measures
        self._counted: dict[tuple[str, ClientId], float] = {}
        """Totals of each tenant that its node has been given, by metric and direction."""
        self._tenant_keys: set[tuple[str, str, str]] = set()
        """Tenant, unit and period of the quotas that have gauges."""
        self._node_keys: set[tuple[str, str, str]] = set()
        """Node, unit and period of the same."""

    def measure_usage(self, counters: Counters, tree: TenantTree) -> None:
        """Add what tenants have used since the last time to their lowest described nodes.

        A tree that changes moves nothing that was counted before.
        """
        measures = self._measures
        for tenant, amount in counters.served.items():
            series = measures.counter(m.NODE_KV_TOKEN_TIME_TOTAL, self._node_of(tree, tenant))
            series.increase(self._new("served", tenant, float(amount)))
        directions = (
            ("prompt", counters.prompt_tokens),
            ("cached", counters.cached_tokens),
            ("output", counters.output_tokens),
        )
        for direction, totals in directions:
            for tenant, tokens in totals.items():
                node = self._node_of(tree, tenant)
                series = measures.counter(m.NODE_TOKENS_TOTAL, node, direction)
                series.increase(self._new(direction, tenant, tokens))

    def measure_quotas(
        self, nodes: Mapping[ClientId, Sequence[NodeStanding]], tree: TenantTree, refusals: int
    ) -> None:
        """Set the quotas as they stand, and the total of what they refused.

        Args:
            nodes: The quotas of each node.
            tree: The tree that describes the nodes.
            refusals: Applications and inferences refused for a quota since the start.
        """
        measures, left = self._measures, dict[tuple[str, str, str], float]()
        sums: dict[tuple[str, str, str], tuple[float, ...]] = {}
        for path, standings in nodes.items():
            tenant = measures.label("tenant", path)
            node = measures.label("node", tree.described_as(path) or OTHER)
            for one in standings:
                key = (tenant, one.unit.value, one.per)
                left[key] = min(left.get(key, 1.0), float(one.remaining / one.limit))
                key = (node, one.unit.value, one.per)
                told = (one.limit, one.used, one.claimed, one.exceeded)
                before = sums.get(key, (0.0,) * len(told))
                sums[key] = tuple(map(sum, zip(before, told, strict=True)))
        for key in self._tenant_keys - left.keys():
            measures.gauge(m.QUOTA_LEFT_RATIO, *key).value = 1
        self._tenant_keys |= left.keys()
        for key, ratio in left.items():
            measures.gauge(m.QUOTA_LEFT_RATIO, *key).value = ratio
        for gone in self._node_keys - sums.keys():
            for metric in _NODE_GAUGES:
                measures.gauge(metric, *gone).value = 0
        self._node_keys |= sums.keys()
        for key, values in sums.items():
            for metric, value in zip(_NODE_GAUGES, values, strict=True):
                measures.gauge(metric, *key).value = value
        measures.counter(m.REFUSALS_TOTAL, Refusal.QUOTA_EXHAUSTED.value).set_total(refusals)

    def measure_exchanges(self, meter: ExchangeMeter, waiting_claims: int) -> None:
        """Count and time the exchanges since the last export.

        Args:
            meter: Counts them.
            waiting_claims: Claims that are not decided.
        """
        measures = self._measures
        measures.gauge(m.WAITING_CLAIMS).value = waiting_claims
        measures.counter(m.ACCOUNTS_EXCHANGES_TOTAL, "answered").set_total(meter.answered)
        measures.counter(m.ACCOUNTS_EXCHANGES_TOTAL, "failed").set_total(meter.failed)
        for duration_s in meter.take_durations():
            measures.histogram(m.ACCOUNTS_EXCHANGE_SECONDS).observe(duration_s)

    def step_down(self) -> None:
        """Set the gauges of a scheduler that knows no quotas any more to nothing."""
        self._measures.gauge(m.WAITING_CLAIMS).value = 0
        for key in self._tenant_keys:  # its successor's are greater
            self._measures.gauge(m.QUOTA_LEFT_RATIO, *key).value = 0
        for key in self._node_keys:
            for metric in _NODE_GAUGES:
                self._measures.gauge(metric, *key).value = 0

    def _node_of(self, tree: TenantTree, tenant: ClientId) -> str:
        return self._measures.label("node", tree.lowest_described(tenant) or OTHER)

    def _new(self, kind: str, tenant: ClientId, total: float) -> float:
        """Return by how much a tenant's total has risen since the last time."""
        before = self._counted.get((kind, tenant), 0.0)
        self._counted[kind, tenant] = total
        return max(0.0, total - before)
