"""A leaf of the tenant tree: the GPS of its applications, and its reference server.

GPS driven by the tenant's share gives each application its tag F_x, and the reference server spends
that share on one application at a time, in order of F_x. The share comes from the parent
(`tenant_share`): the root, or a branch of the tree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from justitia_ray.core.clock.reference_server import ReferenceServer
from justitia_ray.core.clock.virtual_clock import VirtualClock
from justitia_ray.units import ApplicationId, ClientId, KvTokenTime, VirtualTime

if TYPE_CHECKING:
    from justitia_ray.core.clock.branch import Branch


class Finished(NamedTuple):
    """An application that is finished in the model of its tenant, with the virtual time then."""

    tenant: Tenant
    application_id: ApplicationId
    at: VirtualTime


class Tenant:
    """Applications of one tenant: live ones, and ended ones that GPS still owes service.

    GPS and the reference server are driven lazily by the tenant's share of its parent, φ·dV.
    `catch_up` updates them to the parent's V before each change. At every update both owe the same
    total, which the parent owes the tenant: both get the same charges and refunds, and neither is
    idle while it owes anything.
    """

    def __init__(
        self,
        path: ClientId,
        parent: Branch | None,
        now: VirtualTime,
        weight: float,
        inner_time: VirtualTime = 0,
    ) -> None:
        """Create a tenant without applications.

        Args:
            path: Name of the tenant.
            parent: The node whose V drives it; None: the root.
            now: V of the parent.
            weight: Weight among the children of the parent.
            inner_time: V of GPS inside.
        """
        self.path = path
        self.name = path
        """Name of the tenant's session in its parent's GPS clock."""
        self.parent = parent
        self.up: tuple[Branch, ...] = () if parent is None else (parent, *parent.up)
        """Tenants above this one, from its parent to the topmost."""
        self.gps = VirtualClock(inner_time)
        self.server = ReferenceServer(now, weight)
        self.live: set[ApplicationId] = set()
        self._members: dict[ApplicationId, None] = {}
        self._changed: dict[ApplicationId, None] = {}
        self._carrier: ApplicationId | None = None
        self.above: dict[ApplicationId, list[VirtualTime]] = {}
        """Virtual times, of all tenants above the parent, at which each application was finished.
        """

    def __contains__(self, application_id: ApplicationId) -> bool:
        return application_id in self._members

    @property
    def carrier(self) -> ApplicationId | None:
        """Return the application whose stored record also contains the tenant's state, or None."""
        if self._carrier not in self._members:
            self._carrier = next(iter(self._members), None)
        return self._carrier

    @property
    def members(self) -> list[ApplicationId]:
        """Return the applications of this tenant that have a stored record."""
        return list(self._members)

    def has_debt(self, application_id: ApplicationId) -> bool:
        """Return whether an application was still owed service at the last update."""
        return self.gps.session(application_id).active or self.server.remaining(application_id) > 0

    @property
    def weight(self) -> float:
        return self.server.weight

    @property
    def next_finish(self) -> VirtualTime | None:
        """Return the parent's virtual time at which the next application is finished.

        None without remaining work.
        """
        return self.server.next_finish()

    def catch_up(self, now: VirtualTime, *, idle: bool) -> list[Finished]:
        """Pass on the service that this tenant has received until its parent's time `now`.

        `idle`: the parent owes nothing more.

        Returns:
            The applications finished in that time, with V of the parent.
        """
        if now == self.server.since and not idle:
            return []
        share = self.server.share(now, idle=idle)
        self.gps.serve(share)
        self._note_served(self.server.advance(now, share))
        return self.take_finished()

    def take_finished(self) -> list[Finished]:
        """Return applications finished since the last call, with the parent's virtual time then."""
        finished = [Finished(self, name, at) for name, at in self.server.take_finished()]
        for one in finished:
            self.above[one.application_id] = []
        return finished

    def move_below(self, branch: Branch, name: ClientId) -> None:
        """Move this tenant's applications below the new tenant that replaces it in the tree."""
        self.name, self.parent, self.up = name, branch, (branch, *branch.up)

    def reweigh_all(self, weight: float) -> None:
        """Change the weight φ of this tenant; the service that it is owed stays the same."""
        self.server.weight = weight

    def charge(
        self, application_id: ApplicationId, amount: KvTokenTime, weight: float, sequence: int
    ) -> None:
        self._members[application_id] = None
        self.gps.charge(application_id, amount, weight, sequence)
        tag = self.gps.session(application_id).finish
        self.server.charge(application_id, tag, sequence, amount)
        self._note_served([application_id])

    def refund(self, application_id: ApplicationId, amount: KvTokenTime) -> None:
        """Refund a charge; service given in excess goes to other applications of this tenant."""
        session = self.gps.session(application_id)
        self.gps.refund(application_id, amount)
        served = self.server.refund(application_id, session.finish, amount)
        self._note_served([application_id, *served])

    def reweigh(self, application_id: ApplicationId, weight: float) -> None:
        """Change the weight of an application; the service that it is owed stays the same."""
        self.gps.reweigh(application_id, weight)
        self.server.move(application_id, self.gps.session(application_id).finish)
        self._note_served([application_id])

    def transfer(self, source: ApplicationId, target: ApplicationId, amount: KvTokenTime) -> None:
        """Move work of an application to the position of another that it has overtaken."""
        self.server.transfer(source, target, amount)
        self._note_served([source, target])

    def debt(self, application_id: ApplicationId) -> KvTokenTime:
        """Return the refund after which an application is owed nothing."""
        return max(self.gps.owed(application_id), self.server.remaining(application_id))

    def end(self, application_id: ApplicationId) -> None:
        """Drop an ended application once it is owed nothing."""
        self.live.discard(application_id)
        self._note_served([application_id])

    def rename(self, application_id: ApplicationId, name: ApplicationId) -> None:
        """Let an ended application that is still owed service have another id."""
        session, remaining = self.gps.session(application_id), self.server.remaining(application_id)
        place = session.finish, session.weight, session.sequence
        self.gps.refund(application_id, self.gps.owed(application_id))
        self.server.refund(application_id, session.finish, remaining)
        self._note_served([application_id])
        self.restore(name, *place, remaining, None, live=False)

    def after_charge(
        self, application_id: ApplicationId, amount: KvTokenTime, now: VirtualTime, *, idle: bool
    ) -> tuple[VirtualTime, VirtualTime]:
        """Return the tag and finish time that an application would have after a charge.

        No state is updated, because a query must not change how later sums round. O(N log N).
        """
        share = self.server.share(now, idle=idle)
        session = self.gps.session(application_id)
        inner_time = self.gps.after(share)
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
        self._members[application_id] = None
        if live:
            self.live.add(application_id)
        self.gps.restore_session(application_id, finish, weight, sequence, released=False)
        self.server.restore((finish, sequence, application_id), remaining, finished)
        self._note_served([application_id])

    def carry(self, application_id: ApplicationId) -> None:
        """Store the tenant's state in the record of this application from now on."""
        self._carrier = application_id

    def mark_carrier_changed(self) -> None:
        """Mark the record that contains the tenant's state as changed."""
        if (carrier := self.carrier) is not None:
            self._changed[carrier] = None

    def mark_members_changed(self) -> None:
        self._changed.update(self._members)

    def take_changed(self) -> list[ApplicationId]:
        """Return the applications whose stored records have changed since the last call."""
        changed, self._changed = self._changed, {}
        carrier = self.carrier
        if changed and carrier is not None:
            changed[carrier] = None
        return list(changed)

    def _note_served(self, application_ids: list[ApplicationId]) -> None:
        """Mark the records of served applications as changed; release ended ones without work."""
        for application_id in application_ids:
            self._changed[application_id] = None
            ended = application_id not in self.live
            if ended and not self.server.remaining(application_id):
                self.gps.release(application_id)
                self.server.forget(application_id)
                self.above.pop(application_id, None)
        for application_id in self.gps.take_forgotten():
            self._changed[application_id] = None
            self._members.pop(application_id, None)
