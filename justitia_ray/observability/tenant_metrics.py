"""Metrics of the tree of tenants: quotas and usage of nodes, and calls to the accounts actor."""

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
"""Maximum number of durations that are recorded between exports."""
_NODE_GAUGES = (m.QUOTA_LIMIT, m.QUOTA_USED, m.QUOTA_RESERVED, m.QUOTA_EXCEEDED)


class ExchangeMeter:
    """Counts calls to the actor that keeps quotas, and records how long they took."""

    def __init__(self) -> None:
        self.answered = 0
        self.failed = 0
        self._durations: deque[Seconds] = deque(maxlen=_MOST_DURATIONS)

    def record_answer(self, duration_s: Seconds) -> None:
        """Count an answered call to the actor that keeps quotas."""
        self.answered += 1
        self._durations.append(duration_s)

    def record_failure(self) -> None:
        """Count an unanswered call to the actor that keeps quotas, which will be repeated."""
        self.failed += 1

    def take_durations(self) -> list[Seconds]:
        """Return the recorded durations in seconds, and clear the record."""
        taken = list(self._durations)
        self._durations.clear()
        return taken


class TenantMetrics:
    """Sets the metrics of tenants' quotas and usage."""

    def __init__(self, measures: Measures) -> None:
        self._measures = measures
        self._counted: dict[tuple[str, ClientId], float] = {}
        self._tenant_keys: set[tuple[str, str, str]] = set()
        self._node_keys: set[tuple[str, str, str]] = set()

    def measure_usage(self, counters: Counters, tree: TenantTree) -> None:
        """Add the tenants' new usage to the nearest configured nodes above them.

        A change of the tree does not move usage that was counted before.
        """
        measures = self._measures
        for tenant, amount in counters.served.items():
            series = measures.counter(m.NODE_KV_TOKEN_TIME_TOTAL, self._node_label(tree, tenant))
            series.increase(self._increase_of("served", tenant, float(amount)))
        directions = (
            ("prompt", counters.prompt_tokens),
            ("cached", counters.cached_tokens),
            ("output", counters.output_tokens),
        )
        for direction, totals in directions:
            for tenant, tokens in totals.items():
                node = self._node_label(tree, tenant)
                series = measures.counter(m.NODE_TOKENS_TOTAL, node, direction)
                series.increase(self._increase_of(direction, tenant, tokens))

    def measure_quotas(
        self, nodes: Mapping[ClientId, Sequence[NodeStanding]], tree: TenantTree, refusals: int
    ) -> None:
        """Set the gauges of quotas and the totals of refusals by quotas.

        Args:
            nodes: The quotas of each node.
            tree: Tree of tenants that contains the nodes.
            refusals: Number of applications and inferences refused for a quota since the start.
        """
        measures, left = self._measures, dict[tuple[str, str, str], float]()
        sums: dict[tuple[str, str, str], tuple[float, ...]] = {}
        for path, standings in nodes.items():
            tenant = measures.label("tenant", path)
            node = measures.label("node", tree.describing_path(path) or OTHER)
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
        """Export counts and durations of calls to the actor that keeps quotas.

        Args:
            meter: Meter of these calls.
            waiting_claims: Number of undecided claims.
        """
        measures = self._measures
        measures.gauge(m.WAITING_CLAIMS).value = waiting_claims
        measures.counter(m.ACCOUNTS_EXCHANGES_TOTAL, "answered").set_total(meter.answered)
        measures.counter(m.ACCOUNTS_EXCHANGES_TOTAL, "failed").set_total(meter.failed)
        for duration_s in meter.take_durations():
            measures.histogram(m.ACCOUNTS_EXCHANGE_SECONDS).observe(duration_s)

    def step_down(self) -> None:
        """Reset the gauges of a scheduler that is no longer the leader."""
        self._measures.gauge(m.WAITING_CLAIMS).value = 0
        # After a change of leader, the dashboard's queries find the new leader's value by maximum.
        for key in self._tenant_keys:
            self._measures.gauge(m.QUOTA_LEFT_RATIO, *key).value = 0
        for key in self._node_keys:
            for metric in _NODE_GAUGES:
                self._measures.gauge(metric, *key).value = 0

    def _node_label(self, tree: TenantTree, tenant: ClientId) -> str:
        return self._measures.label("node", tree.lowest_describing_path(tenant) or OTHER)

    def _increase_of(self, kind: str, tenant: ClientId, total: float) -> float:
        before = self._counted.get((kind, tenant), 0.0)
        self._counted[kind, tenant] = total
        return max(0.0, total - before)
