"""What a scheduler keeps in Redis, and the epoch that fences off its predecessor.

For one scheduler in office. Deciding when to save, and batching what changed, is the caller's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from justitia_ray.errors import StoreError
from justitia_ray.store.connection import Connection
from justitia_ray.store.schema import (
    SCHEMA_VERSION,
    JsonObject,
    check_version,
    decode_count,
    decode_hash,
    decode_object,
    encode,
    keys_of,
)
from justitia_ray.units import ApplicationId, Epoch, ReplicaId

# One script, so that no office is taken on data that this version cannot read.
_TAKE_OFFICE = """
local schema, epoch = KEYS[1], KEYS[2]
local version = redis.call('GET', schema)
if not version then
  redis.call('SET', schema, ARGV[1])
elseif version ~= ARGV[1] then
  return redis.error_reply('ERR other schema version')
end
return redis.call('INCR', epoch)
"""

# One script, so that nothing comes between the look at the epoch and the writes. A script that
# fails is not undone, so everything that can fail comes before the first write.
# Returns the epoch that was stored. HSET is called pair by pair: unpack() is bounded in Lua.
_SAVE = """
for i, expected in ipairs({'string', 'string', 'string', 'string', 'hash', 'hash'}) do
  local found = redis.call('TYPE', KEYS[i]).ok
  if found ~= 'none' and found ~= expected then return redis.error_reply('WRONGTYPE') end
end
local schema, epoch, clock, settings, applications, replicas = unpack(KEYS)
local stored, ours = tonumber(redis.call('GET', epoch) or 0), tonumber(ARGV[1])
if not stored then return redis.error_reply('ERR epoch is no number') end
if stored > ours then return stored end
if stored < ours then
  redis.call('SET', schema, ARGV[2])
  redis.call('SET', epoch, ARGV[1])
end

local at = 2
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
return stored
"""


class StaleEpoch(StoreError):
    """Another scheduler took office since; the one that sees this has to end itself.

    Attributes:
        ours: Epoch of the scheduler that tried to save.
        theirs: Epoch in the store, greater than ours.
    """

    def __init__(self, ours: Epoch, theirs: Epoch) -> None:
        super().__init__(ours, theirs)
        self.ours = ours
        self.theirs = theirs

    def __str__(self) -> str:
        return f"epoch {self.theirs} is in office, epoch {self.ours} may no longer write"


@dataclass(frozen=True, slots=True)
class StoredState:
    """What the last scheduler in office left; empty for a new model."""

    clock: JsonObject | None
    applications: dict[ApplicationId, JsonObject]
    """In the order of their ids."""
    settings: JsonObject | None
    replicas: dict[ReplicaId, JsonObject]


class SchedulerStore:
    """The store of one model's scheduler; use it from one event loop.

    Every method but `ping` raises `StoreError` if Redis cannot be reached or refuses, and, naming
    the key, if it holds something of another form or version.
    """

    def __init__(self, url: str, name: str, password: str | None = None) -> None:
        """Name the store; nothing is connected yet.

        Args:
            url: Redis's URL: `redis://`, `rediss://` or `unix://`.
            name: `app/model`; stores of different names share nothing.
            password: Used if the URL holds none.

        Raises:
            ConfigError: If the URL or the name has another form.
        """
        self._keys = keys_of(name)
        self._connection = Connection(url, password)
        self._take_office = self._connection.client.register_script(_TAKE_OFFICE)
        self._save = self._connection.client.register_script(_SAVE)

    async def take_office(self) -> Epoch:
        """Raise the epoch and return it; writers of lower epochs are refused from now on."""
        keys = self._keys
        with self._connection.errors():
            try:
                epoch = await self._take_office(
                    keys=[keys.schema, keys.epoch], args=[SCHEMA_VERSION]
                )
            except ResponseError:
                # A script's error names no key. Reading everything does, if a key is to blame.
                await self.load()
                raise
        return int(epoch)

    async def load(self) -> StoredState:
        """Return what is stored, all of one instant."""
        keys = self._keys
        with self._connection.errors():
            async with self._connection.client.pipeline(transaction=True) as pipeline:
                pipeline.get(keys.schema)
                pipeline.get(keys.epoch)
                pipeline.get(keys.clock)
                pipeline.get(keys.settings)
                pipeline.hgetall(keys.applications)
                pipeline.hgetall(keys.replicas)
                replies = await pipeline.execute(raise_on_error=False)
        read = (
            keys.schema,
            keys.epoch,
            keys.clock,
            keys.settings,
            keys.applications,
            keys.replicas,
        )
        for key, reply in zip(read, replies, strict=True):
            if isinstance(reply, Exception):
                raise StoreError(f"{key}: {reply}") from reply
        schema, epoch, clock, settings, applications, replicas = replies
        check_version(keys.schema, schema)
        decode_count(keys.epoch, epoch)
        return StoredState(
            clock=decode_object(keys.clock, clock),
            applications=decode_hash(keys.applications, applications),
            settings=decode_object(keys.settings, settings),
            replicas=decode_hash(keys.replicas, replicas),
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
            in office again, but only what was passed is certain to be stored, so save everything.

        Raises:
            StaleEpoch: If a later scheduler has taken office; nothing was written.
            StoreError: If a value is not JSON, too.
        """
        keys = self._keys
        gone = list(removed)
        arguments: list[str | int] = [
            epoch,
            SCHEMA_VERSION,
            "" if clock is None else encode(keys.clock, clock),
            "" if settings is None else encode(keys.settings, settings),
            *_fields(keys.applications, changed),
            len(gone),
            *gone,
            "keep" if replicas is None else "replace",
            *_fields(keys.replicas, replicas or {}),
        ]
        with self._connection.errors():
            try:
                reply = await self._save(
                    keys=[
                        keys.schema,
                        keys.epoch,
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
        stored = int(reply)
        if stored > epoch:
            raise StaleEpoch(epoch, stored)
        return stored == epoch

    async def ping(self) -> bool:
        """Return whether Redis answers."""
        return await self._connection.ping()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._connection.aclose()


def _fields(key: str, objects: Mapping[str, Mapping[str, Any]]) -> list[str | int]:
    """Return the count and the pairs that the script's `set_fields` takes."""
    arguments: list[str | int] = [len(objects)]
    for name, value in objects.items():
        arguments += (name, encode(f"{key}[{name}]", value))
    return arguments
