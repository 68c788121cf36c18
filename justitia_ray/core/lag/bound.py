"""The bound on how far behind GPS an application may start.

It is derived for strict order under the served clock; deviations are added at their measured sizes.
Let t0 be the last start, before an application's own, of an application with a larger tag. Nothing
with a smaller tag waited then, so everything before the application is in flight at t0, or GPS also
has to serve it before the application is due. Hence its lag is at most

    I(t0), the work in flight at t0, and the exceptions since.

Exceptions are work that GPS does not put before it, or has put behind it: inferences started out of
order (`backfill`, `kv_share_cap`), work of an application when rule 1 or 7 raises its charge, and
credit: service that GPS gave to an application before it was submitted, or gave to others when the
application was withdrawn or ended (`uncovered`). They are 0 with one stage, true costs and strict
order. An application whose last work was submitted when GPS had finished it adds up a term for each
t0, and its *path*: service while none of its inferences waited. `core/README.md` has the
derivation.
"""

from dataclasses import dataclass
from math import inf

from justitia_ray.core.clock.fair_share import ServedShare
from justitia_ray.core.queue import Key
from justitia_ray.units import ApplicationId, KvTokenTime


@dataclass(slots=True)
class Claim:
    """Bound on the lag of one application, as of the application's last start."""

    proven: bool = True
    """False if the last start was made under an earlier order, so that no bound is known."""
    path: KvTokenTime = 0
    closed: KvTokenTime = 0
    """Sum of the terms of the bound for earlier start times t0."""
    open: KvTokenTime = 0
    """Term of the bound for the last start time t0."""
    reference: int | None = None
    """Sequence number of the start that was made at the last t0."""

    @property
    def bound(self) -> KvTokenTime | None:
        """Return the bound on the lag in token·iterations, or None if there is no bound."""
        return self.closed + self.open + self.path if self.proven else None


@dataclass(frozen=True, slots=True)
class _RecordedStart:
    key: Key
    number: int
    term: KvTokenTime
    """Part of the bound of each application whose t0 is this start."""
    exceptions: KvTokenTime


class DelayBound:
    """Starts that may still be the t0 of an application's bound. A change takes amortised O(1)."""

    def __init__(self) -> None:
        self.in_flight: KvTokenTime = 0
        """I, the most service that all work in flight can still receive."""
        self.exceptions: KvTokenTime = 0
        self._starts = [_RecordedStart((inf,), 0, 0, 0)]
        """Starts in time order with falling keys: a later start with a larger key replaces others.
        """
        self._count = 0

    def forget(self, *, nothing_known: bool) -> None:
        """Drop the starts of another order; `nothing_known` if inferences may wait already."""
        self._starts = [] if nothing_known else [_RecordedStart((inf,), 0, 0, self.exceptions)]

    def record_start(self, key: Key, *, nothing_waits: bool, lack: KvTokenTime = 0) -> None:
        """Record a start in order. Call after the work of the start is in `in_flight`.

        Args:
            key: Its tag and its application's arrival sequence.
            nothing_waits: Whether nothing else waits, so that this is a t0 for all applications.
            lack: Slack that those with smaller tags may lack for it, as the guard allows.
        """
        if nothing_waits:
            self._starts, key, lack = [], (inf,), 0
        while self._starts and self._starts[-1].key <= key:
            self._starts.pop()
        self._count += 1
        term = self.in_flight + lack
        self._starts.append(_RecordedStart(key, self._count, term, self.exceptions))

    def promise(self, claim: Claim, key: Key) -> None:
        """Update the bound of an application as if it started an inference now."""
        last = next((start for start in reversed(self._starts) if start.key > key), None)
        if last is None:
            claim.proven = False
            return
        if last.number != claim.reference:
            claim.closed += claim.open
            claim.reference = last.number
        claim.open = last.term + self.exceptions - last.exceptions


def uncovered(fair_share: ServedShare, application_id: ApplicationId) -> KvTokenTime:
    """Return the service that an application may request beyond what GPS owes the application.

    Its lag, in token·iterations; 0 while it is withdrawn, or ahead of GPS.
    """
    account = fair_share.accounts[application_id]
    if account.withdrawn:
        return 0
    owed = fair_share.clock.owed(application_id)
    return max(0, account.charged - account.attained - owed)
