"""Exact fairness between tenants: fluid servers at both levels, and the server of each share.

Written from DESIGN's "Tenants" and not from the code that it checks: nothing is put off, every pour
reaches every tenant and its applications at once; keys are found by adding up what comes before.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from tests.oracles.gps import FluidServer, Ledger


@dataclass
class TenantWork:
    """One tenant: GPS among its applications, and the work that its share has yet to do."""

    gps: FluidServer = field(default_factory=FluidServer)
    left: dict[str, Fraction] = field(default_factory=dict)
    finished: dict[str, Fraction] = field(default_factory=dict)
    """V of the root when nothing was left of it."""
    order: dict[str, int] = field(default_factory=dict)

    def place(self, name: str) -> tuple[Fraction, int]:
        """Return the place in the order of service."""
        return self.gps.tag(name), self.order[name]

    def first(self) -> str | None:
        """Return whom the share is spent on."""
        waiting = [name for name, work in self.left.items() if work > 0]
        return min(waiting, key=self.place, default=None)

    def before(self, name: str) -> Fraction:
        """Return the work left of all up to and with this one."""
        place = self.place(name)
        return sum((w for n, w in self.left.items() if w and self.place(n) <= place), Fraction(0))


class TenantRules:
    """The rules of the served clock at both levels."""

    def __init__(self) -> None:
        self.root = FluidServer()
        self.tenants: dict[str, TenantWork] = {}
        self.tenant_of: dict[str, str] = {}
        self.ledgers: dict[str, Ledger] = {}
        self._arrivals = 0

    def key(self, name: str) -> Fraction:
        """Return the V of the root at which nothing is left of the application."""
        tenant = self._tenant(name)
        if tenant.left[name] > 0:
            phi = self.root.weight[self.tenant_of[name]]
            return self.root.virtual_time + tenant.before(name) / phi
        return tenant.finished[name]

    def tag(self, name: str) -> Fraction:
        """Return F_x."""
        return self._tenant(name).gps.tag(name)

    def arrive(self, name: str, tenant: str, predicted: Fraction, weight: Fraction) -> None:
        """Rule 6; the tenant takes the weight of its last arrival."""
        self._arrivals += 1
        charge = max(Fraction(2), predicted)
        self.ledgers[name] = Ledger(charge)
        self.tenant_of[name] = tenant
        work = self.tenants.setdefault(tenant, TenantWork())
        self.root.join(tenant, weight)
        work.gps.join(name, weight)
        work.left[name] = Fraction(0)
        work.order[name] = self._arrivals
        self._ask(name, charge)

    def report(self, deliveries: Iterable[tuple[str, Fraction]]) -> None:
        """Rules 1 and 2."""
        total = Fraction(0)
        for name, amount in deliveries:
            total += amount
            ledger = self.ledgers[name]
            ledger.attained += amount
            while ledger.attained > ledger.charged:
                self._ask(name, ledger.charged)
                ledger.charged += ledger.charged
        self._pour(total)

    def leave(self, name: str) -> None:
        """Rule 4."""
        ledger = self.ledgers[name]
        if not ledger.away:
            ledger.away = True
            self._take_back(name, ledger.charged - ledger.attained)

    def come_back(self, name: str) -> None:
        """Rule 5."""
        ledger = self.ledgers[name]
        if ledger.away:
            ledger.away = False
            self._ask(name, ledger.charged - ledger.attained)

    def expect(self, name: str, remaining: Fraction) -> None:
        """Rule 7."""
        ledger = self.ledgers[name]
        more = ledger.attained + remaining - ledger.charged
        if more > 0:
            ledger.charged += more
            if not ledger.away:
                self._ask(name, more)

    def end(self, name: str) -> Fraction:
        """Rule 3; what is owed beyond it is still served. Return the last key."""
        self.leave(name)
        del self.ledgers[name]
        return self.key(name)

    def reweigh(self, name: str, weight: Fraction) -> None:
        """Refund, new weight for the application and its tenant, charge."""
        ledger = self.ledgers[name]
        unattained = Fraction(0) if ledger.away else ledger.charged - ledger.attained
        if not ledger.away:
            self._take_back(name, unattained)
        self._tenant(name).gps.join(name, weight)
        self.root.join(self.tenant_of[name], weight)
        if not ledger.away:
            self._ask(name, unattained)

    def _tenant(self, name: str) -> TenantWork:
        return self.tenants[self.tenant_of[name]]

    def _ask(self, name: str, work: Fraction) -> None:
        tenant = self._tenant(name)
        self.root.ask(self.tenant_of[name], work)
        if tenant.gps.owed[name] == 0:  # it joins anew: max(F, V)
            del tenant.gps.owed[name]
            tenant.gps.join(name, tenant.gps.weight[name])
        tenant.gps.ask(name, work)
        tenant.left[name] += work
        if tenant.left[name] == 0:
            phi = self.root.weight[self.tenant_of[name]]
            tenant.finished[name] = self.root.virtual_time + tenant.before(name) / phi

    def _take_back(self, name: str, work: Fraction) -> None:
        tenant = self._tenant(name)
        tenant.gps.take_back(name, work)
        taken = min(work, tenant.left[name])
        if taken > 0:
            tenant.left[name] -= taken
            if tenant.left[name] == 0:
                tenant.finished[name] = self.root.virtual_time
        self._spend(tenant, work - taken, pace=Fraction(0))
        owed = self.root.owed[self.tenant_of[name]]
        self.root.take_back(self.tenant_of[name], min(work, owed))
        self._pour(max(Fraction(0), work - owed))

    def _pour(self, work: Fraction) -> None:
        """Let the root serve, and what each tenant is given serve its applications."""
        start, owed = self.root.virtual_time, dict(self.root.owed)
        self.root.pour(work)
        for name, tenant in self.tenants.items():
            given = owed[name] - self.root.owed[name]
            tenant.gps.pour(given)
            self._spend(tenant, given, pace=1 / self.root.weight[name], start=start)

    def _spend(
        self, tenant: TenantWork, work: Fraction, pace: Fraction, start: Fraction | None = None
    ) -> None:
        at = self.root.virtual_time if start is None else start
        while work > 0 and (name := tenant.first()) is not None:
            taken = min(work, tenant.left[name])
            tenant.left[name] -= taken
            work -= taken
            at += taken * pace
            if tenant.left[name] == 0:
                tenant.finished[name] = at
