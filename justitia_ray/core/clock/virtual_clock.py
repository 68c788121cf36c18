"""The active set of GPS and its virtual time V; no other module changes virtual time.

GPS (generalised processor sharing) serves every active session in proportion to its weight at every
instant. V is the service that one unit of weight has received. A session charged x at weight w gets
the tag F = max(F, V) + x/w and is active while F > V (Justitia v1, Sec. IV-C, Eq. 2).

The clock has three operations (charge, serve, refund) and does not depend on time or on the states
of applications: `fair_share` calls them. It computes in the number type of its arguments, so that
the tests run it in exact fractions against a fluid model.
"""

import heapq
from dataclasses import dataclass

from justitia_ray.units import ApplicationId, KvTokenTime, VirtualTime

_COMPACT_ABOVE = 64


@dataclass(slots=True)
class GpsSession:
    """Account of an application, or of a tenant, in the ideal server GPS."""

    finish: VirtualTime
    """Finish tag F: virtual time at which ideal fair sharing will have served the whole charge."""
    weight: float
    sequence: int
    """Number by arrival, which orders accounts with equal tags."""
    active: bool = False
    released: bool = False
    """Whether the application has ended; the account is dropped when GPS owes it nothing."""


class VirtualClock:
    """The fluid server GPS: virtual time V and the accounts of its sessions. O(log N) amortised."""

    def __init__(self, virtual_time: VirtualTime = 0) -> None:
        self._virtual_time = virtual_time
        self._sessions: dict[ApplicationId, GpsSession] = {}
        self._departures: list[tuple[VirtualTime, int, ApplicationId]] = []
        self._active_weight: float = 0
        self._active_count = 0
        self._forgotten: list[ApplicationId] = []

    @property
    def virtual_time(self) -> VirtualTime:
        """Return virtual time V, which never falls, and stands still without active sessions."""
        return self._virtual_time

    @property
    def active_weight(self) -> float:
        """Return the sum of the weights of the active sessions."""
        return self._active_weight

    def start(self, virtual_time: VirtualTime) -> None:
        """Set virtual time to the virtual time of an earlier clock.

        Raises:
            ValueError: If the clock has sessions, whose tags are relative to its V.
        """
        if self._sessions:
            raise ValueError(f"the clock has {len(self._sessions)} sessions: V cannot be set")
        self._virtual_time = virtual_time

    def __contains__(self, session_id: ApplicationId) -> bool:
        return session_id in self._sessions

    def session(self, session_id: ApplicationId) -> GpsSession:
        """Return the account of an application or a tenant in GPS, for reading.

        Raises:
            KeyError: If the session is unknown, or has been dropped.
        """
        return self._sessions[session_id]

    def is_active(self, session_id: ApplicationId) -> bool:
        """Return whether GPS owes a session service; False if the session is unknown."""
        session = self._sessions.get(session_id)
        return session is not None and session.active

    def owed(self, session_id: ApplicationId) -> KvTokenTime:
        """Return the service that GPS still owes a session, w·(F − V); 0 if it is inactive.

        Raises:
            KeyError: If the session is unknown, or has been dropped.
        """
        session = self._sessions[session_id]
        return session.weight * max(0, session.finish - self._virtual_time)

    def sessions(self) -> dict[ApplicationId, GpsSession]:
        """Return all GPS sessions by id, in order of their first charge."""
        return dict(self._sessions)

    def backlog(self) -> KvTokenTime:
        """Return the service that GPS owes in total: Σ w·(F − V) over the active sessions. O(N)."""
        return sum(
            s.weight * (s.finish - self._virtual_time) for s in self._sessions.values() if s.active
        )

    def after(self, amount: KvTokenTime) -> VirtualTime:
        """Return virtual time after `amount` more service, without changing it. O(N log N)."""
        virtual_time, weight = self._virtual_time, self._active_weight
        active = [session for session in self._sessions.values() if session.active]
        for session in sorted(active, key=lambda session: session.finish):
            until_departure = (session.finish - virtual_time) * weight
            if until_departure > amount:
                return virtual_time + amount / weight
            virtual_time = session.finish
            amount -= until_departure
            weight -= session.weight
        return virtual_time

    def charge(
        self, session_id: ApplicationId, amount: KvTokenTime, weight: float, sequence: int
    ) -> None:
        """Increase the charge of a GPS session by `amount`: F = max(F, V) + amount/w.

        A known session keeps its weight and sequence, unless it was released: then its id is
        reused, and the new session takes over what GPS still owes the old one.
        """
        session = self._sessions.get(session_id)
        if session is None:
            session = GpsSession(self._virtual_time, weight, sequence)
            self._sessions[session_id] = session
        elif session.released:
            session.released, session.sequence = False, sequence
            self.reweigh(session_id, weight)
        session.finish = max(session.finish, self._virtual_time) + amount / session.weight
        self._schedule_departure(session_id, session)

    def serve(self, amount: KvTokenTime) -> None:
        """Share `amount` of service among the active GPS sessions."""
        while True:
            self._drop_outdated_departures()
            if not self._departures:
                return
            finish, _, session_id = self._departures[0]
            until_departure = (finish - self._virtual_time) * self._active_weight
            if until_departure > amount:
                reached = self._virtual_time + amount / self._active_weight
                if reached < finish:  # rounding must not move virtual time past the next departure
                    self._virtual_time = reached
                    return
            self._virtual_time = finish
            amount = max(0, amount - until_departure)
            heapq.heappop(self._departures)
            self._end_departure(session_id, self._sessions[session_id])

    def refund(self, session_id: ApplicationId, amount: KvTokenTime) -> None:
        """Refund `amount` of an earlier charge of a GPS session.

        The part that GPS has not served lowers F; the remainder was served to this session in
        excess, and is served to the others now.
        """
        session = self._sessions[session_id]
        ahead = self.owed(session_id)
        unserved = min(amount, ahead)
        if amount < ahead:
            session.finish -= unserved / session.weight
        else:  # rounding must not leave the tag above virtual time
            session.finish = min(session.finish, self._virtual_time)
        self._schedule_departure(session_id, session)
        self.serve(amount - unserved)

    def release(self, session_id: ApplicationId) -> None:
        """Drop a GPS session when it is owed nothing: now, or when V reaches its tag."""
        session = self._sessions.get(session_id)
        if session is None:
            return
        session.released = True
        if not session.active:
            self._forget_session(session_id)

    def reweigh(self, session_id: ApplicationId, weight: float) -> None:
        """Change the weight of a GPS session; the service that it is owed stays the same.

        Raises:
            KeyError: If the session is unknown, or has been dropped.
        """
        session, owed = self._sessions[session_id], self.owed(session_id)
        if not session.active:
            session.weight = weight
            return
        others = self._active_weight - session.weight if self._active_count > 1 else 0
        self._active_weight, session.weight = others + weight, weight
        session.finish = self._virtual_time + owed / weight
        self._schedule_departure(session_id, session)

    def restore_session(
        self,
        session_id: ApplicationId,
        finish: VirtualTime,
        weight: float,
        sequence: int,
        *,
        released: bool,
    ) -> None:
        session = GpsSession(finish, weight, sequence)
        self._sessions[session_id] = session
        self._schedule_departure(session_id, session)
        if released:
            self.release(session_id)

    def take_forgotten(self) -> list[ApplicationId]:
        """Return the released GPS sessions that were dropped since the last call."""
        forgotten, self._forgotten = self._forgotten, []
        return forgotten

    def _schedule_departure(self, session_id: ApplicationId, session: GpsSession) -> None:
        if session.finish > self._virtual_time:
            if not session.active:
                session.active = True
                self._active_weight += session.weight
                self._active_count += 1
            heapq.heappush(self._departures, (session.finish, session.sequence, session_id))
            if len(self._departures) > _COMPACT_ABOVE + 4 * self._active_count:
                self._departures = [
                    (s.finish, s.sequence, name) for name, s in self._sessions.items() if s.active
                ]
                heapq.heapify(self._departures)
        elif session.active:
            self._end_departure(session_id, session)

    def _end_departure(self, session_id: ApplicationId, session: GpsSession) -> None:
        self._count_inactive(session)
        if session.released:
            self._forget_session(session_id)

    def _count_inactive(self, session: GpsSession) -> None:
        session.active = False
        self._active_count -= 1
        # Rounding errors end with the last active session, whose weight leaves exactly 0.
        self._active_weight = self._active_weight - session.weight if self._active_count else 0

    def _forget_session(self, session_id: ApplicationId) -> None:
        del self._sessions[session_id]
        self._forgotten.append(session_id)

    def _drop_outdated_departures(self) -> None:
        while self._departures:
            finish, _, session_id = self._departures[0]
            session = self._sessions.get(session_id)
            if session is not None and session.active and session.finish == finish:
                return
            heapq.heappop(self._departures)
