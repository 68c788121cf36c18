"""What the predictor keeps in Redis: what was learned, models, and what has yet to be learned.

One replica of the predictor learns at a time: it holds `prediction:learner`, and writes only while
it does. All of them add to what is to be learned, and read what was.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from justitia_ray.errors import StoreError
from justitia_ray.predictor.versions import VersionIndex, decode_index, encode_index
from justitia_ray.store.connection import Connection, Credentials
from justitia_ray.store.prediction_scripts import (
    ADD_OBSERVED,
    HOLD,
    RELEASE,
    SAVE,
    SAVE_INDEX,
)
from justitia_ray.store.predictions import (
    MOST_WAITING,
    Learned,
    Predictions,
    StoredPredictions,
)
from justitia_ray.store.scheduler_scripts import READ
from justitia_ray.store.schema import (
    SCHEMA_VERSION,
    JsonObject,
    check_version,
    decode_object,
    encode,
    keys_of,
    pairs,
)
from justitia_ray.units import Seconds

__all__ = ["MOST_WAITING", "Learned", "PredictionStore", "Predictions", "StoredPredictions"]

_START = "0-0"
_FIELD = b"o"


class PredictionStore:
    """The store of one model's predictor; use it from one event loop.

    Not fenced by the scheduler's epoch. Every method but `ping` raises `StoreError` if Redis cannot
    be reached or refuses, and, naming the key, if it holds something of another kind or version.
    """

    def __init__(self, url: str, name: str, credentials: Credentials | None = None) -> None:
        """Name the store; nothing is connected yet.

        Args:
            url: One of `redis_url.FORMS`.
            name: `app/model`, the same as the scheduler's.
            credentials: What it takes to be let in; nothing if None.

        Raises:
            ConfigError: If the URL or the name has another form.
        """
        self._keys = keys_of(name)
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
            found = await self._read(keys=read, args=["string"] * 3 + ["hash"] * 3)
        schema, revision, applied, classes, learning, models = found
        check_version(keys.schema, schema)
        damage: list[str] = []
        return StoredPredictions(
            revision=_integer(keys.prediction_revision, revision),
            applied=_START if applied is None else applied.decode(errors="replace"),
            classes=_objects(keys.prediction_classes, pairs(classes), damage),
            learning=_objects(keys.prediction_learning, pairs(learning), damage),
            models=_indexes(keys.prediction_models, pairs(models), damage),
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
            await self._add_observed(
                keys=[self._keys.schema, key],
                args=[SCHEMA_VERSION, MOST_WAITING, *values],
            )

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
        with self._connection.errors():
            await self._release(keys=[self._keys.prediction_learner], args=[learner])

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
        with self._connection.errors():
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
        unnamed = [v.number for v in before.versions if after.find(v.number) is None]
        # The model's key is named, and left alone, also if there are no new bytes.
        changed = [keys.model(application_class, n) for n in (after.active, *unnamed)]
        with self._connection.errors():
            raw: bytes | None = await self._client.hget(key, application_class)
            if _index(raw) != before:
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

    async def ping(self) -> bool:
        """Return whether Redis answers."""
        return await self._connection.ping()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._connection.aclose()


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
