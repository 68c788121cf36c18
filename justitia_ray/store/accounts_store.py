"""Store of an application's quota accounts: the records of the quota book, and a term.

It is a `SchedulerStore`, which lets only the latest term write, under a name whose model part is
empty.
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
    """Usage and claims on quotas, as saved by the last accounts actor."""

    records: Mapping[str, JsonObject]
    """Saved records of usage and claims on quotas, by name."""


class AccountsStore:
    """Store of an application's quota accounts; use it from one event loop.

    Every method raises `StoreError` if Redis is unreachable or refuses a command.

    Args:
        url: One of `redis_url.FORMS`; None: nothing is stored, and terms are taken from the wall
            clock.
        name: Name of the application.
        credentials: User, password and certificates; None for none.
        leader: Record of the process that begins the term; None: this process.
    """

    def __init__(
        self,
        url: str | None,
        name: str,
        credentials: Credentials | None = None,
        leader: LeaderRecord | None = None,
    ) -> None:
        self._store: SchedulerStore | NoStore = NoStore()
        if url is not None:
            self._store = SchedulerStore(url, f"{name}//accounts", credentials, leader)

    async def begin_term(self) -> tuple[Epoch, StoredAccounts]:
        """Begin a new term, numbered above all earlier ones; return the last term's saved state."""
        epoch = await self._store.become_leader()
        stored = await self._store.load()
        return epoch, StoredAccounts(stored.applications)

    async def save(self, epoch: Epoch, records: Mapping[str, JsonObject | None]) -> bool:
        """Write records of usage and claims, unless a later term has begun; None deletes one.

        Returns:
            Whether the store still had this term. If not, the store was emptied or restored from a
                backup, and the caller has to save everything.

        Raises:
            StaleEpoch: If a later term has begun; nothing was written.
        """
        kept = {name: record for name, record in records.items() if record is not None}
        gone = [name for name, record in records.items() if record is None]
        return await self._store.save(epoch, None, kept, gone)

    async def save_all(self, epoch: Epoch, records: Mapping[str, JsonObject]) -> None:
        """Replace all stored records of usage and claims; used after failed saves.

        Raises:
            StaleEpoch: If a later term has begun; nothing was written.
        """
        others = (await self._store.load()).applications.keys() - records.keys()
        if not await self._store.save(epoch, None, records, sorted(others)):
            await self._store.save(epoch, None, records, ())

    async def aclose(self) -> None:
        await self._store.aclose()
