"""A scheduler's clock, which stops while its process is stalled.

A scheduler that was stopped for some seconds (a starved machine, a suspended container) finds
expired deadlines and waiting calls when it resumes. It received no messages in that time, so the
stall must not count as silence of other processes.
"""

import asyncio
import time
from collections.abc import Callable

from justitia_ray.units import Seconds

_BEAT_S: Seconds = 0.2
_STALL_S: Seconds = 1.0
"""Minimum gap in seconds between two beats that counts as a stall; event loops are usually late by
tens of milliseconds.
"""


def elapsed() -> Seconds:
    """Return seconds of a monotonic clock, which includes suspension of the machine if possible."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class SteadyClock:
    """Wall-clock time at the start of the process, plus the time that the process has run since.

    Later changes of the wall clock have no effect. Times of two runs are comparable, except for
    clock adjustments and stalls. They never go back, even over restarts, if the clock is given the
    latest time that the earlier process recorded (`not_before`).
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
        """Total seconds of stalls so far, which `now` leaves out."""

    def not_before(self, instant: Seconds) -> None:
        """Set the clock forward to a recorded time, in case the wall clock was set back since."""
        self._offset += max(0.0, instant - self.now())

    def now(self) -> Seconds:
        """Return the current time in seconds; a stall detected by this call is subtracted."""
        at = self._monotonic()
        late = at - self._beat_at - _BEAT_S
        if late > _STALL_S:
            self.stalled_s += late
            self._offset -= late
            self._beat_at = at
        return self._offset + at

    def beat(self) -> None:
        """Record that the process runs; called periodically, so that gaps show stalls."""
        self.now()
        self._beat_at = self._monotonic()

    async def keep_beating(self) -> None:
        while True:
            self.beat()
            await asyncio.sleep(_BEAT_S)
