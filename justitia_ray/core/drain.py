"""The drain of a limit: how fast it takes more, and when each caller it refuses is to come back.

Callers that are all told the same come back together, and all but the first few are refused again.
So each of them gets a slot of its own: the time by which as many places are expected to have come
free as callers were told to come before it, and one more. A tenant that is beyond its own share of
a limit waits for its own departures; where the whole limit is used up, the places that come free go
to the tenants that wait for them in turn, so that nobody is told to wait longer because another
tenant asks again and again.

From its slot on, until its caller should have come, a place is kept free of those who come for the
first time: else they would take the places of callers who waited as they were told. A caller says
by itself whether it comes again; who says so falsely takes a place of its own tenant's, and who
says nothing may have any place that is free.

Slots alone, without places that are kept, tell as good a time: a median of 0.06 to 0.14 of the
wait that was needed lies between the two, as with places (0.07 to 0.10). But while others come for
the first time, 48 to 65 % of the callers get in at their first retry, with places 93 to 100 % (the
bursts of `tests/unit/core/test_drain.py`, two seeds each). The shortfall over the rate, the same
for all, lets in 0 to 32 %.

Nothing here is stored: a new scheduler begins with the default rate, until it has seen departures.
"""

import heapq
import math
from typing import NamedTuple

from justitia_ray.core.tenants import SEPARATOR
from justitia_ray.units import ClientId, Seconds

HORIZON_S: Seconds = 120.0
"""Longest time until a slot. Beyond it no slot is handed out: OpenAI's client would give up."""
DEFAULT_RATE = 1.0
"""Departures a second that are expected before any was seen: weighs as much as one departure, and
less with each that is seen."""
_MEMORY_S: Seconds = 30.0
"""Time constant with which departures are forgotten, while something is there to depart."""
_LEAST_SEEN = 32.0
"""Departures that are not forgotten however long they took: with fewer the rate is off by more than
a fifth one time in four. As many are kept at the first refusal: a rate seen under less load is a
guess only."""
_USUAL_GAPS = 4.0
"""Mean gaps between departures that may pass without one, before the rate is taken to fall."""
_SPREAD = 0.3
"""Standard deviations of a Poisson count by which a slot is late: departures are not even."""
_SPREAD_AGAIN = 1.5
"""Standard deviations by which the slot of a caller that found no place when it came back is late:
clients try twice, and nine times in ten a place comes free by then."""
_SPARE = 1.04
"""Factor of a slot's time, so that those whom the jitter brings early find a place."""
_LATE_PART = 0.1
"""Part of its wait by which a caller may come after its slot: answers spread callers by as much."""
_LATE_S: Seconds = 1.0
"""Time by which it may come later than that."""
_MAXIMUM_TENANTS = 1_024
_MAXIMUM_SLOTS = 16_384
"""Maximum slots of a tenant that are not due: at 130 a second they reach to the horizon."""
_OTHER = "\0other"
"""The tenant of departures and slots once the table is full: no tenant has such a name."""


class Departures:
    """The rate of departures while there is something to depart."""

    def __init__(self) -> None:
        self._count = 0.0
        self._exposure_s = 0.0
        self._since: Seconds | None = None
        """The last departure after which something was left; None: nothing is known to be there."""

    def depart(self, now: Seconds, left: int) -> None:
        """Count a departure; `left` are still there."""
        if self._since is not None:
            gap_s = max(0.0, now - self._since)
            kept = max(math.exp(-gap_s / _MEMORY_S), 1 - 1 / _LEAST_SEEN)
            self._count = self._count * kept + 1
            self._exposure_s = self._exposure_s * kept + gap_s
        self._since = now if left > 0 else None

    def discount(self) -> None:
        """Let what was seen so far weigh no more than the least that is kept."""
        if self._count > _LEAST_SEEN:
            self._exposure_s *= _LEAST_SEEN / self._count
            self._count = _LEAST_SEEN

    def rate(self, now: Seconds) -> float:
        """Return departures a second, above zero; a long time since the last one counts."""
        default = 1 / (1 + self._count)
        count, exposure_s = self._count + default, self._exposure_s + default / DEFAULT_RATE
        silent_s = 0.0 if self._since is None else now - self._since
        return count / (exposure_s + max(0.0, silent_s - _USUAL_GAPS * exposure_s / count))


class Places(NamedTuple):
    """Places that are kept free for callers who come again, as one tenant's calls see them."""

    own: int = 0
    """For the tenant's own callers whose slots are due."""
    others: int = 0
    """For those of other tenants who wait for places of the whole limit, and are due."""
    own_later: int = 0
    """For its own callers whose slots are not due yet."""


class _Slot(NamedTuple):
    due_at: Seconds
    until: Seconds
    """Until when a place is kept for it once it is due."""
    is_whole: bool


class _Tenant:
    """A tenant's departures, its slots that are not due, and the places kept for those that are."""

    def __init__(self, name: ClientId) -> None:
        self.name = name
        self.present = 0
        self.departures = Departures()
        self.slots: list[_Slot] = []
        self.kept: list[tuple[Seconds, bool]] = []
        """Until when each place is kept, and whether it is one of the whole limit."""
        self.kept_of_whole = 0

    def advance(self, now: Seconds) -> None:
        """Keep places for slots that are due, and no more for those who have not come."""
        while self.slots and self.slots[0].due_at <= now:
            slot = heapq.heappop(self.slots)
            heapq.heappush(self.kept, (slot.until, slot.is_whole))
            self.kept_of_whole += slot.is_whole
        while self.kept and self.kept[0][0] <= now:
            self.give_up_one()

    def give_up_one(self) -> None:
        """Keep the place no longer whose time is up first."""
        self.kept_of_whole -= heapq.heappop(self.kept)[1]


class Drain:
    """Departures of one limit, in all and by the top node of the tenant's path."""

    def __init__(self) -> None:
        self._present = 0
        self._all = Departures()
        self._tenants: dict[ClientId, _Tenant] = {}
        self._sharing_until: dict[ClientId, Seconds] = {}
        """Last slot of each tenant that waits for places of the whole limit."""
        self._changes: list[tuple[Seconds, ClientId]] = []
        """Instants at which a tenant's slots become due, and its places are kept no longer."""
        self._kept_of_whole = 0
        """Places of the whole limit that are kept, of all tenants."""

    def arrive(self, tenant: ClientId) -> None:
        """Count one more that is there."""
        self._present += 1
        self._of(tenant).present += 1

    def depart(self, tenant: ClientId, now: Seconds) -> None:
        """Count one less, which left now."""
        known = self._of(tenant)
        self._present -= 1
        known.present -= 1
        self._all.depart(now, self._present)
        known.departures.depart(now, known.present)

    def retry_after(
        self,
        tenant: ClientId,
        now: Seconds,
        *,
        shortfall: int = 1,
        is_whole: bool = False,
        is_again: bool = False,
    ) -> Seconds:
        """Hand out the next slot of a tenant that is refused; return the time until then.

        Args:
            tenant: Path of the tenant.
            now: Instant.
            shortfall: Departures after which it would be taken, if nobody else came; 0 and less
                where places are free, which those are to have who were refused before.
            is_whole: The whole limit is used up: the departures of all tenants count, in equal
                parts for each tenant that waits for them. Otherwise the tenant's own.
            is_again: The caller was refused before.
        """
        self._advance(now)
        known = self._of(tenant)
        name = known.name
        outstanding = len(known.slots)
        departures = self._all if is_whole else known.departures
        if not outstanding:
            departures.discount()
        if shortfall < 0:
            shortfall = -(-shortfall // 3)  # the rest is for those who come early
        ahead = max(1, outstanding + shortfall)
        rate = departures.rate(now)
        if is_whole:
            rate /= self._sharing(name, now)
        spread = _SPREAD_AGAIN if is_again else _SPREAD
        wait_s = _SPARE * (ahead + spread * math.sqrt(ahead)) / rate
        if wait_s >= HORIZON_S or len(known.slots) >= _MAXIMUM_SLOTS:
            return HORIZON_S
        due_at = now + wait_s
        until = due_at + _LATE_PART * wait_s + _LATE_S
        heapq.heappush(known.slots, _Slot(due_at, until, is_whole))
        heapq.heappush(self._changes, (due_at, name))
        heapq.heappush(self._changes, (until, name))
        if is_whole:
            self._sharing_until[name] = max(now + wait_s, self._sharing_until.get(name, 0.0))
        return wait_s

    def come_back(self, tenant: ClientId, now: Seconds, *, is_sure: bool = True) -> bool:
        """Note a caller of a tenant that comes again; return whether one was expected.

        A place that is kept for its tenant is kept no longer. It may have come before its slot, if
        it is sure that it comes again.
        """
        if not self._changes:
            return False
        self._advance(now)
        known = self._of(tenant)
        if known.kept:
            before = known.kept_of_whole
            known.give_up_one()
            self._kept_of_whole += known.kept_of_whole - before
        elif known.slots and is_sure:
            heapq.heappop(known.slots)
        else:
            return False
        return True

    def kept(self, tenant: ClientId, now: Seconds) -> Places:
        """Return the places that are kept from a tenant's callers who come for the first time."""
        if not self._changes:
            return Places()
        self._advance(now)
        known = self._of(tenant)
        others = self._kept_of_whole - known.kept_of_whole
        return Places(len(known.kept), others, len(known.slots))

    def _advance(self, now: Seconds) -> None:
        while self._changes and self._changes[0][0] <= now:
            known = self._tenants[heapq.heappop(self._changes)[1]]
            before = known.kept_of_whole
            known.advance(now)
            self._kept_of_whole += known.kept_of_whole - before

    def _sharing(self, name: ClientId, now: Seconds) -> int:
        """Return how many tenants wait for places of the whole limit, with this one."""
        for other in [other for other, until in self._sharing_until.items() if until <= now]:
            del self._sharing_until[other]
        return len(self._sharing_until) + (name not in self._sharing_until)

    def _of(self, tenant: ClientId) -> _Tenant:
        """Return what a tenant is counted under: its top node, or that of all once it is full."""
        top = tenant.partition(SEPARATOR)[0]
        known = self._tenants.get(top)
        if known is None and len(self._tenants) >= _MAXIMUM_TENANTS:
            top = _OTHER
            known = self._tenants.get(top)
        if known is None:
            known = self._tenants[top] = _Tenant(top)
        return known
