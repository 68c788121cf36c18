"""Service of the accounts actor: a quota book whose grants are stored before they are returned.

Exchanges that arrive during a save share the next one. While the store is unreachable, the accounts
work in memory and store later, as schedulers do. If the actor dies before that, schedulers report
the missing usage to the next actor; usage is lost only if the actor and a scheduler die.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from justitia_ray.accounts.book import QuotaBook
from justitia_ray.accounts.messages import Answer, Exchange
from justitia_ray.config import SchedulingConfig
from justitia_ray.core.records import Record
from justitia_ray.errors import SchedulerSuperseded, StoreError
from justitia_ray.observability.log_events import log_event
from justitia_ray.store.accounts_store import AccountsStore
from justitia_ray.store.leader import StaleEpoch
from justitia_ray.units import Epoch, Seconds

logger = logging.getLogger(__name__)

_RETRY_S: Seconds = 0.5
_LOST_S: Seconds = 900.0
"""Seconds without a message from a scheduler after which its reservations of quotas count as used.
"""
_LOOK_EVERY_S: Seconds = 30.0


class AccountsService:
    """Quota accounts of one application, as a service that is independent of Ray.

    Args:
        store: Store of the quota book.
        step_down: Called with the reason when this process may end.
        revive_store: Called in a thread when the store fails, to restart an embedded server; None:
            there is none.
        wall: Returns seconds since 1970.
    """

    def __init__(
        self,
        store: AccountsStore,
        step_down: Callable[[str], None],
        revive_store: Callable[[], None] | None = None,
        wall: Callable[[], Seconds] = time.time,
    ) -> None:
        self._store = store
        self._step_down = step_down
        self._revive_store = revive_store
        self._wall = wall
        self.book = QuotaBook()
        self.trouble: str | None = None
        """Why the store of the quota accounts cannot be used now; None if it can."""
        self.saves = 0
        self._lost: str | None = None
        self._everything = False
        self._saving: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._called_at = time.monotonic()

    async def begin(self) -> None:
        """Load the stored usage of quotas; waits for the store without limit."""
        while True:
            try:
                epoch, stored = await self._store.begin_term()
                break
            except StoreError as error:
                await self._note_trouble(str(error))
                await asyncio.sleep(_RETRY_S)
        self.trouble = None
        self.book = QuotaBook(epoch=epoch)
        try:
            self.book.restore(dict(stored.records), self._wall())
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"accounts: the stored record is damaged ({error})") from error
        log_event(logger, logging.INFO, "accounts.in_office", epoch=epoch)
        self._looking = asyncio.create_task(self._expire_periodically())

    async def configure(self, tenants: Mapping[str, Any]) -> Epoch:
        """Set the quotas of a tree of tenants; return the epoch of these accounts.

        Raises:
            ConfigError: If the tree is invalid.
        """
        self._check_lead()
        tree = SchedulingConfig.parse({"tenants": dict(tenants)}).tenant_tree
        if tree != self.book.tree:
            self.book.configure(tree, self._wall())
        return self.book.epoch

    async def exchange(self, told: Exchange) -> Answer:
        """Book a scheduler's usage of quotas, and answer its requests once the answer is stored."""
        self._check_lead()
        self._called_at = time.monotonic()
        if told.accounts != self.book.epoch:
            return Answer(self.book.epoch)
        answer = self.book.exchange(told, self._wall())
        await self._wait_until_stored()
        self._check_lead()
        return answer if self.trouble is None else replace(answer, is_stored=False)

    async def end(self) -> None:
        """Save usage and quota claims a last time and close the store."""
        if self._looking is not None:
            self._looking.cancel()
        if self._lost is None and self.book.epoch:
            await self._save_soon()
        await self._store.aclose()

    def status(self) -> dict[str, Any]:
        """Return the state of the quota accounts and of their store, for the scheduler's status."""
        return {
            "ready": self.book.epoch > 0 and self._lost is None,
            "degraded": self._lost or self.trouble,
            "epoch": self.book.epoch,
            "saves": self.saves,
        }

    def idle_s(self) -> Seconds:
        """Return the seconds since a scheduler last sent a message to the quota accounts."""
        return time.monotonic() - self._called_at

    def _check_lead(self) -> None:
        if self._lost is not None:
            raise SchedulerSuperseded(self._lost)

    async def _wait_until_stored(self) -> None:
        """Wait until usage and quota claims are saved, unless the store is unreachable."""
        if self.trouble is None:
            await asyncio.shield(self._save_soon())

    def _save_soon(self) -> "asyncio.Task[None]":
        """Return a task that saves usage and quota claims, if needed after a running save.

        Saves run one after the other, because of two concurrent ones the older might be written
        last.
        """
        if self._next is not None and not self._next.done():
            return self._next
        if self._saving is None or self._saving.done():
            self._saving = asyncio.create_task(self._save_changes())
            return self._saving
        self._next = asyncio.create_task(self._save_after(self._saving))
        return self._next

    async def _save_after(self, before: "asyncio.Task[None]") -> None:
        await asyncio.wait({before})
        self._saving, self._next = self._next, None
        await self._save_changes()

    async def _save_changes(self) -> None:
        names, epoch = self.book.take_changed(), self.book.epoch
        everything, self._everything = self._everything, False
        if not (names or everything):
            return
        try:
            if not everything:
                records = {name: self.book.record(name) for name in names}
                everything = not await self._store.save(epoch, records)
            if everything:
                await self._store.save_all(epoch, self._all_records())
            self.saves += 1
            if self.trouble is not None:
                self.trouble = None
                log_event(logger, logging.INFO, "store.reachable")
        except StaleEpoch as error:
            self._lost = f"these accounts have lost the lead: {error}"
            self._step_down(str(error))
        except StoreError as error:
            self._everything = True
            await self._note_trouble(str(error))

    def _all_records(self) -> dict[str, Record]:
        self.book.take_changed()
        found = ((name, self.book.record(name)) for name in self.book.all_records())
        return {name: record for name, record in found if record is not None}

    async def _note_trouble(self, reason: str) -> None:
        if self.trouble is None:
            log_event(logger, logging.WARNING, "store.unreachable", reason=reason)
        self.trouble = reason
        if self._revive_store is not None:
            try:
                await asyncio.to_thread(self._revive_store)
            except StoreError as error:
                self.trouble = str(error)

    async def _expire_periodically(self) -> None:
        """Drop old records of usage and claims on quotas, and retry a failing store."""
        waited_s = 0.0
        while True:
            await asyncio.sleep(_RETRY_S)
            waited_s += _RETRY_S
            if waited_s >= _LOOK_EVERY_S:
                waited_s = 0.0
                self.book.expire(self._wall(), _LOST_S)
            if self.trouble is not None and (self._saving is None or self._saving.done()):
                self._everything = True
                self._save_soon()
