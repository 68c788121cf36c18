"""Retry times for callers that a limit on open applications or inferences refuses, by tenant.

Callers that all receive the same retry time return together, and all but the first few are refused
again. So each refused caller gets a retry time of its own, its *slot*: the time by which one place
under the limit is expected to be free for this caller, and one for each caller with an earlier
slot. A tenant beyond its own share of a limit waits for departures of its own applications or
inferences. If the whole limit is used up, free places go to the waiting tenants in turn, so that no
tenant waits longer because another tenant retries again and again.

From the slot until the caller should have returned, a place is reserved for the caller: otherwise
new callers would take the places of callers that waited as instructed. A caller states whether its
call is a retry. A false statement takes a place of the caller's own tenant, and a caller that
states nothing may have any free place.

Slots without reservations estimate the time equally well: the median caller waits 0.06 to 0.14 of
the needed wait too long or too short, with reservations 0.07 to 0.10. But while new callers arrive,
48 to 65 % of the callers are admitted at their first retry, with reservations 93 to 100 % (the
bursts of `tests/unit/core/test_drain.py`, two seeds each). The shortfall divided by the rate, the
same for all, admits 0 to 32 %.

No retry time or rate is stored: a new scheduler starts with the default rate, until it has seen
departures.
"""

import heapq
import math
from typing import NamedTuple

from justitia_ray.core.tenants import SEPARATOR
from justitia_ray.units import ClientId, Seconds

HORIZON_S: Seconds = 120.0
"""Longest retry time in seconds for a refused caller. With a longer one, OpenAI's client gives up
before the retry.
"""
DEFAULT_RATE = 1.0
"""Assumed departures per second before any observation. The assumption counts as one departure at
first, and less with each observed departure.
"""
_MEMORY_S: Seconds = 30.0
"""Time constant, in seconds, with which observed departures decay while anything can depart."""
_LEAST_SEEN = 32.0
"""Number of departures that never decay: with fewer, the rate is wrong by more than a fifth in one
case of four. At the first refusal older departures are reduced to this number, because a rate
observed under less load is only a guess.
"""
_USUAL_GAPS = 4.0
"""Number of mean gaps between departures that may pass without a departure before the estimated
rate falls.
"""
_SLOT_DEVIATIONS = 0.3
"""Standard deviations of a Poisson count that are added to a caller's retry time, because
departures are uneven.
"""
_RETRY_SLOT_DEVIATIONS = 1.5
"""Standard deviations added to the retry time of a caller that was refused twice. Clients retry
twice, and in nine of ten cases a place is free by then.
"""
_SLOT_TIME_FACTOR = 1.04
"""Factor on a caller's retry time, so that a caller who returns slightly early (jitter) finds a
free place.
"""
_LATE_FRACTION = 0.1
"""Share of its wait by which a caller may come back late and still find its reserved place. Answers
spread the retry times of callers by this share.
"""
_LATE_S: Seconds = 1.0
"""Time in seconds by which a caller may come back late and still find its reserved place, in
addition to `_LATE_FRACTION`.
"""
_MAXIMUM_TENANTS = 1_024
_MAXIMUM_SLOTS = 16_384
"""Maximum number of a tenant's callers with a retry time in the future. At 130 per second they
reach `HORIZON_S`.
"""
_MAXIMUM_PLACES_PER_FREE = 4
"""Multiple of a limit's free places that one tenant may use (`TenantQuota`)."""
_OTHER = "\0other"
"""Name for the departures of all tenants that do not fit the table; no tenant can have this name.
"""


class Departures:
    """Rate at which applications or inferences end, measured while any of them are open."""

    def __init__(self) -> None:
        self._count = 0.0
        self._exposure_s = 0.0
        self._since: Seconds | None = None
        """Time of the last departure that left applications or inferences behind; None if none are
        known to be left.
        """

    def depart(self, now: Seconds, left: int) -> None:
        """Count a departure after which `left` applications or inferences remain."""
        if self._since is not None:
            gap_s = max(0.0, now - self._since)
            kept = max(math.exp(-gap_s / _MEMORY_S), 1 - 1 / _LEAST_SEEN)
            self._count = self._count * kept + 1
            self._exposure_s = self._exposure_s * kept + gap_s
        self._since = now if left > 0 else None

    def discount_old_departures(self) -> None:
        """Reduce the weight of past departures to the minimum that always counts."""
        if self._count > _LEAST_SEEN:
            self._exposure_s *= _LEAST_SEEN / self._count
            self._count = _LEAST_SEEN

    def rate(self, now: Seconds) -> float:
        """Return the number of applications or inferences that end per second, above 0.

        The rate falls after a long time without departures.
        """
        default = 1 / (1 + self._count)
        count, exposure_s = self._count + default, self._exposure_s + default / DEFAULT_RATE
        silent_s = 0.0 if self._since is None else now - self._since
        return count / (exposure_s + max(0.0, silent_s - _USUAL_GAPS * exposure_s / count))


class Places(NamedTuple):
    """Places under a limit that are reserved for returning callers, as one tenant sees them.

    A place is room for one application or inference under the limit.
    """

    own: int = 0
    """Number of places reserved for the tenant's own callers whose retry time has come."""
    others: int = 0
    """Number of places reserved for other tenants' callers whose retry time has come."""
    own_later: int = 0
    """Number of the tenant's own callers whose retry time is still to come."""


class _ReturnSlot(NamedTuple):
    due_at: Seconds
    until: Seconds
    """Time until which a place stays reserved for the refused caller."""
    is_whole: bool


class _TenantDepartures:
    """Departures of one tenant, and the places kept for its refused callers."""

    def __init__(self, name: ClientId) -> None:
        self.name = name
        self.departures = Departures()
        self.slots: list[_ReturnSlot] = []
        self.kept: list[tuple[Seconds, bool]] = []
        """Reserved places: the time at which each reservation expires, and whether the whole limit
        was used up when the caller was refused.
        """
        self.kept_of_whole = 0

    def advance(self, now: Seconds) -> None:
        """Reserve places for refused callers whose retry time has come.

        Release the places of callers that did not return in time.
        """
        while self.slots and self.slots[0].due_at <= now:
            slot = heapq.heappop(self.slots)
            heapq.heappush(self.kept, (slot.until, slot.is_whole))
            self.kept_of_whole += slot.is_whole
        while self.kept and self.kept[0][0] <= now:
            self.give_up_one()

    def give_up_one(self) -> None:
        """Cancel the reservation for a returning caller that would expire first."""
        self.kept_of_whole -= heapq.heappop(self.kept)[1]


class Drain:
    """Departures under one limit, from which the retry times of refused callers follow."""

    def __init__(self) -> None:
        self._all = Departures()
        self._tenants: dict[ClientId, _TenantDepartures] = {}
        self._sharing_until: dict[ClientId, Seconds] = {}
        """Latest retry time of each tenant whose refused callers wait for departures of all
        tenants.
        """
        self._changes: list[tuple[Seconds, ClientId]] = []
        """Heap of the times at which a tenant's retry time comes or a reservation expires."""
        self._kept_of_whole = 0
        """Number of places reserved for callers that wait for departures of any tenant."""

    def depart(
        self, now: Seconds, left: int, tenant: ClientId | None = None, left_of_tenant: int = 0
    ) -> None:
        """Count an application or inference of a tenant that has ended.

        Args:
            now: The time.
            left: Number of applications or inferences that are left under the limit.
            tenant: Path of the tenant that left; None: departures are not counted by tenant,
                because only the whole limit is ever used up.
            left_of_tenant: Number of these that are below the tenant's top node.
        """
        self._all.depart(now, left)
        if tenant is not None:
            known = self._tenant_entry(tenant)
            # Tenants beyond the size of the table share one count of departures.
            known.departures.depart(now, left if known.name == _OTHER else left_of_tenant)

    def retry_after(
        self,
        tenant: ClientId,
        now: Seconds,
        *,
        shortfall: int = 1,
        is_whole: bool = False,
        is_again: bool = False,
    ) -> Seconds:
        """Return the seconds after which a refused caller of a tenant should come back.

        Return the seconds until this slot, the time at which the caller should retry.

        Args:
            tenant: Path of the tenant.
            now: The time.
            shortfall: Departures after which the call would be admitted if no other call arrived; 0
                or less if places are free but reserved for callers refused earlier.
            is_whole: Whether the whole limit is used up. Then departures of all tenants count, in
                equal parts for each waiting tenant; otherwise only those of this tenant.
            is_again: Whether the caller was refused before.
        """
        self._advance_tenants(now)
        known = self._tenant_entry(tenant)
        name = known.name
        outstanding = len(known.slots)
        departures = self._all if is_whole else known.departures
        if not outstanding:
            departures.discount_old_departures()
        if shortfall < 0:
            shortfall = -(-shortfall // 3)  # refused callers that come back early find a place, too
        ahead = max(1, outstanding + shortfall)
        rate = departures.rate(now)
        if is_whole:
            rate /= self._tenants_waiting(name, now)
        spread = _RETRY_SLOT_DEVIATIONS if is_again else _SLOT_DEVIATIONS
        wait_s = _SLOT_TIME_FACTOR * (ahead + spread * math.sqrt(ahead)) / rate
        if wait_s >= HORIZON_S or len(known.slots) >= _MAXIMUM_SLOTS:
            return HORIZON_S
        due_at = now + wait_s
        until = due_at + _LATE_FRACTION * wait_s + _LATE_S
        heapq.heappush(known.slots, _ReturnSlot(due_at, until, is_whole))
        heapq.heappush(self._changes, (due_at, name))
        heapq.heappush(self._changes, (until, name))
        if is_whole:
            self._sharing_until[name] = max(now + wait_s, self._sharing_until.get(name, 0.0))
        return wait_s

    def come_back(self, tenant: ClientId, now: Seconds, *, is_sure: bool = True) -> bool:
        """Record that a caller of a tenant comes back; return whether one was expected.

        A place reserved for the tenant is released. The caller may return before its slot if it is
        certain (`is_sure`) that the call is a retry.
        """
        if not self._changes:
            return False
        self._advance_tenants(now)
        known = self._tenant_entry(tenant)
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
        """Return the places that a new caller of a tenant must leave to returning callers."""
        if not self._changes:
            return Places()
        self._advance_tenants(now)
        known = self._tenant_entry(tenant)
        others = self._kept_of_whole - known.kept_of_whole
        return Places(len(known.kept), others, len(known.slots))

    def _advance_tenants(self, now: Seconds) -> None:
        while self._changes and self._changes[0][0] <= now:
            known = self._tenants[heapq.heappop(self._changes)[1]]
            before = known.kept_of_whole
            known.advance(now)
            self._kept_of_whole += known.kept_of_whole - before

    def _tenants_waiting(self, name: ClientId, now: Seconds) -> int:
        """Return the number of tenants with refused callers that wait for any departure."""
        for other in [other for other, until in self._sharing_until.items() if until <= now]:
            del self._sharing_until[other]
        return len(self._sharing_until) + (name not in self._sharing_until)

    def _tenant_entry(self, tenant: ClientId) -> _TenantDepartures:
        """Return the departures of a topmost tenant; tenants beyond the table share one entry."""
        top = _top_node(tenant)
        known = self._tenants.get(top)
        if known is None and len(self._tenants) >= _MAXIMUM_TENANTS:
            top = _OTHER
            known = self._tenants.get(top)
        if known is None:
            known = self._tenants[top] = _TenantDepartures(top)
        return known


Kept = tuple[int, int]
"""Numbers of places reserved for returning callers: for a tenant, and for all tenants."""
NOTHING_KEPT: Kept = (0, 0)


class TenantQuota:
    """Number of open applications or inferences, in total and by tenant, with its limit.

    A tenant may use at most four times as many places as are free: alone, four fifths of the limit.
    So a tenant that uses all that it may leaves places to later tenants: k such tenants leave
    1/(4k+1) of the limit, and the number of tenants need not be known. This is the dynamic
    threshold by which switches share the memory of their ports (Choudhury and Hahne 1998); fixed
    shares would leave most of the limit unused. Tenants below one top node count as one tenant: a
    caller that names many of them gains nothing.
    """

    def __init__(self, limit: int | None = None) -> None:
        """Create a quota under which nothing is open.

        Args:
            limit: Maximum number of applications or inferences in total; None: no limit.
        """
        self.limit = limit
        self.total = 0
        self._by_tenant: dict[str, int] = {}
        self._drain = Drain()

    def count_of(self, tenant: str) -> int:
        """Return the number counted for the topmost ancestor of a tenant."""
        return self._by_tenant.get(_top_node(tenant), 0)

    def admits(self, tenant: str, now: Seconds, *, is_retry: bool | None) -> bool:
        """Return whether there is a free place for a call of a tenant.

        A retry after a refusal may take a place that is reserved for a returning caller, and so may
        a call that does not state whether it is a retry. A first call may not, and has to leave
        free places for callers of its tenant whose slots are still to come.
        """
        if self.limit is None:
            return True
        is_unsure, drain = is_retry is None, self._drain
        is_expected = is_retry is not False and drain.come_back(tenant, now, is_sure=not is_unsure)
        if is_expected or is_unsure:
            return self.has_room(tenant)
        places, most = drain.kept(tenant, now), self.most_reserved_places()
        own = min(places.own + places.own_later, most)
        return self.has_room(tenant, (own, min(own + places.others, most)))

    def next_slot(self, tenant: str, now: Seconds, *, is_again: bool = False) -> Seconds:
        """Return the seconds after which a refused call of a tenant should be repeated."""
        places, most = self._drain.kept(tenant, now), self.most_reserved_places()
        kept = min(places.own, most), min(places.own + places.others, most)
        return self._drain.retry_after(
            tenant,
            now,
            shortfall=self.shortfall(tenant, kept),
            is_whole=self.is_full(kept),
            is_again=is_again,
        )

    def has_room(self, tenant: str, kept: Kept = NOTHING_KEPT) -> bool:
        """Return whether a tenant's call finds a place that is not reserved for others."""
        if self.limit is None:
            return True
        free = self.limit - self.total - kept[1]
        return free > 0 and self.count_of(tenant) + kept[0] < _MAXIMUM_PLACES_PER_FREE * free

    def is_full(self, kept: Kept = NOTHING_KEPT) -> bool:
        """Return whether no place under the limit is free and unreserved."""
        return self.limit is not None and self.total + kept[1] >= self.limit

    def shortfall(self, tenant: str, kept: Kept = NOTHING_KEPT) -> int:
        """Return the number of places that must become free before a tenant may use another."""
        if self.limit is None:
            return 0
        free = self.limit - self.total - kept[1]
        if free <= 0:
            return 1 - free
        count = self.count_of(tenant) + kept[0]
        return (count - _MAXIMUM_PLACES_PER_FREE * free) // (_MAXIMUM_PLACES_PER_FREE + 1) + 1

    def most_reserved_places(self) -> int:
        """Return the largest number of places to reserve for returning callers.

        A quarter of the limit, so that new callers are admitted, too.
        """
        return 0 if self.limit is None else self.limit // 4

    def arrive(self, tenant: str) -> None:
        """Count one more application or inference. Restored ones may exceed the limit."""
        self.total += 1
        top = _top_node(tenant)
        self._by_tenant[top] = self._by_tenant.get(top, 0) + 1

    def depart(self, tenant: str, now: Seconds) -> None:
        """Count an application or inference that has ended.

        Raises:
            KeyError: If the tenant has none.
        """
        top = _top_node(tenant)
        left = self._by_tenant[top] - 1
        self.total -= 1
        if left:
            self._by_tenant[top] = left
        else:
            del self._by_tenant[top]
        self._drain.depart(now, self.total, tenant, left)


def _top_node(tenant: str) -> str:
    return tenant.partition(SEPARATOR)[0]
