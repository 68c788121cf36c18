"""The history of V: at which served work, and when, it reached each level.

From it follows how late an application is against GPS, whenever that is asked.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from justitia_ray.units import KvTokenTime, Seconds, VirtualTime

Start: TypeAlias = tuple[KvTokenTime, Seconds]
"""S, all service reported so far, at the start of an inference, and the instant of that."""

_THIN_ABOVE = 64


class Late(NamedTuple):
    """How much later than GPS had finished an application something of it started."""

    work: KvTokenTime
    """S at the start less S when V reached the tag; if V has not, less S now."""
    seconds: Seconds
    """Time between those two levels of S."""
    report: KvTokenTime
    """Service of the report in which V reached the tag; 0 if it has not, or by a refund."""


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

    def late(self, start: Start, tag: VirtualTime, now: Seconds) -> Late | None:
        """Return how late a start was; None if V had reached the tag when the history began.

        Args:
            start: The start.
            tag: F of the application.
            now: The instant of the event being handled.
        """
        if not self.knows(tag):
            return None
        level = self.reached(tag)
        if level is None:
            level = Level(self.served, now, 0)
        work = start[0] - level.served_before
        return Late(work, start[1] - level.since if work else 0.0, level.amount)

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
