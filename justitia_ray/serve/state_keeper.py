"""Keeps a scheduler's durable state in its store, off the path of decisions."""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any

from justitia_ray.core import SchedulerCore
from justitia_ray.core.snapshot import application_record, clock_record
from justitia_ray.errors import StoreError
from justitia_ray.observability.log_events import log_event
from justitia_ray.store.scheduler_store import DurableState, StaleEpoch, StoredState
from justitia_ray.units import ApplicationId, Epoch, ReplicaId, Seconds

logger = logging.getLogger(__name__)

_RETRY_S: Seconds = 0.5
_MOST_AT_ONCE = 10_000
"""Applications in one write: Redis and this loop do nothing else for 0.1 s meanwhile. 200,000 would
take longer than Redis is waited for, and be tried again for ever."""


class StateKeeper:
    """Saves what changed; what cannot be written now is written with the next."""

    def __init__(self, store: DurableState, revive: Callable[[], None] | None) -> None:
        """Prepare; nothing is read or written yet.

        Args:
            store: Redis, or a fake of it in tests.
            revive: Called in a thread by `revive`, to start the store again; None if it is not
                ours.
        """
        self._store = store
        self._start_again = revive
        self._unsaved: dict[ApplicationId, None] = {}
        self._saved_replicas: frozenset[ReplicaId] = frozenset()
        self._everything = True
        self.saves = 0
        """Saves that succeeded: what had changed before a save began outlives this process."""
        self.saved_at: Seconds | None = None
        """When the last of them ended, by the loop's clock."""
        self.trouble: str | None = None
        """Why the store cannot be used at present."""

    @property
    def unsaved(self) -> Collection[ApplicationId]:
        """Applications that a save which failed left to the next."""
        return self._unsaved.keys()

    async def take_office(self, above: Epoch = 0) -> tuple[Epoch, StoredState]:
        """Return a new epoch, above another one too, and what the last scheduler left.

        Waits for the store as long as it takes: without it the epoch is not known.
        """
        while True:
            try:
                epoch = await self._store.take_office(above)
                stored = await self._store.load()
            except StoreError as error:
                self._note(str(error))
                await self.revive()
                await asyncio.sleep(_RETRY_S)
            else:
                self._note(None)
                return epoch, stored

    def save_everything(self) -> None:
        """Write the settings and every application with the next save, not only what changed."""
        self._everything = True

    async def save(self, core: SchedulerCore, epoch: Epoch, settings: dict[str, Any]) -> bool:
        """Write what changed since the last save that succeeded; return whether it was written.

        Raises:
            StaleEpoch: If another scheduler has taken office.
        """
        self._unsaved |= dict.fromkeys(core.take_changed())
        names = dict(self._unsaved)
        everything, self._everything = self._everything, False
        if everything:
            names |= dict.fromkeys(core.order.fair_share.sessions())
        records = {name: application_record(core, name) for name in names}
        replicas = frozenset(core.state.replicas)
        replicas_changed = everything or replicas != self._saved_replicas
        clock = clock_record(core)
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
                settings if everything else None,
                {name: {} for name in sorted(replicas)} if replicas_changed else None,
            )
        except StaleEpoch:
            raise
        except StoreError as error:
            self._everything = True
            self._note(str(error))
            return False
        except BaseException:
            self._everything = True  # also if it was cancelled: what was written is not known
            raise
        if not kept:  # it was emptied or set back, and holds nothing now
            self._everything = True
            return await self.save(core, epoch, settings)
        self._unsaved.clear()
        self._saved_replicas = replicas
        self.saves += 1
        self.saved_at = asyncio.get_running_loop().time()
        self._note(None)
        return True

    async def revive(self) -> None:
        """Have a store that fails started again, if it is ours."""
        if self.trouble is None or self._start_again is None:
            return
        try:
            await asyncio.to_thread(self._start_again)
        except StoreError as error:
            self._note(str(error))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._store.aclose()

    def _note(self, trouble: str | None) -> None:
        if trouble is not None and self.trouble is None:
            log_event(logger, logging.WARNING, "store.unreachable", reason=trouble)
        if trouble is None and self.trouble is not None:
            log_event(logger, logging.INFO, "store.reachable")
        self.trouble = trouble
