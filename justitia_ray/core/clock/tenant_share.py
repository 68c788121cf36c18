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

from justitia_ray.core.clock.fair_share import (
    MINIMUM_CHARGE,
    SESSION_FIELDS,
    Account,
    ServedShare,
    reweigh_session,
)
from justitia_ray.core.clock.reference_server import ReferenceServer
from justitia_ray.core.clock.virtual_clock import GpsSession, VirtualClock
from justitia_ray.core.records import Fields, Record, RecordReader, read_fields
from justitia_ray.units import ApplicationId, ClientId, KvTokenTime, VirtualTime

_MEMBER_FIELDS: Fields = {
    **SESSION_FIELDS,
    "tenant": RecordReader.text,
    "remaining": RecordReader.number,
    "finished": RecordReader.number_or_none,
}
_CARRIED_FIELDS: Fields = {
    **SESSION_FIELDS,
    "released": RecordReader.flag,
    "since": RecordReader.number,
    "virtual_time": RecordReader.number,
}


class Tenant:
    """A tenant's live applications, and ended ones to which either server still owes work.

    GPS and the reference server are driven by the tenant's share of the root, φ·dV, and lazily:
    `look` brings them to the root's V before anything is changed. At every look they owe the same
    in all, and as much as the root owes the tenant: each is charged and refunded the same, and none
    of them rests while it owes anything.
    """

    def __init__(self, now: VirtualTime, weight: float, inner_time: VirtualTime = 0) -> None:
        self.gps = VirtualClock(inner_time)
        self.server = ReferenceServer(now, weight)
        self.live: set[ApplicationId] = set()
        self._members: dict[ApplicationId, None] = {}
        self._changed: dict[ApplicationId, None] = {}
        self._carrier: ApplicationId | None = None

    def __contains__(self, application_id: ApplicationId) -> bool:
        return application_id in self._members

    @property
    def carrier(self) -> ApplicationId | None:
        """The member whose durable record carries the tenant's, None if there is no member."""
        if self._carrier not in self._members:
            self._carrier = next(iter(self._members), None)
        return self._carrier

    @property
    def members(self) -> list[ApplicationId]:
        """Applications that have a durable record."""
        return list(self._members)

    def owes(self, application_id: ApplicationId) -> bool:
        """Return whether either server owed the application work at the last look."""
        return self.gps.session(application_id).active or self.server.remaining(application_id) > 0

    def look(self, now: VirtualTime, *, idle: bool) -> None:
        """Spend what the root gave until its V was `now`; it owes nothing any more if `idle`."""
        share = self.server.share(now, idle=idle)
        self.gps.serve(share)
        self._served(self.server.advance(now, share))

    def charge(
        self, application_id: ApplicationId, amount: KvTokenTime, weight: float, sequence: int
    ) -> None:
        """Charge an application more."""
        self._members[application_id] = None
        self.gps.charge(application_id, amount, weight, sequence)
        tag = self.gps.session(application_id).finish
        self.server.charge(application_id, tag, sequence, amount)
        self._served([application_id])

    def refund(self, application_id: ApplicationId, amount: KvTokenTime) -> None:
        """Refund a charge: what a server had given too much goes to others of the tenant."""
        session = self.gps.session(application_id)
        self.gps.refund(application_id, amount)
        served = self.server.refund(application_id, session.finish, amount)
        self._served([application_id, *served])

    def reweigh(self, application_id: ApplicationId, weight: float) -> None:
        """Change the weight inside the tenant; what is owed stays."""
        reweigh_session(self.gps, application_id, weight)
        self.server.move(application_id, self.gps.session(application_id).finish)
        self._served([application_id])

    def transfer(self, source: ApplicationId, target: ApplicationId, amount: KvTokenTime) -> None:
        """Let work of an application be done at the place of another, which it has passed."""
        self.server.transfer(source, target, amount)
        self._served([source, target])

    def debt(self, application_id: ApplicationId) -> KvTokenTime:
        """Return what must be refunded for neither server to owe the application anything."""
        return max(self.gps.owed(application_id), self.server.remaining(application_id))

    def end(self, application_id: ApplicationId) -> None:
        """Forget an application as soon as neither server owes it anything."""
        self.live.discard(application_id)
        self._served([application_id])

    def after_charge(
        self, application_id: ApplicationId, amount: KvTokenTime, now: VirtualTime, *, idle: bool
    ) -> tuple[VirtualTime, VirtualTime]:
        """Return the tag and the finish time that a charge at the root's V would give.

        Changes nothing, not even by a look: whoever asks must not change how later sums round.
        O(N log N).
        """
        share = self.server.share(now, idle=idle)
        session = self.gps.session(application_id)
        inner_time = _virtual_time_after(self.gps, share)
        tag = max(session.finish, inner_time) + amount / session.weight
        work = self.server.work_up_to((tag, session.sequence, application_id))
        return tag, now + (max(0, work - share) + amount) / self.server.weight

    def restore(
        self,
        application_id: ApplicationId,
        finish: VirtualTime,
        weight: float,
        sequence: int,
        remaining: KvTokenTime,
        finished: VirtualTime | None,
        *,
        live: bool,
    ) -> None:
        """Put back an application from a snapshot."""
        self._members[application_id] = None
        if live:
            self.live.add(application_id)
        self.gps.restore_session(application_id, finish, weight, sequence, released=False)
        self.server.restore((finish, sequence, application_id), remaining, finished)
        self._served([application_id])

    def carry(self, application_id: ApplicationId) -> None:
        """Let the record of this application carry the tenant's, as in the snapshot."""
        self._carrier = application_id

    def take_changed(self) -> list[ApplicationId]:
        """Return the applications whose durable record changed since the last call."""
        changed, self._changed = self._changed, {}
        carrier = self.carrier
        if changed and carrier is not None:
            changed[carrier] = None
        return list(changed)

    def _served(self, application_ids: list[ApplicationId]) -> None:
        """Note whose records changed; release ended ones that the reference server is done with."""
        for application_id in application_ids:
            self._changed[application_id] = None
            ended = application_id not in self.live
            if ended and not self.server.remaining(application_id):
                self.gps.release(application_id)
                self.server.forget(application_id)
        for application_id in self.gps.take_forgotten():
            self._changed[application_id] = None
            self._members.pop(application_id, None)


def _virtual_time_after(clock: VirtualClock, amount: KvTokenTime) -> VirtualTime:
    """Return V of a clock as `amount` of service would leave it."""
    virtual_time, weight = clock.virtual_time, clock.active_weight
    active = [session for session in clock.sessions().values() if session.active]
    for session in sorted(active, key=lambda session: session.finish):
        until_departure = (session.finish - virtual_time) * weight
        if until_departure > amount:
            return virtual_time + amount / weight
        virtual_time = session.finish
        amount -= until_departure
        weight -= session.weight
    return virtual_time


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
        self._watched: dict[ClientId, dict[ApplicationId, None]] = {}
        """Where is written who moves, of tenants that somebody watches."""

    def watch_tenant(self, name: ClientId) -> dict[ApplicationId, None]:
        """Return where whoever moves inside a tenant is written; the reader empties it.

        All that have a record are there at first. There is one reader: a new one replaces it.
        """
        tenant = self._tenants.get(name)
        moved = self._watched[name] = dict.fromkeys(() if tenant is None else tenant.members)
        return moved

    def unwatch_tenant(self, name: ClientId) -> None:
        """Write down no more who moves inside a tenant."""
        self._watched.pop(name, None)

    def unwatch(self) -> None:
        """Write down no more who moves, inside tenants neither."""
        super().unwatch()
        self._watched.clear()

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

        Of a withdrawn application: as a submission now would make it (rule 5).
        """
        if not self.accounts[application_id].withdrawn:
            tenant = self._tenants[self._tenant_of[application_id]]
            return tenant.server.finish_time(application_id)
        return self._after_resuming(application_id)[1]

    def tag_in_tenant(self, application_id: ApplicationId) -> VirtualTime:
        """Return F_x; of a withdrawn application, F_x as a submission now would make it."""
        if not self.accounts[application_id].withdrawn:
            tenant = self._tenants[self._tenant_of[application_id]]
            return tenant.gps.session(application_id).finish
        return self._after_resuming(application_id)[0]

    def transfer(self, source: ApplicationId, target: ApplicationId, amount: KvTokenTime) -> None:
        """Book so much work of an application at the place of one of its tenant that it passed.

        No tag inside, nothing that a server owes in all, and no other tenant's key changes.
        """
        name, tenant = self._look(source)
        tenant.transfer(source, target, amount)
        self._note(name)

    def tenant(self, name: ClientId) -> Tenant | None:
        """Return a tenant, for reading; None if it is not known."""
        return self._tenants.get(name)

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

    def sessions(self) -> dict[ApplicationId, GpsSession]:
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
        reader = RecordReader(record, ("tenant", "carries"), None)
        name = reader.text("tenant")
        carried = reader.record("carries", _CARRIED_FIELDS)
        since, inner_time = carried.pop("since"), carried.pop("virtual_time")
        self.clock.restore_session(name, **carried)
        tenant = Tenant(since, carried["weight"], inner_time)
        tenant.carry(application_id)
        self._tenants[name] = tenant

    def restore_session(self, application_id: ApplicationId, record: Record, *, live: bool) -> None:
        """Put back an application of a tenant that was put back before."""
        fields = read_fields(record, _MEMBER_FIELDS)
        name = fields.pop("tenant")
        self._tenants[name].restore(application_id, **fields, live=live)
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
        """Change the weight of an application at both levels."""
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
        """Refund what is owed to an ended application of this id; return how much it was."""
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
        """Change the weight of a tenant at the root; what is owed stays."""
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
        watched = self._watched.get(name)
        for application_id in self._tenants[name].take_changed():
            self._changed[application_id] = None
            if watched is not None:
                watched[application_id] = None
            if application_id not in self._tenants[name]:
                del self._tenant_of[application_id]
