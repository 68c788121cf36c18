"""The bound on how far behind GPS an application may start.

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

from dataclasses import dataclass
from math import inf

from justitia_ray.core.clock.fair_share import ServedShare
from justitia_ray.core.queue import Key
from justitia_ray.units import ApplicationId, KvTokenTime


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
