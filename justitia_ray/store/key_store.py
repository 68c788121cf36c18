"""Store of the API keys of an application, which all its models share.

Records are JSON objects here: `access.keys` reads them, and makes them. None holds a key itself.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from justitia_ray.errors import StoreError
from justitia_ray.store.connection import Connection, Credentials
from justitia_ray.store.schema import (
    ApplicationKeys,
    JsonObject,
    checking_kinds,
    decode_object,
    encode,
)

_ID = re.compile(rb"[0-9a-f]{8}")

ADD = checking_kinds("hash") + "return redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])"
"""KEYS: keys. ARGV: id, JSON. Returns 0 if the id is taken."""

REVOKE = checking_kinds("hash") + "return redis.call('HDEL', KEYS[1], ARGV[1])"
"""KEYS: keys. ARGV: id. Returns 0 if there is none."""


@dataclass(frozen=True, slots=True)
class StoredKeys:
    """The API keys of an application as of one instant."""

    records: dict[str, JsonObject]
    """Records by key id, in the order of the ids."""
    damage: list[str]
    """A sentence for each entry that has another form and was left out."""


class KeyStore:
    """API keys of an application in Redis; for one event loop."""

    def __init__(self, url: str, name: str, credentials: Credentials | None = None) -> None:
        """Name a Redis; nothing is connected yet.

        Args:
            url: One of `redis_url.FORMS`.
            name: The application's name, `name` of its arguments.
            credentials: User, password and certificates; None for none.

        Raises:
            ConfigError: If the URL or the name has another form.
        """
        self._connection = Connection(url, credentials)
        self._client = self._connection.client
        self._keys = ApplicationKeys(name)
        self._add = self._client.register_script(ADD)
        self._revoke = self._client.register_script(REVOKE)

    async def load(self) -> StoredKeys:
        """Return all keys; an entry of another form is left out, and named.

        Raises:
            StoreError: If Redis cannot be reached, or holds something else than a hash.
        """
        key = self._keys.api_keys
        async with self._connection.errors():
            raw: Mapping[bytes, bytes] = await self._client.hgetall(key)
        found = StoredKeys({}, [])
        for field, value in sorted(raw.items()):
            # A field of another form is not shown: it may be a key that somebody put there.
            if not _ID.fullmatch(field):
                found.damage.append(f"{key}: a field is no key id, 8 digits of 0-9 a-f")
                continue
            key_id = field.decode()
            try:
                found.records[key_id] = decode_object(f"{key}[{key_id}]", value) or {}
            except StoreError as error:
                found.damage.append(str(error))
        return found

    async def add(self, record: Mapping[str, Any]) -> bool:
        """Add a record; return False, and change nothing, if its id is taken.

        Args:
            record: JSON object with the key's id as `id`.

        Raises:
            StoreError: If it is not JSON, too.
        """
        key = self._keys.api_keys
        value = encode(key, record)
        async with self._connection.errors():
            return bool(await self._add(keys=[key], args=[record["id"], value]))

    async def revoke(self, key_id: str) -> bool:
        """Remove a record, damaged or not; return whether there was one."""
        async with self._connection.errors():
            return bool(await self._revoke(keys=[self._keys.api_keys], args=[key_id]))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._connection.aclose()
