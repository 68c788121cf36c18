"""Checkpoints of a scheduler's durable state: when and what is saved, and what a save confirms.

A successful save confirms that the scheduler's epoch still leads. A save is made every interval,
and at once for callers that wait for one; saves do not overlap, and callers that arrive during a
save share the next one.
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
    checkpoint_time,
    clock_record,
    durable_names,
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
"""Seconds added to two save intervals to get the time for which a confirmed epoch is valid."""
_RETRY_S: Seconds = 0.5
_MOST_AT_ONCE = 10_000
"""Maximum number of applications in one write to Redis, which blocks it for 0.1 s. A write of
200,000 applications would always time out.
"""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State of the scheduler to save, as of the start of the save."""

    core: SchedulerCore
    epoch: Epoch
    settings: dict[str, Any] | None
    """Current scheduling settings; None: unknown, so that the stored settings are kept."""
    on_saved: Callable[[], None] = lambda: None
    """Function called once the whole checkpoint is stored."""


class Checkpointer:
    """Saves the scheduler's changes, and records when its epoch was last confirmed.

    So a scheduler that lost the lead stays silent: a decision is sent only if the epoch was
    confirmed recently. After a stall of this process, or if the last confirmation is too old
    although the store is thought to answer, the scheduler waits for a new save, which fails if
    another scheduler has become the leader.

    In two cases a scheduler that is no longer the leader still sends decisions: if the process
    stalls while it sends an answer, and if the store is unreachable, as scheduling then goes on
    without confirmation. A confirmation also stays valid for a short time after another scheduler
    became the leader. Leases granted in these cases carry a lower epoch, so replicas and ingresses
    that have seen a later scheduler reject them. For processes that have seen no later scheduler,
    this is the only scheduler.

    Args:
        store: Redis, or no store at all.
        revive: Called in a thread when the store fails, to restart an embedded server; None: there
            is none.
        take_checkpoint: Returns the state to save; None if nothing may be saved any more.
        on_stale: Called when another scheduler turns out to be the leader.
        interval_s: Longest time from the end of one save to the start of the next.
        clock: Measures how long this process was stalled.
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
        """Total seconds of stalls (`clock`) at the start of the last completed save."""
        self.unsaved: dict[ApplicationId, None] = {}
        """Applications whose changes a failed save has left to the next save."""
        self._saved_replicas: frozenset[ReplicaId] = frozenset()
        self._everything = True
        self.saves = 0
        """Number of successful saves; a change made before a successful save started is stored."""
        self.saved_at: Seconds | None = None
        """Time at which the last successful save ended, in seconds of the loop's clock; None before
        any save.
        """
        self.instant: Seconds = -math.inf
        """Scheduler time of the last stored checkpoint, below which the next leader's clock does
        not start.
        """
        self.trouble: str | None = None
        """Why the scheduler's store cannot be used now; None if it can."""

    async def become_leader(self, above: Epoch = 0) -> tuple[Epoch, StoredState]:
        """Return a new epoch, higher than `above`, and the state that the last leader saved.

        Waits for the store without limit, because the epoch is unknown without it.
        """
        while True:
            try:
                epoch = await self._store.become_leader(above)
                stored = await self._store.load()
                today = int(self._clock.now() // DAY_S)
                usage = await self._store.load_usage((today - 1, today))
                stored = replace(stored, usage=usage)
            except StoreError as error:
                self._note_store_trouble(str(error))
                await self._restart_store()
                await asyncio.sleep(_RETRY_S)
            else:
                self._note_store_trouble(None)
                self.instant = checkpoint_time(stored.clock)
                self._confirmed_at = asyncio.get_running_loop().time()
                self._clock.now()
                self._stalled_s = self._clock.stalled_s
                return epoch, stored

    # --- confirmation of the epoch

    async def confirm(self) -> None:
        """Wait until a save has confirmed that this epoch leads, or has failed.

        While the store does not answer, a save is only needed after a stall.
        """
        self._clock.now()  # detects a stall
        is_late = False
        if self.trouble is None and self._confirmed_at is not None:
            is_late = asyncio.get_running_loop().time() - self._confirmed_at > self._bound_s
        if is_late or self._clock.stalled_s > self._stalled_s:
            await self.next_save()

    # --- when to save

    async def run(self) -> None:
        """Save periodically until cancelled; after a failed save, try to restart the store."""
        try:
            while not self._ends:
                await self._wait_until_due()
                if not await self.save_once():
                    await self._restart_store()
        finally:
            self._answer_waiting(self._waiting, saved=False)

    def end(self) -> None:
        """Prevent further saves, because `run` is about to be cancelled.

        Cancelling alone would not suffice: an awaited call in `run` may swallow a cancellation that
        arrives at the moment when it completes.
        """
        self._ends = True

    def save_soon(self) -> None:
        self._wanted.set()

    def save_everything(self) -> None:
        """Request that the next save writes the settings and all applications, not only changes."""
        self._everything = True

    async def next_save(self) -> bool:
        """Wait for a save that starts after this call; return whether it succeeded.

        The store's timeouts bound the wait.
        """
        if self._ends:
            return False
        saved: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(saved)
        self.save_soon()
        return await saved

    async def save_once(self) -> bool:
        """Save once and return whether it succeeded; must not be called while `run` runs."""
        self._wanted.clear()
        waiting, self._waiting = self._waiting, []
        self._clock.now()
        began_at, stalled_s = asyncio.get_running_loop().time(), self._clock.stalled_s
        saved = False
        try:
            checkpoint = self._take_checkpoint()
            if checkpoint is not None and await self._write_changes(checkpoint):
                checkpoint.on_saved()
                saved = True
        except StaleEpoch as error:
            self._on_stale(error)
        except Exception:
            # An unexpected error must not end saving for good.
            logger.exception("scheduler.save_failed")
        finally:
            self._answer_waiting(waiting, saved=saved)
        self._stalled_s = stalled_s
        if saved:
            self._confirmed_at = began_at
        return saved

    async def load_usage(self, days: Iterable[Day]) -> UsageRecords:
        """Return the stored usage of the given days, each a number of days since 1970.

        Raises:
            StoreError: If the store cannot be read.
        """
        return await self._store.load_usage(days)

    async def aclose(self) -> None:
        await self._store.aclose()

    async def _wait_until_due(self) -> None:
        """Wait until a save is requested, or the interval has passed."""
        # In Python 3.11 `asyncio.wait_for` may swallow the cancellation that ends `run`.
        due = asyncio.get_running_loop().call_later(self._interval_s, self._wanted.set)
        try:
            await self._wanted.wait()
        finally:
            due.cancel()

    def _answer_waiting(self, waiting: list["asyncio.Future[bool]"], *, saved: bool) -> None:
        for future in waiting:
            if not future.done():
                future.set_result(saved)

    # --- what to save

    async def _write_changes(self, checkpoint: Checkpoint) -> bool:
        """Write the changes since the last successful save; return whether they were written.

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
            # A scheduler that dies between two writes loses only the later ones.
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
            self._note_store_trouble(str(error))
            return False
        except BaseException:
            self._everything = True  # It is unknown what was written.
            raise
        if not kept:  # The store was emptied or restored from a backup.
            self._everything = True
            again = self._take_checkpoint()  # The settings may have changed since the checkpoint.
            if again is None:
                return False
            return await self._write_changes(replace(checkpoint, settings=again.settings))
        self.unsaved.clear()
        core.state.usage.note_saved()
        self._saved_replicas = replicas
        self.saves += 1
        self.instant = instant
        self.saved_at = asyncio.get_running_loop().time()
        self._note_store_trouble(None)
        return True

    async def _restart_store(self) -> None:
        """Try to restart a failing embedded store."""
        if self.trouble is None or self._start_store is None:
            return
        try:
            await asyncio.to_thread(self._start_store)
        except StoreError as error:
            self._note_store_trouble(str(error))

    def _note_store_trouble(self, trouble: str | None) -> None:
        if trouble is not None and self.trouble is None:
            log_event(logger, logging.WARNING, "store.unreachable", reason=trouble)
        if trouble is None and self.trouble is not None:
            log_event(logger, logging.INFO, "store.reachable")
        self.trouble = trouble
