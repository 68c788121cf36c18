"""The applications of one tenant: GPS among them, and the server that its share is spent by.

Both are driven by the tenant's share of the root, φ·dV, and lazily: `look` brings them to the
root's V before anything is changed. GPS gives each application its tag F_x, which is the order
inside the tenant; the reference server says at which V of the root each is finished.

At every look, GPS and the reference server owe the same in all, and as much as the root owes the
tenant: each is charged and refunded the same, and none of them rests while it owes anything.
"""

from justitia_ray.core.fair_share import reweigh_session
from justitia_ray.core.reference_server import ReferenceServer
from justitia_ray.core.virtual_clock import VirtualClock
from justitia_ray.units import ApplicationId, KvTokenTime, VirtualTime


class Tenant:
    """Live applications, and ended ones to which either server still owes work."""

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
        """Let an application ask for more."""
        self._members[application_id] = None
        self.gps.charge(application_id, amount, weight, sequence)
        tag = self.gps.session(application_id).finish
        self.server.charge(application_id, tag, sequence, amount)
        self._served([application_id])

    def refund(self, application_id: ApplicationId, amount: KvTokenTime) -> None:
        """Take back a charge: what a server had given too much goes to others of the tenant."""
        session = self.gps.session(application_id)
        self.gps.refund(application_id, amount)
        served = self.server.refund(application_id, session.finish, amount)
        self._served([application_id, *served])

    def reweigh(self, application_id: ApplicationId, weight: float) -> None:
        """Change the weight inside the tenant; what is owed stays."""
        reweigh_session(self.gps, application_id, weight)
        self.server.move(application_id, self.gps.session(application_id).finish)
        self._served([application_id])

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
        tag: VirtualTime,
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
        self.gps.restore_session(application_id, tag, weight, sequence, released=False)
        self.server.restore((tag, sequence, application_id), remaining, finished)
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
