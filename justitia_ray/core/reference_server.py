"""One tenant's share, spent on one application at a time (Fair Sojourn Protocol).

Friedman and Henderson (SIGMETRICS 2003): serve whom processor sharing would finish first. Here the
order is that of the tags that GPS inside the tenant gives (`tenant`), and the share is φ·dV, what
the root gives the tenant. So the root's V at which each application will be finished is known
beforehand, and does not change by service:

    finish_time(x) = V + R(≤ F_x)/φ,

R(≤ F) the remaining work of applications whose tag is at most F, ties by arrival. Nothing is moved
until something other than service happens: V and R stay what they were at `since`.
"""

from math import inf

from justitia_ray.core.prefix_sums import Place, PrefixSums
from justitia_ray.units import ApplicationId, KvTokenTime, VirtualTime


class ReferenceServer:
    """Remaining work in order of tag, and when each is or was finished; every verb O(log N)."""

    def __init__(self, since: VirtualTime, weight: float) -> None:
        self.since = since
        """The root's V up to which the share has been spent."""
        self.weight = weight
        """The tenant's φ: work per unit of the root's V."""
        self._work = PrefixSums()
        self._places: dict[ApplicationId, Place] = {}
        """Of those with work remaining."""
        self._remaining: dict[ApplicationId, KvTokenTime] = {}
        self._finished: dict[ApplicationId, VirtualTime] = {}
        """Of those without: when they were finished."""

    @property
    def total(self) -> KvTokenTime:
        """Work remaining of all, at `since`."""
        return self._work.total

    def remaining(self, application_id: ApplicationId) -> KvTokenTime:
        """Return the work remaining of one, at `since`."""
        return self._remaining.get(application_id, 0)

    def share(self, now: VirtualTime, *, idle: bool) -> KvTokenTime:
        """Return what the root has given since `since`; all that was asked for if it is idle."""
        return inf if idle else self.weight * (now - self.since)

    def work_up_to(self, place: Place) -> KvTokenTime:
        """Return R(≤ place), at `since`."""
        return self._work.up_to(place)

    def finished(self, application_id: ApplicationId) -> VirtualTime | None:
        """Return the V at which one was finished, or None if it was not, at `since`."""
        return self._finished.get(application_id)

    def finish_time(self, application_id: ApplicationId) -> VirtualTime:
        """Return the root's V at which the application is, or was, finished.

        Raises:
            KeyError: If it is not known.
        """
        place = self._places.get(application_id)
        if place is None:
            return self._finished[application_id]
        return self._finish_at(place)

    def advance(self, now: VirtualTime, share: KvTokenTime) -> list[ApplicationId]:
        """Spend the share of the time until `now`; return whose work it was."""
        served = self._spend(share, at_once=False)
        self.since = now
        return served

    def charge(
        self, application_id: ApplicationId, tag: VirtualTime, sequence: int, amount: KvTokenTime
    ) -> None:
        """Add work of an application, which has this tag now."""
        remaining = self.remaining(application_id) + amount
        self._take_out(application_id)
        self._put((tag, sequence, application_id), remaining)

    def refund(
        self, application_id: ApplicationId, tag: VirtualTime, amount: KvTokenTime
    ) -> list[ApplicationId]:
        """Take work back; what was spent on it already is spent on the others, at once.

        Returns:
            Whose work that was.
        """
        remaining = self.remaining(application_id)
        taken = min(amount, remaining)
        if remaining > taken:
            sequence = self._places[application_id][1]
            self._take_out(application_id)
            self._put((tag, sequence, application_id), remaining - taken)
        elif remaining:
            self._finish(application_id, self.since)
        return self._spend(amount - taken, at_once=True)

    def move(self, application_id: ApplicationId, tag: VirtualTime) -> None:
        """Give an application another tag; nothing happens if it is finished."""
        if application_id in self._places:
            self.charge(application_id, tag, self._places[application_id][1], 0)

    def forget(self, application_id: ApplicationId) -> None:
        """Forget when an application was finished."""
        self._finished.pop(application_id, None)

    def restore(self, place: Place, remaining: KvTokenTime, finished: VirtualTime | None) -> None:
        """Put back an application from a snapshot."""
        if remaining > 0:
            self._put(place, remaining)
        elif finished is not None:
            self._finished[place[2]] = finished

    def _spend(self, amount: KvTokenTime, *, at_once: bool) -> list[ApplicationId]:
        served: list[ApplicationId] = []
        spent: KvTokenTime = 0
        while amount > 0 and (first := self._work.first()) is not None:
            place, remaining = first
            served.append(place[2])
            if remaining > amount:
                self._put(place, remaining - amount)
                break
            amount -= remaining
            spent += remaining
            self._finish(place[2], self.since if at_once else self.since + spent / self.weight)
        return served

    def _finish_at(self, place: Place) -> VirtualTime:
        return self.since + self._work.up_to(place) / self.weight

    def _put(self, place: Place, remaining: KvTokenTime) -> None:
        """Place work; one that is charged nothing, and has none, finishes with those before it."""
        if remaining > 0:
            self._finished.pop(place[2], None)
            self._places[place[2]] = place
            self._remaining[place[2]] = remaining
            self._work.put(place, remaining)
        else:
            self._finished[place[2]] = self._finish_at(place)

    def _finish(self, application_id: ApplicationId, at: VirtualTime) -> None:
        self._take_out(application_id)
        self._finished[application_id] = at

    def _take_out(self, application_id: ApplicationId) -> None:
        place = self._places.pop(application_id, None)
        if place is not None:
            self._work.remove(place)
            del self._remaining[application_id]
