"""The scheduler's durable state in Redis, and the epoch that stops writes of earlier schedulers.

The store is used by the leading scheduler. The caller decides when to save, and collects the
changes.

Every write is a Lua script, executed whole or not at all. A failing script is not rolled back, so
everything that can fail comes before the first write. Numbers are formatted with %.0f because Lua's
numbers are doubles and an epoch taken from the wall clock has 13 digits.
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

# One script checks the data's version first, so that only readable data get a new leader.
# Epochs are at least Redis's clock in ms, so that none repeats after the store is emptied.
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
"""Redis script that makes a scheduler the leader. KEYS: schema, epoch, leader. ARGV: this version,
lower bound of the epoch, the leader's JSON without its opening brace and epoch. Returns the new
epoch and the version of the data.
"""

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
"""Redis script that replaces stored data by their migrated form. KEYS: schema, epoch, clock,
applications. ARGV: own epoch, old version, new version, the clock or empty, alternating application
names and records.
"""

# One script checks the epoch and writes, so that both are atomic.
# HSET is called for each pair, because Lua's unpack() is limited.
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
"""Script that saves changes if no later scheduler leads. KEYS: schema, epoch, leader, clock,
settings, applications, replicas, then the usage of each day. ARGV: see `SchedulerStore.save`.
Returns the stored epoch and, if that is a later one, its leader. If the stored epoch is an earlier
one, the store was emptied or restored from a backup. Then the stored data are outdated and the
passed changes incomplete, so the script stores only the epoch, and the caller has to save
everything.
"""


UsageRecords: TypeAlias = dict[Day, dict[ClientId, JsonObject]]
_USAGE_KEPT_S = 400 * DAY_S

_AT_ONCE = 1_000
"""Number of records that are encoded before the event loop runs again (6 ms), or read with one
call.
"""


@dataclass(frozen=True, slots=True)
class StoredState:
    """State that the last leader has saved; empty for a new model."""

    clock: JsonObject | None
    applications: dict[ApplicationId, JsonObject]
    """Records of applications, sorted by id."""
    settings: JsonObject | None
    replicas: dict[ReplicaId, JsonObject]
    epoch: Epoch | None = None
    """Epoch of the last leader; None if there was none."""
    leader: JsonObject | None = None
    """Record of the last leader, see `LeaderRecord.record`; None if there was none."""
    usage: UsageRecords = field(default_factory=dict)
    """Usage of the last days; empty unless it was requested."""


class SchedulerStore:
    """Redis store of one model's scheduler; use it from one event loop.

    Every method but `ping` raises `StoreError` if Redis is unreachable or refuses, and if a value
    has another form or version; the message then names the key.

    Args:
        url: One of `redis_url.FORMS`.
        name: `app/model`; stores with different names are separate.
        credentials: User, password and certificates; None for none.
        leader: Record of the process that becomes the leader; None: this process.

    Raises:
        ConfigError: If the URL or the name is malformed.
    """

    def __init__(
        self,
        url: str,
        name: str,
        credentials: Credentials | None = None,
        leader: LeaderRecord | None = None,
    ) -> None:
        self._keys = Keys(name)
        self._leader = leader or LeaderRecord()
        self._connection = Connection(url, credentials)
        register = self._connection.client.register_script
        self._become_leader = register(_BECOME_LEADER)
        self._migrate = register(_MIGRATE)
        self._save = register(_SAVE)
        self._read = register(READ)

    async def become_leader(self, above: Epoch = 0) -> Epoch:
        """Become the leader; return the new epoch, which blocks writes with lower epochs.

        The new epoch is above the stored one, and at least the milliseconds of Redis's clock. So no
        epoch repeats, even if the data are lost, as long as that clock goes forward and leaders
        change less often than once a millisecond. If the clock goes back (it was reset, or a server
        with another clock took over), an epoch may repeat, but only if the data are lost too.

        Data of an older version are migrated.

        Args:
            above: Another lower bound of the new epoch: the highest one known to callers.

        Raises:
            StaleEpoch: If another scheduler became the leader while data were migrated.
        """
        keys = self._keys
        # The script inserts the epoch into the leader's JSON, after its opening brace.
        leader = encode(keys.leader, self._leader.record(0)).partition(",")[2]
        async with self._connection.errors():
            try:
                taken, version = await self._become_leader(
                    keys=[keys.schema, keys.epoch, keys.leader],
                    args=[SCHEMA_VERSION, above, leader],
                )
            except ResponseError:
                # The script's error names no key, but an error of load() does.
                await self.load()
                raise
        epoch = int(taken)
        if int(version) < SCHEMA_VERSION:
            await self._migrate_records(epoch, int(version))
        return epoch

    async def _migrate_records(self, epoch: Epoch, version: int) -> None:
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
            raise self._stale_epoch(epoch, found.epoch or 0, found.leader)

    async def load(self) -> StoredState:
        """Return the stored state of the scheduler.

        All values except the applications are read as one snapshot. The applications are read in
        parts, because 200,000 of them in one answer would exceed the timeout. Only the leader
        writes them, so they are consistent for a scheduler that has just become the leader.
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
        """Write all changes at once, if no later scheduler leads.

        Args:
            epoch: Epoch that `become_leader` returned to this scheduler.
            clock: The virtual clock; None keeps the stored one.
            changed: New and changed applications; others are kept.
            removed: Applications to delete; applied after `changed`.
            settings: The current settings; None keeps the stored ones.
            replicas: All known replicas; None keeps the stored ones.
            usage: Totals that changed, by day and tenant; others are kept.

        Returns:
            Whether the store still had this epoch. False means that the store was emptied or
                restored from a backup meanwhile, e.g. because a Redis without persistence
                restarted. Then this epoch is stored again but nothing else, so the caller has to
                save everything.

        Raises:
            StaleEpoch: If a later scheduler leads; nothing was written.
            StoreError: Also if a value is not JSON.
        """
        keys = self._keys
        gone = list(removed)
        arguments: list[str | int] = [
            epoch,
            SCHEMA_VERSION,
            encode(keys.leader, self._leader.record(epoch)),
            "" if clock is None else encode(keys.clock, clock),
            "" if settings is None else encode(keys.settings, settings),
            *await _field_arguments(keys.applications, changed),
            len(gone),
            *gone,
            "keep" if replicas is None else "replace",
            *await _field_arguments(keys.replicas, replicas or {}),
        ]
        used = sorted((usage or {}).items())
        for day, of_day in used:
            arguments += (*await _field_arguments(keys.usage(day), of_day), _USAGE_KEPT_S)
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
            raise self._stale_epoch(epoch, stored, decode_object(keys.leader, leader or None))
        return stored == epoch

    async def load_usage(self, days: Iterable[Day]) -> UsageRecords:
        """Return the totals of the given days, by day and tenant; unused days are missing."""
        keys, found = self._keys, {}
        for day in days:
            async with self._connection.errors():
                raw = await self._connection.client.hgetall(keys.usage(day))
            if raw:
                found[day] = decode_hash(keys.usage(day), raw)
        return found

    def _stale_epoch(self, ours: Epoch, theirs: Epoch, leader: JsonObject | None) -> StaleEpoch:
        return StaleEpoch(ours, theirs, leader, self._leader.is_succeeded_by(leader or {}))

    async def ping(self) -> bool:
        return await self._connection.ping()

    async def aclose(self) -> None:
        await self._connection.aclose()


async def _field_arguments(key: str, objects: Mapping[str, Mapping[str, Any]]) -> list[str | int]:
    """Return the arguments of the script's `set_fields`: the count, then names and values.

    The event loop runs in between, because 50,000 applications take 0.3 s.
    """
    arguments: list[str | int] = [len(objects)]
    for number, (name, value) in enumerate(objects.items(), start=1):
        arguments += (name, encode(f"{key}[{name}]", value))
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)
    return arguments


class NoStore:
    """Scheduler store for `durability: none`: nothing is stored, epochs are wall-clock ms.

    Epochs rise across restarts as long as the clocks of the scheduler's nodes agree to within the
    time of a restart. If a clock was set back, callers have a higher epoch, and the scheduler takes
    an epoch above it with their first call. Without a store, two schedulers with the same name do
    not detect each other.
    """

    def __init__(self, wall: Callable[[], Seconds] = time.time) -> None:
        self._wall = wall

    async def become_leader(self, above: Epoch = 0) -> Epoch:
        return max(int(1000 * self._wall()), above + 1)

    async def load(self) -> StoredState:
        return StoredState(clock=None, applications={}, settings=None, replicas={})

    async def save(self, *changes: object) -> bool:
        return True

    async def load_usage(self, days: Iterable[Day]) -> UsageRecords:
        return {}

    async def aclose(self) -> None:
        """Do nothing: there is no connection to close."""


DurableState: TypeAlias = SchedulerStore | NoStore
"""Store of a scheduler: in Redis, or none."""
