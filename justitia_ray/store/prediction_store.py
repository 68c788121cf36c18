"""What the predictor keeps in Redis: what was learned, models, and what has yet to be learned.

One replica of the predictor learns at a time: it holds `prediction:learner`, and writes only while
it does. All of them add to what is to be learned, and read what was.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import WatchError

from justitia_ray.errors import StoreError
from justitia_ray.predictor.versions import VersionIndex, decode_index, encode_index
from justitia_ray.store.connection import Connection
from justitia_ray.store.schema import (
    SCHEMA_VERSION,
    JsonObject,
    check_version,
    decode_object,
    encode,
    keys_of,
)
from justitia_ray.units import Seconds

MOST_WAITING = 20_000
"""Finished applications that wait to be learned; the oldest go first. Some tens of megabytes."""

_START = "0-0"
_FIELD = b"o"

# The holder's time begins anew; nobody else gets in meanwhile.
_HOLD = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""


@dataclass(frozen=True, slots=True)
class StoredPredictions:
    """What was learned, all of one instant; each by class."""

    revision: int
    applied: str
    """Id of the last finished application in it."""
    classes: dict[str, JsonObject]
    learning: dict[str, JsonObject]
    models: dict[str, VersionIndex]
    damage: list[str]
    """A sentence for each value that has another form and was left out."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What changed by learning from some finished applications; each by class."""

    applied: str
    """Id of the last of them."""
    classes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    learning: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    samples: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """New ones only."""


class PredictionStore:
    """The store of one model's predictor; use it from one event loop.

    Not fenced by the scheduler's epoch. Every method but `ping` raises `StoreError` if Redis cannot
    be reached or refuses, and, naming the key, if it holds something of another kind or version.
    """

    def __init__(self, url: str, name: str, password: str | None = None) -> None:
        """Name the store; nothing is connected yet.

        Args:
            url: Redis's URL: `redis://`, `rediss://` or `unix://`.
            name: `app/model`, the same as the scheduler's.
            password: Used if the URL holds none.

        Raises:
            ConfigError: If the URL or the name has another form.
        """
        self._keys = keys_of(name)
        self._connection = Connection(url, password)
        # Its types leave open whether answers are text; here they are bytes.
        self._client: Any = self._connection.client
        self._hold = self._client.register_script(_HOLD)

    async def load(self) -> StoredPredictions:
        """Return what was learned; a value of another form is left out, and named."""
        keys = self._keys
        read = (
            keys.schema,
            keys.prediction_revision,
            keys.prediction_applied,
            keys.prediction_classes,
            keys.prediction_learning,
            keys.prediction_models,
        )
        with self._connection.errors():
            async with self._client.pipeline(transaction=True) as pipeline:
                for key in read[:3]:
                    pipeline.get(key)
                for key in read[3:]:
                    pipeline.hgetall(key)
                replies = await pipeline.execute(raise_on_error=False)
        for key, reply in zip(read, replies, strict=True):
            if isinstance(reply, Exception):
                raise StoreError(f"{key}: {reply}") from reply
        schema, revision, applied, classes, learning, models = replies
        check_version(keys.schema, schema)
        damage: list[str] = []
        return StoredPredictions(
            revision=_integer(keys.prediction_revision, revision),
            applied=_START if applied is None else applied.decode(errors="replace"),
            classes=_objects(keys.prediction_classes, classes, damage),
            learning=_objects(keys.prediction_learning, learning, damage),
            models=_indexes(keys.prediction_models, models, damage),
            damage=damage,
        )

    async def revision(self) -> int:
        """Return a number that is another after every change of what `load` returns."""
        key = self._keys.prediction_revision
        with self._connection.errors():
            return _integer(key, await self._client.get(key))

    async def load_samples(self, application_class: str) -> tuple[list[JsonObject], int]:
        """Return the history of a class, oldest first, and how many entries cannot be read."""
        key = self._keys.samples(application_class)
        with self._connection.errors():
            raw = await self._client.lrange(key, 0, -1)
        damage: list[str] = []
        samples = _objects(key, {b"%d" % i: entry for i, entry in enumerate(raw)}, damage)
        return list(samples.values()), len(damage)

    async def load_model(self, application_class: str, version: int) -> bytes:
        """Return the bytes of a model.

        Raises:
            StoreError: If there is none, too.
        """
        key = self._keys.model(application_class, version)
        with self._connection.errors():
            data: bytes | None = await self._client.get(key)
        if data is None:
            raise StoreError(f"{key}: is missing")
        return data

    async def add_observed(self, observations: Iterable[Mapping[str, Any]]) -> None:
        """Add finished applications to what is to be learned, all or none.

        Raises:
            StoreError: If one is not JSON, too.
        """
        key = self._keys.prediction_observed
        values = [encode(key, observation) for observation in observations]
        with self._connection.errors():
            async with self._client.pipeline(transaction=True) as pipeline:
                # The predictor may be the first to write, before any scheduler took office.
                pipeline.set(self._keys.schema, SCHEMA_VERSION, nx=True)
                for value in values:
                    pipeline.xadd(key, {_FIELD: value}, maxlen=MOST_WAITING, approximate=True)
                await pipeline.execute()

    async def observed_count(self) -> int:
        """Return how many finished applications wait to be learned, or a few more."""
        with self._connection.errors():
            return int(await self._client.xlen(self._keys.prediction_observed))

    async def read_observed(self, after: str, count: int) -> list[tuple[str, JsonObject | None]]:
        """Return the next finished applications with their ids, oldest first.

        One that is no JSON object is None.
        """
        key = self._keys.prediction_observed
        with self._connection.errors():
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
        """Become, or stay, the one that learns; return whether `learner` is it now."""
        milliseconds = max(1, round(1000 * for_s))
        with self._connection.errors():
            key = self._keys.prediction_learner
            return bool(await self._hold(keys=[key], args=[learner, milliseconds]))

    async def release(self, learner: str) -> None:
        """Let another one learn, if this one does."""
        key = self._keys.prediction_learner
        with self._connection.errors():
            async with self._client.pipeline(transaction=True) as pipeline:
                await pipeline.watch(key)
                if await pipeline.get(key) == learner.encode():
                    pipeline.multi()
                    pipeline.delete(key)
                    await pipeline.execute()

    async def save(self, learner: str, learned: Learned, bound: int) -> int | None:
        """Write what was learned, all or nothing, if `learner` still is the one that learns.

        Args:
            learner: As given to `hold`.
            learned: What changed.
            bound: Samples kept of each class.

        Returns:
            The revision that it made; None if another one learns: nothing was written.

        Raises:
            StoreError: If a value is not JSON, too. After any other failure it is not known
                whether it was written.
        """
        keys = self._keys
        hashes = [
            (key, name, encode(f"{key}[{name}]", value))
            for key, values in (
                (keys.prediction_classes, learned.classes),
                (keys.prediction_learning, learned.learning),
            )
            for name, value in values.items()
        ]
        samples = {
            key: [encode(key, sample) for sample in new]
            for name, new in learned.samples.items()
            if new and (key := keys.samples(name))
        }
        with self._connection.errors():
            async with self._client.pipeline(transaction=True) as pipeline:
                if not await self._is_held(pipeline, learner):
                    return None
                pipeline.set(keys.schema, SCHEMA_VERSION, nx=True)
                for key, name, value in hashes:
                    pipeline.hset(key, name, value)
                for key, new in samples.items():
                    pipeline.rpush(key, *new)
                    pipeline.ltrim(key, -bound, -1)
                pipeline.set(keys.prediction_applied, learned.applied)
                pipeline.xtrim(keys.prediction_observed, minid=learned.applied, approximate=False)
                pipeline.incr(keys.prediction_revision)
                return await _executed(pipeline)

    async def save_index(
        self,
        application_class: str,
        before: VersionIndex,
        after: VersionIndex,
        data: bytes | None = None,
    ) -> int | None:
        """Write the index of a class's models in place of the one that was read.

        Args:
            application_class: The class.
            before: What was read; an empty one if there was none.
            after: What to write. Models that it no longer names are deleted.
            data: Bytes of its active model, if that is new.

        Returns:
            The revision that it made; None if the stored index is another one: nothing was written.
        """
        keys = self._keys
        key = keys.prediction_models
        with self._connection.errors():
            async with self._client.pipeline(transaction=True) as pipeline:
                await pipeline.watch(key)
                raw = await pipeline.hget(key, application_class)
                if _index(raw) != before:
                    return None
                pipeline.multi()
                pipeline.set(keys.schema, SCHEMA_VERSION, nx=True)
                pipeline.hset(key, application_class, encode_index(after))
                if data is not None:
                    pipeline.set(keys.model(application_class, after.active), data)
                for version in before.versions:
                    if after.find(version.number) is None:
                        pipeline.delete(keys.model(application_class, version.number))
                pipeline.incr(keys.prediction_revision)
                return await _executed(pipeline)

    async def ping(self) -> bool:
        """Return whether Redis answers."""
        return await self._connection.ping()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._connection.aclose()

    async def _is_held(self, pipeline: Any, learner: str) -> bool:
        """Begin a transaction that fails if another one begins to learn."""
        key = self._keys.prediction_learner
        await pipeline.watch(key)
        if await pipeline.get(key) != learner.encode():
            return False
        pipeline.multi()
        return True


async def _executed(pipeline: Any) -> int | None:
    """Execute a transaction that ends with the new revision; None if what it watched changed."""
    try:
        return int((await pipeline.execute())[-1])
    except WatchError:
        return None


def _objects(key: str, raw: Mapping[bytes, bytes], damage: list[str]) -> dict[str, JsonObject]:
    found: dict[str, JsonObject] = {}
    for name, value in sorted(raw.items(), key=_by_name):
        where = f"{key}[{name.decode(errors='replace')}]"
        try:
            item = decode_object(where, value)
        except StoreError as error:
            damage.append(str(error))
            continue
        assert item is not None
        found[name.decode(errors="replace")] = item
    return found


def _indexes(key: str, raw: Mapping[bytes, bytes], damage: list[str]) -> dict[str, VersionIndex]:
    found: dict[str, VersionIndex] = {}
    for name, value in sorted(raw.items()):
        try:
            found[name.decode()] = decode_index(value)
        except ValueError as error:
            damage.append(f"{key}[{name.decode(errors='replace')}]: {error}")
    return found


def _index(raw: bytes | None) -> VersionIndex:
    """Return an index, an empty one in place of one that is damaged or not there."""
    try:
        return VersionIndex() if raw is None else decode_index(raw)
    except ValueError:
        return VersionIndex()


def _by_name(item: tuple[bytes, bytes]) -> tuple[int, bytes]:
    """Order the places of a list as numbers, names as names."""
    return (len(item[0]) if item[0].isdigit() else 0), item[0]


def _integer(key: str, raw: bytes | None) -> int:
    if raw is not None and not raw.isdigit():
        raise StoreError(f"{key}: holds {raw[:40]!r}, an integer >= 0 is expected")
    return int(raw or 0)
