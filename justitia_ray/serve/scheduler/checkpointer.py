"""Checkpoints of a scheduler's durable state: when they are saved, what, and what they confirm.

A save is how a scheduler learns that its epoch still leads. A save is made every interval, and at
once for callers that wait for one; saves do not overlap, and the next covers all callers that
gathered meanwhile.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from justitia_ray.core import SchedulerCore
from justitia_ray.core.snapshot import (
    application_record,
    clock_record,
    durable_names,
    saved_instant,
)
from justitia_ray.core.usage import DAY_S, Day
from justitia_ray.errors import StoreError
from justitia_ray.observability.log_events import log_event
from justitia_ray.serve.scheduler.clock import SteadyClock
from justitia_ray.store.leader import StaleEpoch
from justitia_ray.store.scheduler_store import DurableState, StoredState, UsageRecords
from justitia_ray.units import ApplicationId, Epoch, ReplicaId, Seconds

logger = logging.getLogger(__name__)

_LEEWAY_S: Seconds = 1.0
"""Added to two intervals: how long a confirmation of the epoch lasts."""
_RETRY_S: Seconds = 0.5
_MOST_AT_ONCE = 10_000
"""Applications in one write: Redis and this loop do nothing else for 0.1 s meanwhile. 200,000 would
take longer than Redis is waited for, and be tried again for ever."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State to save, as of the instant at which the save begins."""

    core: SchedulerCore
    epoch: Epoch
    settings: dict[str, Any] | None
    """Scheduling settings in force; None: not known yet, and those in the store stay."""
    on_saved: Callable[[], None] = lambda: None
    """Called once all of the state is in the store."""


class Checkpointer:
    """Saves what changed, and knows when the epoch was confirmed last.

    The fence that follows from it: a decision is handed out only if the epoch was confirmed lately.
    After a stall of this process, or when the last confirmation is too old although the store is
    believed to answer, the scheduler waits for a save begun from then on, which fails if another
    scheduler has become the leader.

    What remains possible: an answer that was on its way when the process stopped still arrives, and
    while the store cannot be reached scheduling goes on without confirmation, as it does for the
    length of a confirmation after another scheduler became the leader. Leases handed out then carry
    a lower epoch: replicas and ingresses that know a later scheduler do not take them. Only those
    that know none do, and to them this is the one scheduler.
    """

    def __init__(
        self,
        store: DurableState,
        revive: Callable[[], None] | None,
        take_checkpoint: Callable[[], Checkpoint | None],
        on_stale: Callable[[StaleEpoch], None],
        interval_s: Seconds,
        clock: SteadyClock,
    ) -> None:
        """Prepare; nothing is read or written yet.

        Args:
            store: Redis, or no store at all.
            revive: Called in a thread when the store fails, to start it again; None if it is not
                ours.
            take_checkpoint: Returns the state to save; None if nothing may be saved any more.
            on_stale: Called when another scheduler turns out to be the leader.
            interval_s: Longest time from the end of one save to the beginning of the next.
            clock: Knows for how long this process stood still.
        """
        self._store = store
        self._start_store = revive
        self._take_checkpoint = take_checkpoint
        self._on_stale = on_stale
        self._interval_s = interval_s
        self._bound_s = 2 * interval_s + _LEEWAY_S
        self._clock = clock
        self._wanted = asyncio.Event()
        self._ends = False
        self._waiting: list[asyncio.Future[bool]] = []
        self._confirmed_at: Seconds | None = None
        self._stalled_s: Seconds = 0.0
        """Stalls, by the clock, when the last save that has ended began."""
        self.unsaved: dict[ApplicationId, None] = {}
        """Applications that a failed save left to the next one."""
        self._saved_replicas: frozenset[ReplicaId] = frozenset()
        self._everything = True
        self.saves = 0
        """Saves that succeeded: what had changed before a save began outlives this process."""
        self.saved_at: Seconds | None = None
        """When the last of them ended, by the loop's clock."""
        self.instant: Seconds = -math.inf
        """Instant of the last checkpoint in the store: no successor is told an earlier one."""
        self.trouble: str | None = None
        """Why the store cannot be used at present."""

    async def become_leader(self, above: Epoch = 0) -> tuple[Epoch, StoredState]:
        """Return a new epoch, above another one too, and the state that the last leader left.

        Waits for the store as long as it takes: without it the epoch is not known.
        """
        while True:
            try:
                epoch = await self._store.become_leader(above)
                stored = await self._store.load()
                today = int(self._clock.now() // DAY_S)
                usage = await self._store.load_usage((today - 1, today))
                stored = replace(stored, usage=usage)
            except StoreError as error:
                self._note_store(str(error))
                await self._revive()
                await asyncio.sleep(_RETRY_S)
            else:
                self._note_store(None)
                self.instant = saved_instant(stored.clock)
                self._confirmed_at = asyncio.get_running_loop().time()
                self._clock.now()
                self._stalled_s = self._clock.stalled_s
                return epoch, stored

    # --- confirmation

    async def confirm(self) -> None:
        """Wait until the epoch is confirmed, or the save that would confirm it has failed.

        Without a store that answers, only a stall has to be followed by a save.
        """
        self._clock.now()  # notices a stall
        is_late = False
        if self.trouble is None and self._confirmed_at is not None:
            is_late = asyncio.get_running_loop().time() - self._confirmed_at > self._bound_s
        if is_late or self._clock.stalled_s > self._stalled_s:
            await self.next_save()

    # --- when

    async def run(self) -> None:
        """Save until cancelled; after a save that failed, have the store started again first."""
        try:
            while not self._ends:
                await self._pause()
                if not await self.save_once():
                    await self._revive()
        finally:
            self._answer(self._waiting, saved=False)

    def end(self) -> None:
        """Begin no more saves: `run` is about to be cancelled.

        Cancelling alone would not do: what `run` waits for may swallow a cancellation that comes in
        the moment it is done.
        """
        self._ends = True

    def save_soon(self) -> None:
        """Save without waiting for the interval to pass."""
        self._wanted.set()

    def save_everything(self) -> None:
        """Write the settings and every application with the next save, not only what changed."""
        self._everything = True

    async def next_save(self) -> bool:
        """Wait for the end of a save begun from now on; return whether it succeeded.

        The store's timeouts bound the wait.
        """
        if self._ends:
            return False
        saved: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(saved)
        self.save_soon()
        return await saved

    async def save_once(self) -> bool:
        """Save; return whether it succeeded. Not while `run` runs."""
        self._wanted.clear()
        waiting, self._waiting = self._waiting, []
        self._clock.now()
        began_at, stalled_s = asyncio.get_running_loop().time(), self._clock.stalled_s
        saved = False
        try:
            checkpoint = self._take_checkpoint()
            if checkpoint is not None and await self._write(checkpoint):
                checkpoint.on_saved()
                saved = True
        except StaleEpoch as error:
            self._on_stale(error)
        except Exception:
            # A mistake of ours must not end saving for good.
            logger.exception("scheduler.save_failed")
        finally:
            self._answer(waiting, saved=saved)
        self._stalled_s = stalled_s
        if saved:
            self._confirmed_at = began_at
        return saved

    async def load_usage(self, days: Iterable[Day]) -> UsageRecords:
        """Return the stored usage of days.

        Raises:
            StoreError: If the store cannot be read.
        """
        return await self._store.load_usage(days)

    async def aclose(self) -> None:
        """Close the connections to the store."""
        await self._store.aclose()

    async def _pause(self) -> None:
        """Wait until a save is wanted, or the interval has passed."""
        # Not `wait_for`: Python 3.11's may swallow the cancellation that ends `run`.
        due = asyncio.get_running_loop().call_later(self._interval_s, self._wanted.set)
        try:
            await self._wanted.wait()
        finally:
            due.cancel()

    def _answer(self, waiting: list["asyncio.Future[bool]"], *, saved: bool) -> None:
        for future in waiting:
            if not future.done():
                future.set_result(saved)

    # --- what

    async def _write(self, checkpoint: Checkpoint) -> bool:
        """Write what changed since the last save that succeeded; return whether it was written.

        Raises:
            StaleEpoch: If another scheduler has become the leader.
        """
        core, epoch = checkpoint.core, checkpoint.epoch
        self.unsaved |= dict.fromkeys(core.take_changed())
        names = dict(self.unsaved)
        everything, self._everything = self._everything, False
        if everything:
            names |= dict.fromkeys(durable_names(core))
        records = {name: application_record(core, name) for name in names}
        replicas = frozenset(core.state.replicas)
        replicas_changed = everything or replicas != self._saved_replicas
        instant = self._clock.now()
        clock = {**clock_record(core), "saved_at": instant}
        usage = core.state.usage.take_changed(everything=everything)
        changed = [(name, record) for name, record in records.items() if record is not None]
        kept = True
        try:
            # A scheduler that dies between two parts loses what is in the later ones, as it would
            # if it had died before the save: each record stands for itself.
            while kept and len(changed) > _MOST_AT_ONCE:
                part, changed = changed[:_MOST_AT_ONCE], changed[_MOST_AT_ONCE:]
                kept = await self._store.save(epoch, clock, dict(part), ())
            kept = kept and await self._store.save(
                epoch,
                clock,
                dict(changed),
                [name for name, record in records.items() if record is None],
                checkpoint.settings if everything else None,
                {name: {} for name in sorted(replicas)} if replicas_changed else None,
                usage,
            )
        except StaleEpoch:
            raise
        except StoreError as error:
            self._everything = True
            self._note_store(str(error))
            return False
        except BaseException:
            self._everything = True  # also if it was cancelled: what was written is not known
            raise
        if not kept:  # the store was emptied or set back, and holds nothing now
            self._everything = True
            again = self._take_checkpoint()  # other settings may be in force by now
            if again is None:
                return False
            return await self._write(replace(checkpoint, settings=again.settings))
        self.unsaved.clear()
        core.state.usage.note_saved()
        self._saved_replicas = replicas
        self.saves += 1
        self.instant = instant
        self.saved_at = asyncio.get_running_loop().time()
        self._note_store(None)
        return True

    async def _revive(self) -> None:
        """Have a store that fails started again, if it is ours."""
        if self.trouble is None or self._start_store is None:
            return
        try:
            await asyncio.to_thread(self._start_store)
        except StoreError as error:
            self._note_store(str(error))

    def _note_store(self, trouble: str | None) -> None:
        if trouble is not None and self.trouble is None:
            log_event(logger, logging.WARNING, "store.unreachable", reason=trouble)
        if trouble is None and self.trouble is not None:
            log_event(logger, logging.INFO, "store.reachable")
        self.trouble = trouble
