"""When a scheduler's state is saved, and whether it may still hand out what it decides.

A save is how a scheduler hears that its epoch is in office. One is made every interval, and at once
for those who wait for one; there is one at a time, and the next covers all who gathered meanwhile.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from justitia_ray.serve.steady_clock import SteadyClock
from justitia_ray.units import Seconds

logger = logging.getLogger(__name__)

_LEEWAY_S: Seconds = 1.0
"""A confirmation lasts for two intervals and so much longer."""


class Saver:
    """Saves, and knows when the epoch was confirmed last.

    The fence that follows from it: what was decided is handed out only if the epoch was confirmed
    lately. After a stall of this process, or when the last confirmation is too old although the
    store is believed to answer, it waits for a save begun from then on, which fails if another
    scheduler has taken office.

    What remains possible: an answer that was on its way when the process stopped still arrives, and
    while the store cannot be reached scheduling goes on without confirmation (DESIGN.md 3), as it
    does for the length of a confirmation after another scheduler took office. Leases handed out
    then carry a lower epoch: replicas and ingresses that have heard of a later scheduler do not
    take them. Only those that have heard of none do, and to them this is the one scheduler.
    """

    def __init__(
        self,
        save: Callable[[], Awaitable[bool]],
        is_away: Callable[[], bool],
        interval_s: Seconds,
        clock: SteadyClock,
    ) -> None:
        """Prepare; `run` begins to save.

        Args:
            save: Saves once, and returns whether it succeeded.
            is_away: Whether the store is known not to answer.
            interval_s: Longest time from the end of one save to the beginning of the next.
            clock: Knows for how long this process stood still.
        """
        self._save = save
        self._is_away = is_away
        self._interval_s = interval_s
        self._bound_s = 2 * interval_s + _LEEWAY_S
        self._clock = clock
        self._wanted = asyncio.Event()
        self._ends = False
        self._waiting: list[asyncio.Future[bool]] = []
        self._confirmed_at: Seconds | None = None
        self._stalled_s: Seconds = 0.0
        """Of the clock, when the last save began that has ended."""

    def is_confirmed(self) -> bool:
        """Return whether what was decided may be handed out without asking the store first."""
        self._clock.now()  # notices a stall
        if self._clock.stalled_s > self._stalled_s:
            return False
        if self._is_away() or self._confirmed_at is None:
            return True
        return asyncio.get_running_loop().time() - self._confirmed_at <= self._bound_s

    def took_office(self) -> None:
        """The epoch was just raised, so it is ours."""
        self._confirmed_at = asyncio.get_running_loop().time()
        self._clock.now()
        self._stalled_s = self._clock.stalled_s

    def save_soon(self) -> None:
        """Save without waiting for the interval to pass."""
        self._wanted.set()

    def end(self) -> None:
        """Begin no more saves: `run` is about to be cancelled.

        Cancelling alone would not do: what it waits for may swallow a cancellation that comes in
        the moment it is done.
        """
        self._ends = True

    async def next_save(self) -> bool:
        """Wait for the end of a save begun from now on; return whether it succeeded.

        The store's timeouts bound it.
        """
        if self._ends:
            return False
        saved: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(saved)
        self.save_soon()
        return await saved

    async def run(self, revive: Callable[[], Awaitable[None]]) -> None:
        """Save until cancelled; after a save that failed, `revive` the store first."""
        try:
            while not self._ends:
                await self._pause()
                if not await self.save_once():
                    await revive()
        finally:
            self._answer(self._waiting, saved=False)

    async def _pause(self) -> None:
        """Wait until a save is wanted, or the interval has passed."""
        # Not `wait_for`: Python 3.11's may swallow the cancellation that ends `run`.
        due = asyncio.get_running_loop().call_later(self._interval_s, self._wanted.set)
        try:
            await self._wanted.wait()
        finally:
            due.cancel()

    async def save_once(self) -> bool:
        """Save; return whether it succeeded. Not while `run` runs."""
        self._wanted.clear()
        waiting, self._waiting = self._waiting, []
        self._clock.now()
        began_at, stalled_s = asyncio.get_running_loop().time(), self._clock.stalled_s
        saved = False
        try:
            saved = await self._save()
        except Exception:
            # A mistake of ours must not end saving for good.
            logger.exception("scheduler.save_failed")
        finally:
            self._answer(waiting, saved=saved)
        self._stalled_s = stalled_s
        if saved:
            self._confirmed_at = began_at
        return saved

    def _answer(self, waiting: list["asyncio.Future[bool]"], *, saved: bool) -> None:
        for future in waiting:
            if not future.done():
                future.set_result(saved)
