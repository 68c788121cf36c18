"""What the predictor keeps in Redis: statistics of each application class."""

from collections.abc import Mapping
from typing import Any

from justitia_ray.errors import StoreError
from justitia_ray.store.connection import Connection
from justitia_ray.store.schema import (
    SCHEMA_VERSION,
    JsonObject,
    check_version,
    decode_hash,
    encode,
    keys_of,
)


class PredictionStore:
    """The store of one model's predictor; use it from one event loop.

    Not fenced by the epoch: the predictor holds no office, and the last writer of a class wins.
    Every method but `ping` raises `StoreError` if Redis cannot be reached or refuses, and, naming
    the key, if it holds something of another form or version.
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

    async def load_classes(self) -> dict[str, JsonObject]:
        """Return what is stored of every class, by class name in its order."""
        keys = self._keys
        with self._connection.errors():
            async with self._connection.client.pipeline(transaction=True) as pipeline:
                pipeline.get(keys.schema)
                pipeline.hgetall(keys.prediction_classes)
                replies = await pipeline.execute(raise_on_error=False)
        for key, reply in zip((keys.schema, keys.prediction_classes), replies, strict=True):
            if isinstance(reply, Exception):
                raise StoreError(f"{key}: {reply}") from reply
        schema, classes = replies
        check_version(keys.schema, schema)
        return decode_hash(keys.prediction_classes, classes)

    async def save_class(self, name: str, statistics: Mapping[str, Any]) -> None:
        """Write what is known of one class, in place of what was stored of it.

        Raises:
            StoreError: If the statistics are not JSON, too.
        """
        keys = self._keys
        value = encode(f"{keys.prediction_classes}[{name}]", statistics)
        with self._connection.errors():
            async with self._connection.client.pipeline(transaction=True) as pipeline:
                # The predictor may be the first to write, before any scheduler took office.
                pipeline.set(keys.schema, SCHEMA_VERSION, nx=True)
                pipeline.hset(keys.prediction_classes, name, value)
                await pipeline.execute()

    async def ping(self) -> bool:
        """Return whether Redis answers."""
        return await self._connection.ping()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._connection.aclose()
