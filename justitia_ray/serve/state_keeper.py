"""Keeps a scheduler's durable state in its store, off the path of decisions."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from justitia_ray.core import SchedulerCore
from justitia_ray.core.snapshot import application_record, clock_record
from justitia_ray.errors import StoreError
from justitia_ray.observability.log_events import log_event
from justitia_ray.store.scheduler_store import SchedulerStore, StaleEpoch, StoredState
from justitia_ray.units import ApplicationId, Epoch, ReplicaId, Seconds

logger = logging.getLogger(__name__)

_RETRY_S: Seconds = 0.5


class StateKeeper:
    """Saves what changed; what cannot be written now is written with the next."""

    def __init__(self, store: SchedulerStore, revive: Callable[[], None]) -> None:
        """Prepare; nothing is read or written yet.

        Args:
            store: Redis, or a fake of it in tests.
            revive: Called in a thread when the store fails, to start it again if it is ours.
        """
        self._store = store
        self._revive = revive
        self._unsaved: dict[ApplicationId, None] = {}
        self._saved_replicas: frozenset[ReplicaId] = frozenset()
        self._everything = True
        self.saves = 0
        """Saves that succeeded: what had changed before a save began outlives this process."""
        self.trouble: str | None = None
        """Why the store cannot be used at present."""

    async def take_office(self) -> tuple[Epoch, StoredState]:
        """Return a new epoch and what the last scheduler left.

        Waits for the store as long as it takes: without it the epoch is not known.
        """
        while True:
            try:
                epoch = await self._store.take_office()
                stored = await self._store.load()
            except StoreError as error:
                await self._failed(error)
                await asyncio.sleep(_RETRY_S)
            else:
                self._note(None)
                return epoch, stored

    def save_everything(self) -> None:
        """Write the settings and every application with the next save, not only what changed."""
        self._everything = True

    async def save(self, core: SchedulerCore, epoch: Epoch, settings: dict[str, Any]) -> None:
        """Write what changed since the last save that succeeded.

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
        try:
            kept = await self._store.save(
                epoch,
                clock_record(core),
                {name: record for name, record in records.items() if record is not None},
                [name for name, record in records.items() if record is None],
                settings if everything else None,
                {name: {} for name in sorted(replicas)} if replicas_changed else None,
            )
        except StoreError as error:
            self._everything = True
            if isinstance(error, StaleEpoch):
                raise
            await self._failed(error)
            return
        self._unsaved.clear()
        self._everything = self._everything or not kept
        self._saved_replicas = replicas
        self.saves += 1
        self._note(None)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._store.aclose()

    async def _failed(self, error: StoreError) -> None:
        self._note(str(error))
        try:
            await asyncio.to_thread(self._revive)
        except StoreError as again:
            self._note(str(again))

    def _note(self, trouble: str | None) -> None:
        if trouble is not None and self.trouble is None:
            log_event(logger, logging.WARNING, "store.unreachable", reason=trouble)
        if trouble is None and self.trouble is not None:
            log_event(logger, logging.INFO, "store.reachable")
        self.trouble = trouble
