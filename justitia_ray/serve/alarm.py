"""Timers of a scheduler in office."""

import asyncio
from collections.abc import Callable

from justitia_ray.units import Seconds


class Alarm:
    """One timer, set to the next deadline there is; setting it forgets the last one."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None

    def set(self, delay_s: Seconds | None) -> None:
        """Ring after so long, at once if that is past; None: not at all."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if delay_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, delay_s), self._ring)


class Attendance:
    """Notices when nobody has called for too long."""

    def __init__(self, limit_s: Seconds, now: Callable[[], Seconds]) -> None:
        self._limit_s = limit_s
        self._now = now
        self._called_at = now()

    def called(self) -> None:
        """Somebody calls."""
        self._called_at = self._now()

    async def end(self, abandoned: Callable[[str], None]) -> None:
        """Wait until it has been too long, then call `abandoned` with a sentence that says so."""
        idle_s = 0.0
        while idle_s < self._limit_s:
            await asyncio.sleep(self._limit_s - idle_s)
            idle_s = self._now() - self._called_at
        abandoned(f"nobody has called for {self._limit_s:g} s")
