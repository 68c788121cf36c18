"""The scheduler's durable state in Redis, and the epoch that fences off its predecessor.

For one scheduler that leads. Deciding when to save, and batching what changed, is the caller's.

Every write is a Lua script, executed whole or not at all. A script that fails is not undone, so
everything that can fail comes before the first write. Numbers are formatted with %.0f: Lua's are
doubles, and an epoch taken from the wall clock has 13 digits.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from redis.exceptions import ResponseError

from justitia_ray.core.usage import DAY_S, Day
from justitia_ray.store.connection import Connection, Credentials
from justitia_ray.store.leader import LeaderRecord, StaleEpoch
from justitia_ray.store.migrations import Records, migrated
from justitia_ray.store.schema import (
    READ,
    SCHEMA_VERSION,
    JsonObject,
    Keys,
    check_version,
    checking_kinds,
    decode_count,
    decode_hash,
    decode_object,
    encode,
    pairs,
)
from justitia_ray.units import ApplicationId, ClientId, Epoch, ReplicaId, Seconds

_EPOCH = """
local function epoch_in(key)
  local text = redis.call('GET', key) or '0'
  if not string.match(text, '^%d+$') then return nil end
  return tonumber(text)
end
"""

# One script, so that no scheduler becomes the leader on data that this version cannot read. An
# epoch is never below the milliseconds of Redis's clock. From 1, or only one above the stored one,
# it could be one that was given out before: a store that was emptied knows no more than a living
# scheduler has put back into it, and that need not be the latest.
_BECOME_LEADER = (
    checking_kinds("string", "string")
    + _EPOCH
    + """
local schema, epoch, leader = unpack(KEYS)
local version = redis.call('GET', schema) or ARGV[1]
if not string.match(version, '^[1-9]%d*$') or tonumber(version) > tonumber(ARGV[1]) then
  return redis.error_reply('ERR other schema version')
end
local stored = epoch_in(epoch)
if not stored then return redis.error_reply('ERR epoch is no number') end
local now = redis.call('TIME')
local now_ms = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
local taken = string.format('%.0f', math.max(stored + 1, tonumber(ARGV[2]) + 1, now_ms))
redis.call('SET', schema, version)
redis.call('SET', epoch, taken)
redis.call('SET', leader, '{"epoch":' .. taken .. ',' .. ARGV[3])
return {taken, version}
"""
)
"""KEYS: schema, epoch, leader. ARGV: this version, an epoch to be above, the leader's JSON without
its brace. Returns the new epoch and the version of the data."""

_MIGRATE = (
    checking_kinds("string", "string", "string", "hash")
    + _EPOCH
    + """
local schema, epoch, clock, applications = unpack(KEYS)
if epoch_in(epoch) ~= tonumber(ARGV[1]) then return 'overtaken' end
if redis.call('GET', schema) ~= ARGV[2] then return 'overtaken' end
if ARGV[4] ~= '' then redis.call('SET', clock, ARGV[4]) end
redis.call('DEL', applications)
for i = 5, #ARGV, 2 do redis.call('HSET', applications, ARGV[i], ARGV[i + 1]) end
redis.call('SET', schema, ARGV[3])
return 'done'
"""
)
"""KEYS: schema, epoch, clock, applications. ARGV: our epoch, from which version, to which, the
clock or nothing, applications and their records by turns."""

# One script, so that nothing comes between the look at the epoch and the writes.
# HSET is called pair by pair: unpack() is bounded in Lua.
_SAVE = (
    checking_kinds("string", "string", "string", "string", "string", "hash", "hash")
    + _EPOCH
    + """
local schema, epoch, leader, clock, settings, applications, replicas = unpack(KEYS)
local stored, ours = epoch_in(epoch), tonumber(ARGV[1])
if not stored then return redis.error_reply('ERR epoch is no number') end
local told = string.format('%.0f', stored)
if stored > ours then return {told, redis.call('GET', leader) or ''} end
if stored < ours then
  redis.call('SET', schema, ARGV[2])
  redis.call('SET', epoch, ARGV[1])
  redis.call('SET', leader, ARGV[3])
  redis.call('DEL', clock, applications, replicas)
  return {told, ''}
end

local at = 3
local function argument()
  at = at + 1
  return ARGV[at]
end
local function set_string(key)
  local value = argument()
  if value ~= '' then redis.call('SET', key, value) end
end
local function set_fields(key)
  for _ = 1, tonumber(argument()) do
    local field = argument()
    redis.call('HSET', key, field, argument())
  end
end

set_string(clock)
set_string(settings)
set_fields(applications)
for _ = 1, tonumber(argument()) do redis.call('HDEL', applications, argument()) end
if argument() == 'replace' then redis.call('DEL', replicas) end
set_fields(replicas)
for i = 8, #KEYS do
  set_fields(KEYS[i])
  redis.call('EXPIRE', KEYS[i], argument())
end
return {told, ''}
"""
)
"""KEYS: schema, epoch, leader, clock, settings, applications, replicas, then the usage of days.
ARGV: see `SchedulerStore.save`. Returns the epoch that was stored, and, if that is a later one, its
leader. If that is an earlier one (the store was emptied or set back), the stored data are of
another time, and the new data are a part only: the store is left with the epoch alone, for all to
be written."""


UsageRecords: TypeAlias = dict[Day, dict[ClientId, JsonObject]]
_USAGE_KEPT_S = 400 * DAY_S

_AT_ONCE = 1_000
"""Records that are encoded before the loop turns, which takes 6 ms, and read with one call."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """State that the last leader left; empty for a new model."""

    clock: JsonObject | None
    applications: dict[ApplicationId, JsonObject]
    """In the order of their ids."""
    settings: JsonObject | None
    replicas: dict[ReplicaId, JsonObject]
    epoch: Epoch | None = None
    """Epoch of the last leader."""
    leader: JsonObject | None = None
    """Record of the last leader; see `LeaderRecord.record`."""
    usage: UsageRecords = field(default_factory=dict)
    """Usage of the last days; empty unless it was asked for."""


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
        leader: LeaderRecord | None = None,
    ) -> None:
        """Name the store; nothing is connected yet.

        Args:
            url: One of `redis_url.FORMS`.
            name: `app/model`; stores of different names share nothing.
            credentials: User, password and certificates; None for none.
            leader: Process that becomes the leader, for others to read; this one if None.

        Raises:
            ConfigError: If the URL or the name has another form.
        """
        self._keys = Keys(name)
        self._leader = leader or LeaderRecord()
        self._connection = Connection(url, credentials)
        register = self._connection.client.register_script
        self._become_leader = register(_BECOME_LEADER)
        self._migrate = register(_MIGRATE)
        self._save = register(_SAVE)
        self._read = register(READ)

    async def become_leader(self, above: Epoch = 0) -> Epoch:
        """Raise the epoch and return it; writers of lower epochs are refused from now on.

        The new epoch is above the stored one, and at least the milliseconds of Redis's clock. So
        no epoch is given out twice, whatever becomes of the data, as long as that clock goes
        forward and leaders do not change by the millisecond. Where the clock falls behind (it was
        set back, or a server with another one took over), an epoch may come again, but only if the
        data are lost, too.

        Data of an older version are brought to this one's form.

        Args:
            above: The new epoch is above this one, too: an epoch that callers know.

        Raises:
            StaleEpoch: If yet another scheduler became the leader while data were migrated.
        """
        keys = self._keys
        # Without its brace: the script puts the epoch in front.
        leader = encode(keys.leader, self._leader.record(0)).partition(",")[2]
        async with self._connection.errors():
            try:
                taken, version = await self._become_leader(
                    keys=[keys.schema, keys.epoch, keys.leader],
                    args=[SCHEMA_VERSION, above, leader],
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
        async with self._connection.errors():
            outcome = await self._migrate(
                keys=[keys.schema, keys.epoch, keys.clock, keys.applications], args=arguments
            )
        if outcome != b"done":
            found = await self.load()
            raise self._stale(epoch, found.epoch or 0, found.leader)

    async def load(self) -> StoredState:
        """Return the stored state.

        All of one instant but the applications, which are read in parts: 200,000 in one answer
        would take longer than an answer is waited for. Only the leader writes them, so for a
        scheduler that has just become the leader they too are of one instant.
        """
        keys = self._keys
        strings = [keys.schema, keys.epoch, keys.leader, keys.clock, keys.settings]
        hashes = [keys.replicas, keys.applications]
        async with self._connection.errors():
            *found, _ = await self._read(
                keys=[*strings, *hashes], args=["string"] * len(strings) + ["hash", "counted"]
            )
            parts = self._connection.client.hscan_iter(keys.applications, count=_AT_ONCE)
            applications = {name: record async for name, record in parts}
        schema, epoch, leader, clock, settings, replicas = found
        check_version(keys.schema, schema)
        return StoredState(
            clock=decode_object(keys.clock, clock),
            applications=decode_hash(keys.applications, applications),
            settings=decode_object(keys.settings, settings),
            replicas=decode_hash(keys.replicas, pairs(replicas)),
            epoch=decode_count(keys.epoch, epoch),
            leader=decode_object(keys.leader, leader),
        )

    async def save(
        self,
        epoch: Epoch,
        clock: Mapping[str, Any] | None,
        changed: Mapping[ApplicationId, Mapping[str, Any]],
        removed: Iterable[ApplicationId],
        settings: Mapping[str, Any] | None = None,
        replicas: Mapping[ReplicaId, Mapping[str, Any]] | None = None,
        usage: Mapping[Day, Mapping[ClientId, Mapping[str, Any]]] | None = None,
    ) -> bool:
        """Write what changed, all or nothing, if no later scheduler leads.

        Args:
            epoch: Epoch that `become_leader` returned to this scheduler.
            clock: The virtual clock; None keeps the stored one.
            changed: New and changed applications; the others are kept.
            removed: Applications to forget; applied after `changed`.
            settings: The settings in force; None keeps the stored ones.
            replicas: All known replicas; None keeps the stored ones.
            usage: Totals that changed, by day and tenant; the others are kept.

        Returns:
            Whether the store still held this epoch. False says that the store was emptied or set
            back meanwhile (a Redis without persistence restarted, a backup was restored): this
            epoch leads again and nothing else is stored, so save everything.

        Raises:
            StaleEpoch: If a later scheduler leads; nothing was written.
            StoreError: If a value is not JSON, too.
        """
        keys = self._keys
        gone = list(removed)
        arguments: list[str | int] = [
            epoch,
            SCHEMA_VERSION,
            encode(keys.leader, self._leader.record(epoch)),
            "" if clock is None else encode(keys.clock, clock),
            "" if settings is None else encode(keys.settings, settings),
            *await _fields(keys.applications, changed),
            len(gone),
            *gone,
            "keep" if replicas is None else "replace",
            *await _fields(keys.replicas, replicas or {}),
        ]
        used = sorted((usage or {}).items())
        for day, of_day in used:
            arguments += (*await _fields(keys.usage(day), of_day), _USAGE_KEPT_S)
        async with self._connection.errors():
            try:
                told, leader = await self._save(
                    keys=[
                        keys.schema,
                        keys.epoch,
                        keys.leader,
                        keys.clock,
                        keys.settings,
                        keys.applications,
                        keys.replicas,
                        *(keys.usage(day) for day, _ in used),
                    ],
                    args=arguments,
                )
            except ResponseError:
                await self.load()
                raise
        stored = int(told)
        if stored > epoch:
            raise self._stale(epoch, stored, decode_object(keys.leader, leader or None))
        return stored == epoch

    async def load_usage(self, days: Iterable[Day]) -> UsageRecords:
        """Return the totals of each of these days of which there are any, by tenant."""
        keys, found = self._keys, {}
        for day in days:
            async with self._connection.errors():
                raw = await self._connection.client.hgetall(keys.usage(day))
            if raw:
                found[day] = decode_hash(keys.usage(day), raw)
        return found

    def _stale(self, ours: Epoch, theirs: Epoch, leader: JsonObject | None) -> StaleEpoch:
        return StaleEpoch(ours, theirs, leader, self._leader.is_succeeded_by(leader or {}))

    async def ping(self) -> bool:
        """Return whether Redis answers."""
        return await self._connection.ping()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._connection.aclose()


async def _fields(key: str, objects: Mapping[str, Mapping[str, Any]]) -> list[str | int]:
    """Return the count and the pairs that the script's `set_fields` takes.

    The event loop turns meanwhile: 50,000 applications take 0.3 s.
    """
    arguments: list[str | int] = [len(objects)]
    for number, (name, value) in enumerate(objects.items(), start=1):
        arguments += (name, encode(f"{key}[{name}]", value))
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)
    return arguments


class NoStore:
    """The scheduler's store under `durability: none`: epochs are the wall clock's milliseconds.

    Epochs rise over restarts as long as the wall clocks of the nodes on which the scheduler is
    started agree to within the time that a restart takes. Where a clock was set back, callers know
    a higher epoch, and the scheduler takes an epoch above it as soon as one of them calls. Without
    a store there is no fence: two schedulers of one name do not learn of each other here.
    """

    def __init__(self, wall: Callable[[], Seconds] = time.time) -> None:
        self._wall = wall

    async def become_leader(self, above: Epoch = 0) -> Epoch:
        """Return a new epoch."""
        return max(int(1000 * self._wall()), above + 1)

    async def load(self) -> StoredState:
        """Return an empty state."""
        return StoredState(clock=None, applications={}, settings=None, replicas={})

    async def save(self, *changes: object) -> bool:
        """Write nothing, and say that all of it was written."""
        return True

    async def load_usage(self, days: Iterable[Day]) -> UsageRecords:
        """Return nothing."""
        return {}

    async def aclose(self) -> None:
        """Do nothing: nothing is open."""


DurableState: TypeAlias = SchedulerStore | NoStore
"""Store of a scheduler: in Redis, or none."""
