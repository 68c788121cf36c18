"""A clock that stands still while its own process did.

A scheduler that was stopped for some seconds (a starved machine, a suspended container) wakes up to
deadlines that passed and to calls that wait. What did not run could not hear, so the silence of
others is not counted for that time.
"""

import asyncio
import time
from collections.abc import Callable

from justitia_ray.units import Seconds

_BEAT_S: Seconds = 0.2
_STALL_S: Seconds = 1.0
"""A longer gap between two beats is a stall: loops are late by tens of milliseconds, not more."""


class SteadyClock:
    """Wall-clock time at its start, plus the time that this process has run since.

    Comparable across restarts to within clock adjustments and stalls; never falls.
    """

    def __init__(self, monotonic: Callable[[], Seconds] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._beat_at = monotonic()
        self._offset = time.time() - self._beat_at
        self.stalled_s: Seconds = 0.0
        """Time left out so far."""

    def now(self) -> Seconds:
        """Return the instant, in seconds."""
        at = self._monotonic()
        late = at - self._beat_at - _BEAT_S
        if late > _STALL_S:
            self.stalled_s += late
            self._offset -= late
            self._beat_at = at
        return self._offset + at

    def beat(self) -> None:
        """Tell that the process runs."""
        self.now()
        self._beat_at = self._monotonic()

    async def keep_beating(self) -> None:
        """Beat until cancelled."""
        while True:
            self.beat()
            await asyncio.sleep(_BEAT_S)
