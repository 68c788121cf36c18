"""History of virtual time V: the service and the time at which V reached each level.

The lag of an application against GPS is computed from it.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from justitia_ray.units import KvTokenTime, Seconds, VirtualTime

Start: TypeAlias = tuple[KvTokenTime, Seconds]
"""Start of an inference: total service of all replicas before it, and its time."""

_THIN_ABOVE = 64


class StartDelay(NamedTuple):
    """How much later than its finish in GPS an application started an inference."""

    work: KvTokenTime
    """Service of all replicas from the finish in GPS to the start. If GPS has not finished the
    application, the service is counted from now.
    """
    seconds: Seconds
    """Seconds from the finish in GPS to the start. If GPS has not finished the application, the
    seconds are counted from now.
    """
    report: KvTokenTime
    """Service of the report in which GPS finished the application; 0 without such a report."""


@dataclass(frozen=True, slots=True)
class Level:
    """A report, or a refund, by which virtual time rose."""

    served_before: KvTokenTime
    since: Seconds
    """Time at which total service began to rise from `served_before`."""
    amount: KvTokenTime
    """Service of the report; 0 if a refund moved virtual time."""


class ServiceHistory:
    """Total service and time at which virtual time reached each level.

    S is all service reported so far. V between two reports is unknown, so a level counts as reached
    at the start of the report: a lag measured from it is too large by at most the service of that
    report. Adding a level is O(1), finding one is O(log N) in the number of levels.
    """

    def __init__(self) -> None:
        self.served: KvTokenTime = 0
        """Total service of all replicas so far, in token·iterations."""
        self.busy_s: Seconds = 0.0
        """Seconds during which any inference was running."""
        self._began: VirtualTime | None = None
        self._since: Seconds = 0.0
        self._reached: list[VirtualTime] = []
        self._levels: list[Level] = []

    def __len__(self) -> int:
        """Return the number of levels stored."""
        return len(self._levels)

    def begin(self, virtual_time: VirtualTime) -> None:
        """Set virtual time at the first event; the times of earlier levels are unknown."""
        if self._began is None:
            self._began = virtual_time

    def forget_levels(self) -> None:
        """Drop all levels of virtual time, because another clock is used from now on."""
        self._began = None
        self._reached.clear()
        self._levels.clear()

    def record_service_restart(self, now: Seconds) -> None:
        """Record the time from which service rises again, after no inference was running."""
        self._since = now

    def note_service(self, amount: KvTokenTime, virtual_time: VirtualTime, now: Seconds) -> None:
        """Record service, and the virtual time after it."""
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
        """Return whether virtual time had not reached a tag when the history began."""
        return self._began is not None and tag > self._began

    def reached(self, tag: VirtualTime) -> Level | None:
        """Return the level at which virtual time reached a tag; None if it has not."""
        index = bisect_left(self._reached, tag)
        return self._levels[index] if index < len(self._levels) else None

    def late(self, start: Start, tag: VirtualTime, now: Seconds) -> StartDelay | None:
        """Return the delay of a start; None if GPS had finished before the history began.

        Args:
            start: The start.
            tag: Tag F of the application.
            now: Time of the event being handled.
        """
        if not self.knows(tag):
            return None
        level = self.reached(tag)
        if level is None:
            level = Level(self.served, now, 0)
        work = start[0] - level.served_before
        return StartDelay(work, start[1] - level.since if work else 0.0, level.amount)

    def is_long(self, applications: int) -> bool:
        """Return whether the history has many more levels than these applications need."""
        return len(self._levels) > _THIN_ABOVE + 4 * applications

    def keep_finish_levels(self, tags: Iterable[VirtualTime]) -> None:
        """Drop the levels of virtual time at which no application was finished, except the last.

        No other level is needed: a tag that V has not reached, or that changes, will be at V or
        above.
        """
        kept = {bisect_left(self._reached, tag) for tag in tags} | {len(self._levels) - 1}
        indices = sorted(index for index in kept if index < len(self._levels))
        self._reached = [self._reached[index] for index in indices]
        self._levels = [self._levels[index] for index in indices]
