"""Stores of the predictor: learned statistics, models, and finished applications to learn from.

In Redis one replica of the predictor learns at a time: it holds the lock `prediction:learner` and
writes only while it holds the lock. All replicas add finished applications and read the learned
values.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from redis.exceptions import ResponseError

from justitia_ray.errors import StoreError
from justitia_ray.predictor.versions import VersionIndex, decode_index, encode_index
from justitia_ray.store.connection import Connection, Credentials
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
from justitia_ray.units import Seconds

MOST_WAITING = 20_000
"""Maximum number of finished applications that wait to be learned (some tens of megabytes); the
oldest are dropped.
"""


@dataclass(frozen=True, slots=True)
class StoredPredictions:
    """All stored results of the predictor's learning, in dictionaries by application class."""

    revision: int
    applied: str
    """Redis stream id of the last finished application that was learned."""
    classes: dict[str, JsonObject]
    learning: dict[str, JsonObject]
    models: dict[str, VersionIndex]
    damage: list[str]
    """Messages, one for each stored value that was left out because it could not be read."""


@dataclass(frozen=True, slots=True)
class Learned:
    """Results of learning from some finished applications, by application class."""

    applied: str
    """Redis stream id of the last application that was learned."""
    classes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    learning: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    samples: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """Samples since the last save, by application class."""


# NX, because the predictor may write before any scheduler has become the leader.
ADD_OBSERVED = (
    checking_kinds("string", "stream")
    + """
redis.call('SET', KEYS[1], ARGV[1], 'NX')
for i = 3, #ARGV do redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[2], '*', 'o', ARGV[i]) end
"""
)
"""Redis script that adds finished applications. KEYS: schema, observed. ARGV: version, maximum
number of entries, JSON of each application.
"""

HOLD = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
"""Redis script that takes or extends the learner's lock. KEYS: learner. ARGV: learner's name,
duration in milliseconds.
"""

RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
"""

SAVE = (
    checking_kinds("string", "string", "hash", "hash", "string", "stream", "string")
    + """
local learner, schema, classes, learning, applied, observed, revision = unpack(KEYS, 1, 7)
if redis.call('GET', learner) ~= ARGV[1] then return 0 end
for i = 8, #KEYS do
  local found = redis.call('TYPE', KEYS[i]).ok
  if found ~= 'none' and found ~= 'list' then
    return redis.error_reply('WRONGTYPE ' .. KEYS[i] .. ': is a ' .. found)
  end
end
local at = 4
local function argument()
  at = at + 1
  return ARGV[at]
end
redis.call('SET', schema, ARGV[2], 'NX')
for _, key in ipairs({classes, learning}) do
  for _ = 1, tonumber(argument()) do
    local name = argument()
    redis.call('HSET', key, name, argument())
  end
end
for i = 8, #KEYS do
  for _ = 1, tonumber(argument()) do redis.call('RPUSH', KEYS[i], argument()) end
  redis.call('LTRIM', KEYS[i], -tonumber(ARGV[3]), -1)
end
redis.call('SET', applied, ARGV[4])
redis.call('XTRIM', observed, 'MINID', ARGV[4])
return redis.call('INCR', revision)
"""
)
"""Redis script that saves learned changes. KEYS: learner, schema, classes, learning, applied,
observed, revision, histories. ARGV: see `PredictionStore.save`. Returns the new revision, or 0 if
another replica holds the lock.
"""

SAVE_INDEX = (
    checking_kinds("hash", "string", "string")
    + """
local models, schema, revision, active = unpack(KEYS, 1, 4)
if (redis.call('HGET', models, ARGV[1]) or '') ~= ARGV[2] then return 0 end
redis.call('SET', schema, ARGV[4], 'NX')
redis.call('HSET', models, ARGV[1], ARGV[3])
if ARGV[5] ~= '' then redis.call('SET', active, ARGV[5]) end
for i = 5, #KEYS do redis.call('DEL', KEYS[i]) end
return redis.call('INCR', revision)
"""
)
"""Redis script that replaces a class's index of models. KEYS: models, schema, revision, the active
model, models to delete. ARGV: class, index that was read, index to write, version, bytes of the
active model or empty.
"""


_START = "0-0"
_FIELD = b"o"


class PredictionStore:
    """Redis store of one model's predictor; use it from one event loop.

    Writes are not fenced by the scheduler's epoch. Every method raises `StoreError` if Redis is
    unreachable or refuses, and if a value has another kind or version; the message then names the
    key.

    Args:
        url: One of `redis_url.FORMS`.
        name: `app/model`, the same as the scheduler's.
        credentials: User name and passwords; none are sent if None.

    Raises:
        ConfigError: If the URL or the name is malformed.
    """

    def __init__(self, url: str, name: str, credentials: Credentials | None = None) -> None:
        self._keys = Keys(name)
        self._connection = Connection(url, credentials)
        self._client = self._connection.client
        register = self._client.register_script
        self._read = register(READ)
        self._add_observed = register(ADD_OBSERVED)
        self._hold = register(HOLD)
        self._release = register(RELEASE)
        self._save = register(SAVE)
        self._save_index = register(SAVE_INDEX)

    async def load(self) -> StoredPredictions:
        """Return all learned values; unreadable values are left out and listed in `damage`."""
        keys = self._keys
        read = (
            keys.schema,
            keys.prediction_revision,
            keys.prediction_applied,
            keys.prediction_classes,
            keys.prediction_learning,
            keys.prediction_models,
        )
        async with self._connection.errors():
            found = await self._read(keys=read, args=["string"] * 3 + ["hash"] * 3)
        schema, revision, applied, classes, learning, models = found
        check_version(keys.schema, schema)
        damage: list[str] = []
        return StoredPredictions(
            revision=decode_count(keys.prediction_revision, revision, 0) or 0,
            applied=_START if applied is None else applied.decode(errors="replace"),
            classes=decode_hash(keys.prediction_classes, pairs(classes), damage),
            learning=decode_hash(keys.prediction_learning, pairs(learning), damage),
            models=_read_indexes(keys.prediction_models, pairs(models), damage),
            damage=damage,
        )

    async def revision(self) -> int:
        """Return a number that changes with every change of the stored predictions."""
        key = self._keys.prediction_revision
        async with self._connection.errors():
            return decode_count(key, await self._client.get(key), 0) or 0

    async def load_samples(self, application_class: str) -> tuple[list[JsonObject], int]:
        """Return the samples of a class, oldest first, and the number of unreadable ones."""
        key = self._keys.samples(application_class)
        async with self._connection.errors():
            raw = await self._client.lrange(key, 0, -1)
        samples: list[JsonObject] = []
        for entry in raw:
            with suppress(StoreError):
                samples.append(decode_object(key, entry) or {})
        return samples, len(raw) - len(samples)

    async def load_model(self, application_class: str, version: int) -> bytes | None:
        """Return the bytes of a model; None if the key is missing or has another type."""
        key = self._keys.model(application_class, version)
        async with self._connection.errors():
            try:
                data: bytes | None = await self._client.get(key)
            except ResponseError as error:
                if not str(error).startswith("WRONGTYPE"):
                    raise
                return None
        return data

    async def add_observed(self, observations: Iterable[Mapping[str, Any]]) -> None:
        """Add finished applications that wait to be learned, either all or none.

        Raises:
            StoreError: Also if an observation is not JSON.
        """
        key = self._keys.prediction_observed
        values = [encode(key, observation) for observation in observations]
        async with self._connection.errors():
            await self._add_observed(
                keys=[self._keys.schema, key],
                args=[SCHEMA_VERSION, MOST_WAITING, *values],
            )

    async def observed_count(self) -> int:
        """Return the approximate number of applications that wait to be learned; never too low."""
        async with self._connection.errors():
            return int(await self._client.xlen(self._keys.prediction_observed))

    async def read_observed(self, after: str, count: int) -> list[tuple[str, JsonObject | None]]:
        """Return the next finished applications to learn, with their ids, oldest first.

        An entry that is not a JSON object is returned as None.
        """
        key = self._keys.prediction_observed
        async with self._connection.errors():
            entries = await self._client.xrange(key, min=f"({after}", count=count)
        found: list[tuple[str, JsonObject | None]] = []
        for entry_id, fields in entries:
            try:
                value = decode_object(key, fields.get(_FIELD))
            except StoreError:
                value = None
            found.append((entry_id.decode(), value))
        return found

    async def hold(self, learner: str, for_s: Seconds) -> bool:
        """Acquire or extend the learner's lock; return whether `learner` has it."""
        milliseconds = max(1, round(1000 * for_s))
        async with self._connection.errors():
            key = self._keys.prediction_learner
            return bool(await self._hold(keys=[key], args=[learner, milliseconds]))

    async def release(self, learner: str) -> None:
        """Release the learner's lock if `learner` has it."""
        async with self._connection.errors():
            await self._release(keys=[self._keys.prediction_learner], args=[learner])

    async def save(self, learner: str, learned: Learned, bound: int) -> int | None:
        """Write all changes at once, if `learner` still holds the lock.

        Args:
            learner: Name given to `hold`.
            learned: Changes to write.
            bound: Maximum number of samples stored per class.

        Returns:
            The new revision; None if another replica holds the lock and nothing was written.

        Raises:
            StoreError: Also if a value is not JSON. After any other failure it is unknown whether
                the changes were written.
        """
        keys = self._keys
        arguments: list[str | int] = [learner, SCHEMA_VERSION, bound, learned.applied]
        for key, values in (
            (keys.prediction_classes, learned.classes),
            (keys.prediction_learning, learned.learning),
        ):
            arguments.append(len(values))
            for name, value in values.items():
                arguments += (name, encode(f"{key}[{name}]", value))
        samples = {keys.samples(name): new for name, new in learned.samples.items() if new}
        for key, new in samples.items():
            arguments += (len(new), *(encode(key, sample) for sample in new))
        async with self._connection.errors():
            revision = await self._save(
                keys=[
                    keys.prediction_learner,
                    keys.schema,
                    keys.prediction_classes,
                    keys.prediction_learning,
                    keys.prediction_applied,
                    keys.prediction_observed,
                    keys.prediction_revision,
                    *samples,
                ],
                args=arguments,
            )
        return int(revision) or None

    async def save_index(
        self,
        application_class: str,
        before: VersionIndex,
        after: VersionIndex,
        data: bytes | None = None,
    ) -> int | None:
        """Replace the index of a class's models unless it has changed since it was read.

        Args:
            application_class: Class of the models.
            before: Index that was read; an empty one if there was none.
            after: Index to write. Models that it no longer contains are deleted.
            data: Bytes of the active model, if that is new.

        Returns:
            The new revision; None if the stored index has changed and nothing was written.
        """
        keys = self._keys
        key = keys.prediction_models
        unnamed = [v.number for v in before.versions if after.find(v.number) is None]
        # The active model's key is passed even without new bytes; the script then keeps the model.
        changed = [keys.model(application_class, n) for n in (after.active, *unnamed)]
        async with self._connection.errors():
            raw: bytes | None = await self._client.hget(key, application_class)
            stored = VersionIndex()
            if raw is not None:
                with suppress(ValueError):  # a damaged index is replaced
                    stored = decode_index(raw)
            if stored != before:
                return None
            revision = await self._save_index(
                keys=[key, keys.schema, keys.prediction_revision, *changed],
                args=[
                    application_class,
                    raw if raw is not None else b"",
                    encode_index(after),
                    SCHEMA_VERSION,
                    data if data is not None else b"",
                ],
            )
        return int(revision) or None

    async def aclose(self) -> None:
        await self._connection.aclose()


class PredictionMemory:
    """Predictor store in this process, for `durability: none`; values are JSON, as in Redis.

    Each predictor replica learns separately, from the applications that it receives, and does not
    share its store. The methods are those of `PredictionStore`.
    """

    def __init__(self, wall: Callable[[], Seconds] = time.time) -> None:
        self._wall = wall
        self.classes: dict[str, str] = {}
        self.learning: dict[str, str] = {}
        self.models: dict[str, VersionIndex] = {}
        self.data: dict[tuple[str, int], bytes] = {}
        self.samples: dict[str, list[str]] = {}
        self.observed: list[tuple[str, str]] = []
        self.applied = ""
        self.changes = 0
        self._last = (0, 0)
        """Last stream id: milliseconds, and number among the ids of that millisecond."""

    async def load(self) -> StoredPredictions:
        return StoredPredictions(
            self.changes,
            self.applied,
            {name: json.loads(value) for name, value in self.classes.items()},
            {name: json.loads(value) for name, value in self.learning.items()},
            dict(self.models),
            [],
        )

    async def revision(self) -> int:
        return self.changes

    async def load_samples(self, application_class: str) -> tuple[list[JsonObject], int]:
        return [json.loads(value) for value in self.samples.get(application_class, [])], 0

    async def load_model(self, application_class: str, version: int) -> bytes | None:
        return self.data.get((application_class, version))

    async def add_observed(self, observations: Iterable[Mapping[str, Any]]) -> None:
        """Add finished applications that wait to be learned; drop the oldest above the limit."""
        for observation in observations:
            self.observed.append((self._next_id(), json.dumps(observation)))
        del self.observed[:-MOST_WAITING]

    async def observed_count(self) -> int:
        return len(self.observed)

    async def read_observed(self, after: str, count: int) -> list[tuple[str, JsonObject | None]]:
        later = ((name, value) for name, value in self.observed if name > after)
        return [(name, json.loads(value)) for name, value in later][:count]

    async def hold(self, learner: str, for_s: Seconds) -> bool:
        """Return True, because a predictor without Redis is the only learner."""
        return True

    async def release(self, learner: str) -> None:
        """Do nothing: a predictor without Redis is the only learner."""

    async def save(self, learner: str, learned: Learned, bound: int) -> int | None:
        """Store changes, with the latest `bound` samples of each class."""
        self.classes |= {name: json.dumps(value) for name, value in learned.classes.items()}
        self.learning |= {name: json.dumps(value) for name, value in learned.learning.items()}
        for name, new in learned.samples.items():
            kept = self.samples.setdefault(name, [])
            kept += [json.dumps(value) for value in new]
            del kept[:-bound]
        self.applied = learned.applied
        self.observed = [entry for entry in self.observed if entry[0] > learned.applied]
        self.changes += 1
        return self.changes

    async def save_index(
        self,
        application_class: str,
        before: VersionIndex,
        after: VersionIndex,
        data: bytes | None = None,
    ) -> int | None:
        """Replace a class's index, and store the active model, unless the index has changed."""
        if self.models.get(application_class, VersionIndex()) != before:
            return None
        self.models[application_class] = after
        if data is not None:
            self.data[application_class, after.active] = data
        for version in before.versions:
            if after.find(version.number) is None:
                self.data.pop((application_class, version.number), None)
        self.changes += 1
        return self.changes

    async def aclose(self) -> None:
        """Do nothing: there is no connection to close."""

    def _next_id(self) -> str:
        """Return the next id: a Redis stream id that can be sorted as text."""
        now_ms = int(1000 * self._wall())
        at_ms, count = self._last
        self._last = (now_ms, 0) if now_ms > at_ms else (at_ms, count + 1)
        return f"{self._last[0]:013}-{self._last[1]:09}"


AnyPredictionStore: TypeAlias = PredictionStore | PredictionMemory
"""Store of a predictor, in Redis or in this process."""


def _read_indexes(
    key: str, raw: Mapping[bytes, bytes], damage: list[str]
) -> dict[str, VersionIndex]:
    found: dict[str, VersionIndex] = {}
    for name, value in sorted(raw.items()):
        try:
            found[name.decode()] = decode_index(value)
        except ValueError as error:
            damage.append(f"{key}[{name.decode(errors='replace')}]: {error}")
    return found
