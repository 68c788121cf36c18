"""Quotas in the accounts' last answer, for headers of answers, reasons for waiting, and metrics."""

import math
from collections.abc import Iterator, Mapping

from justitia_ray.accounts.messages import Amounts, NodeStanding
from justitia_ray.core.limits import LimitStanding
from justitia_ray.core.tenants import OnExhausted, ancestors
from justitia_ray.units import ClientId, Seconds


class KnownQuotas:
    """Quotas of all tenants, as in the quota accounts' last answer."""

    def __init__(self) -> None:
        self.nodes: Mapping[ClientId, tuple[NodeStanding, ...]] = {}
        self._told_at: Seconds = -math.inf

    def note(self, nodes: Mapping[ClientId, tuple[NodeStanding, ...]], now: Seconds) -> None:
        """Replace the known quotas by the quota accounts' answer."""
        self.nodes, self._told_at = nodes, now

    def age_s(self, now: Seconds) -> Seconds:
        """Return the seconds since the quota accounts' last answer."""
        return now - self._told_at

    def standings(self, tenant: ClientId, now: Seconds) -> tuple[LimitStanding, ...]:
        """Return the quotas that apply to a tenant, from the root of the tree down.

        The result is empty if no quota applies, or the accounts have not answered yet.
        """
        return tuple(self._rejecting_limits(tenant, now))

    def in_the_way(self, tenant: ClientId, wants: Amounts, now: Seconds) -> LimitStanding | None:
        """Return the scarcest quota with too little left for a claim; None if all have enough."""
        short = [
            standing
            for standing in self._rejecting_limits(tenant, now)
            if any(
                standing.unit == unit.value and standing.remaining < amount
                for unit, amount in wants.items()
            )
        ]
        return min(short, key=lambda one: one.remaining / one.limit, default=None)

    def _rejecting_limits(self, tenant: ClientId, now: Seconds) -> Iterator[LimitStanding]:
        age_s = self.age_s(now)
        for path in ancestors(tenant):
            for node in self.nodes.get(path, ()):
                if node.on_exhausted == OnExhausted.REJECT:
                    yield LimitStanding(
                        path,
                        node.unit.value,
                        node.limit,
                        node.remaining,
                        max(0.0, (node.reset_s or node.period_s) - age_s),
                        node.period_s,
                    )
