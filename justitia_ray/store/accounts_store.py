"""Store of the accounts of an application's quotas: the records of the quota book, and a term.

It has the form of a scheduler's store, and so its fence: only the latest term writes. Its name has
a model's place empty, which no model can have.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from justitia_ray.store.connection import Credentials
from justitia_ray.store.leader import LeaderRecord
from justitia_ray.store.scheduler_store import NoStore, SchedulerStore
from justitia_ray.store.schema import JsonObject
from justitia_ray.units import Epoch


@dataclass(frozen=True, slots=True)
class StoredAccounts:
    """State that the last term left."""

    records: Mapping[str, JsonObject]
    """Records of the quota book."""


class AccountsStore:
    """The store of an application's accounts; use it from one event loop.

    Every method raises `StoreError` if Redis cannot be reached or refuses.
    """

    def __init__(
        self,
        url: str | None,
        name: str,
        credentials: Credentials | None = None,
        leader: LeaderRecord | None = None,
    ) -> None:
        """Name the store; nothing is connected yet.

        Args:
            url: One of `redis_url.FORMS`; None: nothing is stored, and terms are the wall clock.
            name: Name of the application.
            credentials: User, password and certificates; None for none.
            leader: Process that begins the term; this one if None.
        """
        self._store: SchedulerStore | NoStore = NoStore()
        if url is not None:
            self._store = SchedulerStore(url, f"{name}//accounts", credentials, leader)

    async def begin_term(self) -> tuple[Epoch, StoredAccounts]:
        """Begin a term, above all before, and return what the last one left."""
        epoch = await self._store.become_leader()
        stored = await self._store.load()
        return epoch, StoredAccounts(stored.applications)

    async def save(self, epoch: Epoch, records: Mapping[str, JsonObject | None]) -> bool:
        """Write records, and remove those that are None, if no later term has begun.

        Returns:
            Whether the store still held this term. If not, it was emptied or set back: save all.

        Raises:
            StaleEpoch: If a later term has begun; nothing was written.
        """
        kept = {name: record for name, record in records.items() if record is not None}
        gone = [name for name, record in records.items() if record is None]
        return await self._store.save(epoch, None, kept, gone)

    async def save_all(self, epoch: Epoch, records: Mapping[str, JsonObject]) -> None:
        """Write all records that there are, and remove all others: after saves that have failed.

        Raises:
            StaleEpoch: If a later term has begun; nothing was written.
        """
        others = (await self._store.load()).applications.keys() - records.keys()
        if not await self._store.save(epoch, None, records, sorted(others)):
            await self._store.save(epoch, None, records, ())

    async def aclose(self) -> None:
        """Close the connections."""
        await self._store.aclose()
