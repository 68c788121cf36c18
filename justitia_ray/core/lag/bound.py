"""The bound on how far behind GPS an application may start.

It is derived for strict order under the served clock; deviations are added at their measured sizes.
Let t0 be the time of the last start, before an application's own last start, of an application with
a larger tag. No inference with a smaller tag waited then. So all work that delays the application
is in flight at t0, or GPS also serves it before the application is due. Hence its lag is at most

    the work I(t0) in flight at t0, and the exceptions since t0.

Exceptions are work that GPS does not serve before the application: inferences started out of order
(`backfill`), work of an application when rule 1 or 7 raises its charge, and credit: service that
GPS gave to an application before it was submitted, or gave to others when the application was
withdrawn or ended (`uncovered_demand`). Exceptions are 0 with one stage, true costs and strict
order. If GPS had finished an application before its last inference was submitted, its bound is the
sum of a term for each t0, and of its *path*, the service while none of its inferences waited.
`core/README.md` has the derivation.
"""

from dataclasses import dataclass
from math import inf

from justitia_ray.core.clock.fair_share import ServedShare
from justitia_ray.core.queue import Key
from justitia_ray.units import ApplicationId, KvTokenTime


@dataclass(slots=True)
class ApplicationBound:
    """Upper bound on how far one application lags behind GPS."""

    proven: bool = True
    """Whether the present order bounds this lag. False if the last start was made under another
    order.
    """
    path: KvTokenTime = 0
    closed: KvTokenTime = 0
    """Part of the upper bound on the lag that no longer changes, in token·iterations."""
    open: KvTokenTime = 0
    """Part of the upper bound on the lag that may still change, in token·iterations."""
    reference: int | None = None
    """Sequence number of the last start of an application with a larger tag."""

    @property
    def bound(self) -> KvTokenTime | None:
        """Return the bound on the lag in token·iterations, or None if there is no bound."""
        return self.closed + self.open + self.path if self.proven else None


@dataclass(frozen=True, slots=True)
class _RecordedStart:
    key: Key
    number: int
    term: KvTokenTime
    """Amount that this start adds to the upper bounds of other applications' lags."""
    exceptions: KvTokenTime


class DelayBound:
    """Starts that may delay applications with smaller tags, and so bound their lags.

    A change takes amortised O(1).
    """

    def __init__(self) -> None:
        self.in_flight: KvTokenTime = 0
        """Work in flight I: the most service that all running inferences can still receive."""
        self.exceptions: KvTokenTime = 0
        self._starts = [_RecordedStart((inf,), 0, 0, 0)]
        """Starts in order of time; each start removes earlier ones with an equal or smaller sort
        key.
        """
        self._count = 0

    def forget(self, *, nothing_known: bool) -> None:
        """Drop all starts, because the order has changed."""
        self._starts = [] if nothing_known else [_RecordedStart((inf,), 0, 0, self.exceptions)]

    def record_start(self, key: Key, *, nothing_waits: bool, lack: KvTokenTime = 0) -> None:
        """Record a start that followed the order. Call after its work is in `in_flight`.

        Args:
            key: The application's tag and arrival sequence number.
            nothing_waits: Whether no other inference waits, so that this start is a t0 for all
                applications.
            lack: Slack that applications with smaller tags may lack because of this start, as the
                guarded policy allows.
        """
        if nothing_waits:
            self._starts, key, lack = [], (inf,), 0
        while self._starts and self._starts[-1].key <= key:
            self._starts.pop()
        self._count += 1
        term = self.in_flight + lack
        self._starts.append(_RecordedStart(key, self._count, term, self.exceptions))

    def update(self, own_bound: ApplicationBound, key: Key) -> None:
        """Update the bound of an application that starts an inference now."""
        last = next((start for start in reversed(self._starts) if start.key > key), None)
        if last is None:
            own_bound.proven = False
            return
        if last.number != own_bound.reference:
            own_bound.closed += own_bound.open
            own_bound.reference = last.number
        own_bound.open = last.term + self.exceptions - last.exceptions


def uncovered_demand(fair_share: ServedShare, application_id: ApplicationId) -> KvTokenTime:
    """Return the service that an application may request beyond what GPS owes it.

    In token·iterations; 0 while the application is withdrawn, or ahead of GPS.
    """
    account = fair_share.accounts[application_id]
    if account.withdrawn:
        return 0
    owed = fair_share.clock.owed(application_id)
    return max(0, account.charged - account.attained - owed)
