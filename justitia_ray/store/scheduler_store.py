"""What a scheduler keeps in Redis, and the epoch that fences off its predecessor.

For one scheduler in office. Deciding when to save, and batching what changed, is the caller's.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from redis.exceptions import ResponseError

from justitia_ray.store.connection import Connection, Credentials
from justitia_ray.store.migrations import Records, migrated
from justitia_ray.store.office import Holder, StaleEpoch
from justitia_ray.store.scheduler_scripts import MIGRATE, READ, SAVE, TAKE_OFFICE
from justitia_ray.store.schema import (
    SCHEMA_VERSION,
    JsonObject,
    check_version,
    decode_count,
    decode_hash,
    decode_object,
    encode,
    keys_of,
    pairs,
)
from justitia_ray.units import ApplicationId, Epoch, ReplicaId

__all__ = ["DurableState", "SchedulerStore", "StaleEpoch", "StoredState"]

_AT_ONCE = 1_000
"""Records that are encoded before the loop turns, which takes 6 ms, and read with one call."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """What the last scheduler in office left; empty for a new model."""

    clock: JsonObject | None
    applications: dict[ApplicationId, JsonObject]
    """In the order of their ids."""
    settings: JsonObject | None
    replicas: dict[ReplicaId, JsonObject]
    epoch: Epoch | None = None
    """Of who took office last."""
    office: JsonObject | None = None
    """Who that is: `office.Holder.record`."""


class DurableState(Protocol):
    """What a scheduler asks of its store: `SchedulerStore`, or `NoStore`."""

    async def take_office(self, above: Epoch = 0) -> Epoch:
        """See `SchedulerStore.take_office`."""
        ...

    async def load(self) -> StoredState:
        """See `SchedulerStore.load`."""
        ...

    async def save(
        self,
        epoch: Epoch,
        clock: Mapping[str, Any] | None,
        changed: Mapping[ApplicationId, Mapping[str, Any]],
        removed: Iterable[ApplicationId],
        settings: Mapping[str, Any] | None = None,
        replicas: Mapping[ReplicaId, Mapping[str, Any]] | None = None,
    ) -> bool:
        """See `SchedulerStore.save`."""
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...


class SchedulerStore:
    """The store of one model's scheduler; use it from one event loop.

    Every method but `ping` raises `StoreError` if Redis cannot be reached or refuses, and, naming
    the key, if it holds something of another form or version.
    """

    def __init__(
        self,
        url: str,
        name: str,
        credentials: Credentials | None = None,
        holder: Holder | None = None,
    ) -> None:
        """Name the store; nothing is connected yet.

        Args:
            url: One of `redis_url.FORMS`.
            name: `app/model`; stores of different names share nothing.
            credentials: What it takes to be let in; nothing if None.
            holder: Who takes office here, for others to read; this process if None.

        Raises:
            ConfigError: If the URL or the name has another form.
        """
        self._keys = keys_of(name)
        self._holder = holder or Holder()
        self._connection = Connection(url, credentials)
        register = self._connection.client.register_script
        self._take_office = register(TAKE_OFFICE)
        self._migrate = register(MIGRATE)
        self._save = register(SAVE)
        self._read = register(READ)

    async def take_office(self, above: Epoch = 0) -> Epoch:
        """Raise the epoch and return it; writers of lower epochs are refused from now on.

        It is above the stored one, and at least the milliseconds of Redis's clock. So none is given
        out twice, whatever becomes of the data, as long as that clock goes forward and offices are
        not taken by the millisecond. Where the clock falls behind (it was set back, or a server
        with another one took over), an epoch may come again, but only if the data are lost, too.

        Data of an older version are brought to this one's form.

        Args:
            above: The new epoch is above this one, too: one that others were heard to know.

        Raises:
            StaleEpoch: If yet another scheduler took office while data were migrated.
        """
        keys = self._keys
        # Without its brace: the script puts the epoch in front.
        holder = encode(keys.office, self._holder.record(0)).partition(",")[2]
        with self._connection.errors():
            try:
                taken, version = await self._take_office(
                    keys=[keys.schema, keys.epoch, keys.office],
                    args=[SCHEMA_VERSION, above, holder],
                )
            except ResponseError:
                # A script's error names no key. Reading everything does, if a key is to blame.
                await self.load()
                raise
        epoch = int(taken)
        if int(version) < SCHEMA_VERSION:
            await self._bring_up_to_date(epoch, int(version))
        return epoch

    async def _bring_up_to_date(self, epoch: Epoch, version: int) -> None:
        keys = self._keys
        stored = await self.load()
        records = migrated(version, Records(stored.clock, stored.applications))
        arguments: list[str | int] = [
            epoch,
            version,
            SCHEMA_VERSION,
            "" if records.clock is None else encode(keys.clock, records.clock),
        ]
        for name, record in records.applications.items():
            arguments += (name, encode(f"{keys.applications}[{name}]", record))
        with self._connection.errors():
            outcome = await self._migrate(
                keys=[keys.schema, keys.epoch, keys.clock, keys.applications], args=arguments
            )
        if outcome != b"done":
            found = await self.load()
            raise self._stale(epoch, found.epoch or 0, found.office)

    async def load(self) -> StoredState:
        """Return what is stored.

        All of one instant but the applications: they are read in parts, since 200,000 in one answer
        would take longer than an answer is waited for. Nobody writes them but who is in office, so
        for whoever has just taken office they too are of one instant.
        """
        keys = self._keys
        strings = [keys.schema, keys.epoch, keys.office, keys.clock, keys.settings]
        hashes = [keys.replicas, keys.applications]
        applications: list[bytes] = []
        with self._connection.errors():
            *found, count = await self._read(
                keys=[*strings, *hashes], args=["string"] * len(strings) + ["hash", "counted"]
            )
            cursor = 0
            while count:
                cursor, part = await self._connection.client.hscan(
                    keys.applications, cursor, count=_AT_ONCE
                )
                applications += chain.from_iterable(part.items())
                if cursor == 0:
                    break
        schema, epoch, office, clock, settings, replicas = found
        check_version(keys.schema, schema)
        return StoredState(
            clock=decode_object(keys.clock, clock),
            applications=decode_hash(keys.applications, pairs(applications)),
            settings=decode_object(keys.settings, settings),
            replicas=decode_hash(keys.replicas, pairs(replicas)),
            epoch=decode_count(keys.epoch, epoch),
            office=decode_object(keys.office, office),
        )

    async def save(
        self,
        epoch: Epoch,
        clock: Mapping[str, Any] | None,
        changed: Mapping[ApplicationId, Mapping[str, Any]],
        removed: Iterable[ApplicationId],
        settings: Mapping[str, Any] | None = None,
        replicas: Mapping[ReplicaId, Mapping[str, Any]] | None = None,
    ) -> bool:
        """Write what changed, all or nothing, if no later scheduler has taken office.

        Args:
            epoch: What `take_office` returned to this scheduler.
            clock: The virtual clock; None keeps the stored one.
            changed: New and changed applications; the others are kept.
            removed: Applications to forget; applied after `changed`.
            settings: The settings in force; None keeps the stored ones.
            replicas: All known replicas; None keeps the stored ones.

        Returns:
            Whether the store still held this epoch. False says that it was emptied or set back
            meanwhile (a Redis without persistence restarted, a backup was restored): this epoch is
            in office again and nothing else is stored, so save everything.

        Raises:
            StaleEpoch: If a later scheduler has taken office; nothing was written.
            StoreError: If a value is not JSON, too.
        """
        keys = self._keys
        gone = list(removed)
        arguments: list[str | int] = [
            epoch,
            SCHEMA_VERSION,
            encode(keys.office, self._holder.record(epoch)),
            "" if clock is None else encode(keys.clock, clock),
            "" if settings is None else encode(keys.settings, settings),
            *await _fields(keys.applications, changed),
            len(gone),
            *gone,
            "keep" if replicas is None else "replace",
            *await _fields(keys.replicas, replicas or {}),
        ]
        with self._connection.errors():
            try:
                told, holder = await self._save(
                    keys=[
                        keys.schema,
                        keys.epoch,
                        keys.office,
                        keys.clock,
                        keys.settings,
                        keys.applications,
                        keys.replicas,
                    ],
                    args=arguments,
                )
            except ResponseError:
                await self.load()
                raise
        stored = int(told)
        if stored > epoch:
            raise self._stale(epoch, stored, decode_object(keys.office, holder or None))
        return stored == epoch

    def _stale(self, ours: Epoch, theirs: Epoch, office: JsonObject | None) -> StaleEpoch:
        holder = office or {}
        return StaleEpoch(ours, theirs, holder, self._holder.is_succeeded_by(holder))

    async def ping(self) -> bool:
        """Return whether Redis answers."""
        return await self._connection.ping()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._connection.aclose()


async def _fields(key: str, objects: Mapping[str, Mapping[str, Any]]) -> list[str | int]:
    """Return the count and the pairs that the script's `set_fields` takes.

    Lets the loop turn meanwhile: 50,000 applications take 0.3 s.
    """
    arguments: list[str | int] = [len(objects)]
    for number, (name, value) in enumerate(objects.items(), start=1):
        arguments += (name, encode(f"{key}[{name}]", value))
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)
    return arguments
