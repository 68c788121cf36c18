"""A scheduler's time: a clock that stands still while its process did.

A scheduler that was stopped for some seconds (a starved machine, a suspended container) wakes up to
deadlines that passed and to calls that wait. A process that does not run hears nobody, so the
silence of others is not counted for that time.
"""

import asyncio
import time
from collections.abc import Callable

from justitia_ray.units import Seconds

_BEAT_S: Seconds = 0.2
_STALL_S: Seconds = 1.0
"""A longer gap between two beats is a stall: loops are late by tens of milliseconds, not more."""


def elapsed() -> Seconds:
    """Return a time that only grows, with that of a suspended machine where the system tells it."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class SteadyClock:
    """Wall-clock time at its start, plus the time that this process has run since.

    Later changes of the wall clock change nothing. Comparable across restarts to within clock
    adjustments and stalls; never falls, also across restarts if each is told the latest instant
    that the one before it has recorded (`not_before`).
    """

    def __init__(
        self,
        monotonic: Callable[[], Seconds] = time.monotonic,
        wall: Callable[[], Seconds] = time.time,
    ) -> None:
        self._monotonic = monotonic
        self._beat_at = monotonic()
        self._offset = wall() - self._beat_at
        self.stalled_s: Seconds = 0.0
        """Time left out so far."""

    def not_before(self, instant: Seconds) -> None:
        """Begin at an instant that was recorded before, if the wall clock was set back since."""
        self._offset += max(0.0, instant - self.now())

    def now(self) -> Seconds:
        """Return the instant, in seconds; a stall noticed by that is left out of the time."""
        at = self._monotonic()
        late = at - self._beat_at - _BEAT_S
        if late > _STALL_S:
            self.stalled_s += late
            self._offset -= late
            self._beat_at = at
        return self._offset + at

    def beat(self) -> None:
        """Note that the process runs."""
        self.now()
        self._beat_at = self._monotonic()

    async def keep_beating(self) -> None:
        """Beat until cancelled."""
        while True:
            self.beat()
            await asyncio.sleep(_BEAT_S)
