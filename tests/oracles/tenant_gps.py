"""Exact fairness between tenants: fluid servers at both levels, and the server of each share.

It is written from DESIGN's "Tenants", not from the code under test: service reaches every tenant
and its applications at once, and keys are sums over the preceding work.
"""

from dataclasses import dataclass, field
from fractions import Fraction

from tests.oracles.gps import ExactFairShare, GpsServer


@dataclass
class TenantWork:
    """Tenant with GPS among its applications, and the remaining work of the tenant's share."""

    gps: GpsServer = field(default_factory=GpsServer)
    left: dict[str, Fraction] = field(default_factory=dict)
    finished: dict[str, Fraction] = field(default_factory=dict)
    """Virtual time of the root when the tenant's last work was done."""
    order: dict[str, int] = field(default_factory=dict)

    def place(self, name: str) -> tuple[Fraction, int]:
        """Return an application's position in the order of service."""
        return self.gps.tag(name), self.order[name]

    def first(self) -> str | None:
        """Return the application that GPS serves when the tenant gets service, or None."""
        waiting = [name for name, work in self.left.items() if work > 0]
        return min(waiting, key=self.place, default=None)

    def before(self, name: str) -> Fraction:
        """Return the remaining work of a tenant's applications up to the given one."""
        place = self.place(name)
        return sum((w for n, w in self.left.items() if w and self.place(n) <= place), Fraction(0))


class ExactTenantShare(ExactFairShare):
    """Exact fair sharing between tenants, and between the applications of each tenant."""

    def __init__(self) -> None:
        super().__init__()
        self.tenants: dict[str, TenantWork] = {}
        self.tenant_of: dict[str, str] = {}

    def key(self, name: str) -> Fraction:
        """Return the root's virtual time at which the application has no remaining work."""
        tenant = self._tenant(name)
        if tenant.left[name] > 0:
            phi = self.gps.weight[self.tenant_of[name]]
            return self.gps.virtual_time + tenant.before(name) / phi
        return tenant.finished[name]

    def tag(self, name: str) -> Fraction:
        """Return the application's virtual finish time inside its tenant."""
        return self._tenant(name).gps.tag(name)

    def open(self, name: str, tenant: str, predicted: Fraction, weight: Fraction) -> None:
        """Charge a new application; its tenant gets the weight of the last arrival."""
        self.tenant_of[name] = tenant
        self.arrive(name, predicted, weight)

    def _tenant(self, name: str) -> TenantWork:
        return self.tenants[self.tenant_of[name]]

    def _join(self, name: str, weight: Fraction) -> None:
        tenant = self.tenants.setdefault(self.tenant_of[name], TenantWork())
        self.gps.join(self.tenant_of[name], weight)
        tenant.gps.join(name, weight)
        tenant.left.setdefault(name, Fraction(0))
        tenant.order.setdefault(name, len(self.tenant_of))

    def _add_work(self, name: str, work: Fraction) -> None:
        tenant = self._tenant(name)
        self.gps.add_work(self.tenant_of[name], work)
        # Without work it joins again, at the larger of finish tag and virtual time.
        if tenant.gps.owed[name] == 0:
            del tenant.gps.owed[name]
            tenant.gps.join(name, tenant.gps.weight[name])
        tenant.gps.add_work(name, work)
        tenant.left[name] += work
        if tenant.left[name] == 0:
            phi = self.gps.weight[self.tenant_of[name]]
            tenant.finished[name] = self.gps.virtual_time + tenant.before(name) / phi

    def _remove_work(self, name: str, work: Fraction) -> None:
        tenant = self._tenant(name)
        tenant.gps.remove_work(name, work)
        taken = min(work, tenant.left[name])
        if taken > 0:
            tenant.left[name] -= taken
            if tenant.left[name] == 0:
                tenant.finished[name] = self.gps.virtual_time
        self._spend(tenant, work - taken, pace=Fraction(0))
        owed = self.gps.owed[self.tenant_of[name]]
        self.gps.remove_work(self.tenant_of[name], min(work, owed))
        self._give_service(max(Fraction(0), work - owed))

    def _give_service(self, work: Fraction) -> None:
        """Serve tenants at the root, and pass each tenant's service to its applications."""
        start, owed = self.gps.virtual_time, dict(self.gps.owed)
        self.gps.give_service(work)
        for name, tenant in self.tenants.items():
            given = owed[name] - self.gps.owed[name]
            tenant.gps.give_service(given)
            self._spend(tenant, given, pace=1 / self.gps.weight[name], start=start)

    def _spend(
        self, tenant: TenantWork, work: Fraction, pace: Fraction, start: Fraction | None = None
    ) -> None:
        at = self.gps.virtual_time if start is None else start
        while work > 0 and (name := tenant.first()) is not None:
            taken = min(work, tenant.left[name])
            tenant.left[name] -= taken
            work -= taken
            at += taken * pace
            if tenant.left[name] == 0:
                tenant.finished[name] = at
