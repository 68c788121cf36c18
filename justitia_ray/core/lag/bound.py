"""The bound on how far behind GPS an application may start, and the history of V.

Strict order, served clock, and what departs from them, each at its measured size. Let t0 be the
last start, before an application's own, of anything with a larger tag. Nothing of a smaller tag
waited then, so that what comes before the application is in flight at t0, or GPS has to serve it
too before the application is due. Hence its lag is at most

    I(t0), the work in flight at t0, and the exceptions since.

Exceptions are work that GPS does not put before it, or has put behind it: inferences started out of
order (`backfill`, `kv_share_cap`), work of an application when rule 1 or 7 raises its charge, and
credit: what GPS had served of an application before it was submitted, or gave to others when the
application was withdrawn or ended (`uncovered`). They are 0 with one stage, true costs and strict
order. An application whose last work was submitted when GPS was done with it adds up a term for
each t0, and its *path*: service while nothing of it waited. `core/README.md` has the derivation.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from justitia_ray.core.clock.fair_share import ServedShare
from justitia_ray.core.queue import Key
from justitia_ray.units import ApplicationId, KvTokenTime, Seconds, VirtualTime

_THIN_ABOVE = 64


@dataclass(slots=True)
class Claim:
    """The lag that one application can be promised, as of its last start."""

    proven: bool = True
    """False if it was started before an order was in force to which the promise applies."""
    path: KvTokenTime = 0
    closed: KvTokenTime = 0
    """The terms of earlier t0."""
    open: KvTokenTime = 0
    """The term of the last t0."""
    reference: int | None = None
    """Number of the start at that t0."""

    @property
    def bound(self) -> KvTokenTime | None:
        """Return the sum, token·iterations, or None if nothing is promised."""
        return self.closed + self.open + self.path if self.proven else None


@dataclass(frozen=True, slots=True)
class _Start:
    key: Key
    number: int
    term: KvTokenTime
    """Part of the bound of each application whose t0 it is."""
    exceptions: KvTokenTime


class DelayBound:
    """Starts that can still be some application's t0. Every change is O(1), amortised."""

    def __init__(self) -> None:
        self.in_flight: KvTokenTime = 0
        """I: the most service that everything in flight can still receive."""
        self.exceptions: KvTokenTime = 0
        self._starts = [_Start((inf,), 0, 0, 0)]
        """Starts in time, their keys falling: a later one with a larger key replaces others."""
        self._count = 0

    def forget(self, *, nothing_known: bool) -> None:
        """Forget the starts of another order; `nothing_known` if something may wait already."""
        self._starts = [] if nothing_known else [_Start((inf,), 0, 0, self.exceptions)]

    def record_start(self, key: Key, *, nothing_waits: bool, lack: KvTokenTime = 0) -> None:
        """Record an in-order dispatch. Call after adding its work to `in_flight`.

        Args:
            key: Its tag and its application's arrival sequence.
            nothing_waits: Nothing else waits, so that this instant is a t0 for everybody.
            lack: Slack that those with smaller tags may lack for it, by the guard's leave.
        """
        if nothing_waits:
            self._starts, key, lack = [], (inf,), 0
        while self._starts and self._starts[-1].key <= key:
            self._starts.pop()
        self._count += 1
        term = self.in_flight + lack
        self._starts.append(_Start(key, self._count, term, self.exceptions))

    def promise(self, claim: Claim, key: Key) -> None:
        """Renew a claim as if something of its application started now."""
        last = next((start for start in reversed(self._starts) if start.key > key), None)
        if last is None:
            claim.proven = False
            return
        if last.number != claim.reference:
            claim.closed += claim.open
            claim.reference = last.number
        claim.open = last.term + self.exceptions - last.exceptions


def uncovered(fair_share: ServedShare, application_id: ApplicationId) -> KvTokenTime:
    """Return how much more an application may ask than GPS still owes it: what it lags behind.

    Unit: token·iterations; 0 while it is withdrawn, or ahead of GPS.
    """
    account = fair_share.accounts[application_id]
    if account.withdrawn:
        return 0
    owed = fair_share.clock.owed(application_id)
    return max(0, account.charged - account.attained - owed)


@dataclass(frozen=True, slots=True)
class Level:
    """A report, or a refund, in which V rose."""

    served_before: KvTokenTime
    since: Seconds
    """When S began to rise from there."""
    amount: KvTokenTime
    """Service of the report; 0 if it was a refund that moved V."""


class ServiceHistory:
    """When V reached which level, in served work S and in time: one entry a report, thinned.

    S is all service reported so far. Between two reports V is not known, so an instant is taken at
    the start of its report: what is measured from it errs by no more than that report's service,
    upwards, be it of all that a replica runs or of ends alone. Adding is O(1), finding O(log N) in
    the number kept.
    """

    def __init__(self) -> None:
        self.served: KvTokenTime = 0
        """S now."""
        self.busy_s: Seconds = 0.0
        """Time for which anything was in flight."""
        self._began: VirtualTime | None = None
        self._since: Seconds = 0.0
        self._reached: list[VirtualTime] = []
        self._levels: list[Level] = []

    def __len__(self) -> int:
        """Return the number of levels kept."""
        return len(self._levels)

    def begin(self, virtual_time: VirtualTime) -> None:
        """Set V at the first event; the levels that it reached before are not known."""
        if self._began is None:
            self._began = virtual_time

    def start_over(self) -> None:
        """Forget the levels of V, which is that of another clock from now on."""
        self._began = None
        self._reached.clear()
        self._levels.clear()

    def rise_from(self, now: Seconds) -> None:
        """Note the instant from which S rises again: something runs after nothing did."""
        self._since = now

    def note_service(self, amount: KvTokenTime, virtual_time: VirtualTime, now: Seconds) -> None:
        """Record service, and V after it."""
        assert self._began is not None
        if virtual_time > (self._reached[-1] if self._reached else self._began):
            since = self._since if amount else now
            self._reached.append(virtual_time)
            self._levels.append(Level(self.served, since, amount))
        if amount:
            self.served += amount
            self.busy_s += now - self._since
            self._since = now

    def knows(self, tag: VirtualTime) -> bool:
        """Return whether V had not reached the tag when the history began."""
        return self._began is not None and tag > self._began

    def reached(self, tag: VirtualTime) -> Level | None:
        """Return the level at which V reached a tag, or None if it has not."""
        index = bisect_left(self._reached, tag)
        return self._levels[index] if index < len(self._levels) else None

    def is_long(self, applications: int) -> bool:
        """Return whether it holds many more levels than so many applications can need."""
        return len(self._levels) > _THIN_ABOVE + 4 * applications

    def thin(self, tags: Iterable[VirtualTime]) -> None:
        """Keep the levels at which V reached these tags, and the last.

        A tag that V has not reached, or that changes, ends at V or above: it needs no level of now.
        """
        kept = {bisect_left(self._reached, tag) for tag in tags} | {len(self._levels) - 1}
        indices = sorted(index for index in kept if index < len(self._levels))
        self._reached = [self._reached[index] for index in indices]
        self._levels = [self._levels[index] for index in indices]
