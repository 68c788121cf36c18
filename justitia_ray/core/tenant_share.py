"""Fairness between tenants, and between the applications of each: two levels.

At the root the served clock shares between tenants by weight φ: F_T = max(F_T, V) + C/φ_T. Inside a
tenant, GPS driven by its share φ_T·dV gives each application its tag F_x, and a reference server
spends that share on one application at a time, in order of F_x. An application's key is the root's
V at which the reference server finishes it, so a tenant that splits its work into many applications
moves all but the last forward at its own cost: the last is finished when the root has served all.

The rules are those of `fair_share`, applied at both levels: what the root had given too much goes
to others of the tenant first, and beyond the tenant only if all of them are served.

A tenant's weight φ is that of its applications, which should agree. If they do not, the one named
last counts, by an arrival or by a change of weight; inside the tenant each has its own.

Invariant, for every tenant T, at its last look (V then): φ·(F_T − V) = Σ w_x·(F_x − V_T) over what
is active inside = Σ remaining reference work; and over all tenants Σ φ·(F_T − V) = Σ (chg − att).

Durable: an application's record has its tag, its remaining work and when it was finished. What is
the tenant's alone is carried by the record of one of its applications, and passes to another when
that one goes: it is then saved with what changed, however many tenants there are.
"""

from justitia_ray.core.fair_share import (
    MINIMUM_CHARGE,
    Account,
    ServedShare,
    reweigh_session,
)
from justitia_ray.core.records import NUMBER, Record, checked, positive
from justitia_ray.core.tenant import Tenant
from justitia_ray.core.virtual_clock import Session, VirtualClock
from justitia_ray.units import ApplicationId, ClientId, KvTokenTime, VirtualTime


class TenantShare(ServedShare):
    """Accounts under the served clock between tenants. `clock` is the root's.

    A verb costs O(log N), N the applications of one tenant, plus as much for each application that
    the reference server has finished since the last verb on that tenant.
    """

    def __init__(self, clock: VirtualClock | None = None) -> None:
        super().__init__(clock)
        self._tenants: dict[ClientId, Tenant] = {}
        self._tenant_of: dict[ApplicationId, ClientId] = {}
        self._rekeyed: dict[ClientId, None] = {}
        self._changed: dict[ApplicationId, None] = {}

    def arrive(
        self,
        application_id: ApplicationId,
        cost: KvTokenTime,
        weight: float,
        sequence: int,
        tenant: str = "",
    ) -> None:
        """Charge max(2, Ĉ) (rule 6).

        An id that is used again takes over what is still owed to the ended application that had it.
        """
        debt = self._take_over(application_id)
        charge = max(MINIMUM_CHARGE, cost)
        if tenant not in self._tenants:
            self._tenants[tenant] = Tenant(self.clock.virtual_time, weight)
        self._weigh(tenant, weight)
        self._tenants[tenant].live.add(application_id)
        self._tenant_of[application_id] = tenant
        account = self.accounts[application_id] = Account(weight, sequence, charge)
        self._charge(application_id, account, charge + debt)

    def tag(self, application_id: ApplicationId) -> VirtualTime:
        """Return the root's V at which the reference server finishes the application.

        While it is withdrawn: what a submission now would make of it (rule 5).
        """
        if not self.accounts[application_id].withdrawn:
            tenant = self._tenants[self._tenant_of[application_id]]
            return tenant.server.finish_time(application_id)
        return self._after_resuming(application_id)[1]

    def tag_in_tenant(self, application_id: ApplicationId) -> VirtualTime:
        """Return F_x; while it is withdrawn, what a submission now would make of it."""
        if not self.accounts[application_id].withdrawn:
            tenant = self._tenants[self._tenant_of[application_id]]
            return tenant.gps.session(application_id).finish
        return self._after_resuming(application_id)[0]

    def tenants(self) -> dict[ClientId, Tenant]:
        """Return the tenants that the root has not forgotten, for reading."""
        return {name: tenant for name, tenant in self._tenants.items() if name in self.clock}

    def take_rekeyed(self) -> list[ClientId]:
        """Return the tenants whose applications' tags changed since the last call."""
        rekeyed, self._rekeyed = self._rekeyed, {}
        return list(rekeyed)

    def take_changed(self) -> list[ApplicationId]:
        """Return the applications that either server served, or is done with."""
        for name in self.clock.take_forgotten():
            if name not in self.clock and (tenant := self._tenants.pop(name, None)) is not None:
                for application_id in tenant.members:
                    del self._tenant_of[application_id]
                    self._changed[application_id] = None
        changed, self._changed = self._changed, {}
        return list(changed)

    def sessions(self) -> dict[ApplicationId, Session]:
        """Return the sessions inside the tenants."""
        return {
            application_id: session
            for tenant in self.tenants().values()
            for application_id, session in tenant.gps.sessions().items()
        }

    def session_record(self, application_id: ApplicationId) -> Record | None:
        """Return the tag and what the reference server knows; a carrier's has its tenant's too."""
        name = self._tenant_of.get(application_id)
        if name is None or name not in self.clock:
            return None
        tenant = self._tenants[name]
        session = tenant.gps.session(application_id)
        record: Record = {
            "finish": session.finish,
            "weight": session.weight,
            "sequence": session.sequence,
            "tenant": name,
            "remaining": tenant.server.remaining(application_id),
            "finished": tenant.server.finished(application_id),
        }
        if application_id != tenant.carrier:
            return record
        root = self.clock.session(name)
        return record | {
            "carries": {
                "finish": root.finish,
                "weight": tenant.server.weight,
                "sequence": root.sequence,
                "released": root.released,
                "since": tenant.server.since,
                "virtual_time": tenant.gps.virtual_time,
            }
        }

    def prepare_restore(self, application_id: ApplicationId, record: Record) -> None:
        """Put back the tenant that the record carries, if it carries one."""
        if "carries" not in record:
            return
        name, carried = checked(record, "tenant", (str,)), checked(record, "carries", (dict,))
        weight = positive(carried, "weight")
        self.clock.restore_session(
            name,
            checked(carried, "finish", NUMBER),
            weight,
            checked(carried, "sequence", (int,)),
            released=checked(carried, "released", (bool,)),
        )
        since = checked(carried, "since", NUMBER)
        tenant = Tenant(since, weight, checked(carried, "virtual_time", NUMBER))
        tenant.carry(application_id)
        self._tenants[name] = tenant

    def restore_session(self, application_id: ApplicationId, record: Record, *, live: bool) -> None:
        """Put back an application of a tenant that was put back before."""
        name = checked(record, "tenant", (str,))
        self._tenants[name].restore(
            application_id,
            checked(record, "finish", NUMBER),
            positive(record, "weight"),
            checked(record, "sequence", (int,)),
            checked(record, "remaining", NUMBER),
            checked(record, "finished", (*NUMBER, type(None))),
            live=live,
        )
        self._tenant_of[application_id] = name

    def _charge(self, application_id: ApplicationId, account: Account, amount: KvTokenTime) -> None:
        name, tenant = self._look(application_id)
        self.clock.charge(name, amount, tenant.server.weight, account.sequence)
        tenant.charge(application_id, amount, account.weight, account.sequence)
        self._note(name)

    def _refund(self, application_id: ApplicationId, amount: KvTokenTime) -> None:
        name, tenant = self._look(application_id)
        tenant.refund(application_id, amount)
        self.clock.refund(name, amount)
        self._note(name)

    def _reweigh(self, application_id: ApplicationId, weight: float) -> None:
        """Take the weight at both levels."""
        name, tenant = self._look(application_id)
        tenant.reweigh(application_id, weight)
        self._weigh(name, weight)
        self._note(name)

    def _release(self, application_id: ApplicationId) -> VirtualTime:
        name, tenant = self._look(application_id)
        final = tenant.server.finish_time(application_id)
        tenant.end(application_id)
        if not tenant.live:
            self.clock.release(name)
        self._note(name)
        return final

    def _take_over(self, application_id: ApplicationId) -> KvTokenTime:
        """Take back what is owed to an ended application of this id; return how much it was."""
        if application_id not in self._tenant_of:
            return 0
        name, tenant = self._look(application_id)
        self._note(name)
        if application_id not in tenant:
            return 0
        debt = tenant.debt(application_id)
        self._refund(application_id, debt)
        return debt

    def _weigh(self, name: ClientId, weight: float) -> None:
        """Let a tenant have another weight at the root; what is owed stays."""
        tenant = self._tenants[name]
        if tenant.server.weight == weight:
            return
        tenant.look(self.clock.virtual_time, idle=self._is_idle(name))
        tenant.server.weight = weight
        if name in self.clock and not self.clock.session(name).released:
            reweigh_session(self.clock, name, weight)
        self._note(name)

    def _after_resuming(self, application_id: ApplicationId) -> tuple[VirtualTime, VirtualTime]:
        account = self.accounts[application_id]
        name = self._tenant_of[application_id]
        return self._tenants[name].after_charge(
            application_id,
            account.charged - account.attained,
            self.clock.virtual_time,
            idle=self._is_idle(name),
        )

    def _look(self, application_id: ApplicationId) -> tuple[ClientId, Tenant]:
        """Bring the tenant of an application to the root's V."""
        name = self._tenant_of[application_id]
        tenant = self._tenants[name]
        tenant.look(self.clock.virtual_time, idle=self._is_idle(name))
        return name, tenant

    def _is_idle(self, name: ClientId) -> bool:
        """Return whether the root owes the tenant nothing."""
        return name not in self.clock or not self.clock.session(name).active

    def _note(self, name: ClientId) -> None:
        """Note whose keys and whose records changed."""
        self._rekeyed[name] = None
        for application_id in self._tenants[name].take_changed():
            self._changed[application_id] = None
            if application_id not in self._tenants[name]:
                del self._tenant_of[application_id]
