"""Store of the API keys of an application, which all its models share.

Records are JSON objects; `access.keys` creates and reads them. They do not contain the keys
themselves.
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
"""Redis script that adds an API key's record. KEYS: the hash `keys`. ARGV: id, JSON. Returns 0 if
the id exists already.
"""

REVOKE = checking_kinds("hash") + "return redis.call('HDEL', KEYS[1], ARGV[1])"
"""Redis script that removes an API key's record. KEYS: the hash `keys`. ARGV: id. Returns 0 if the
id does not exist.
"""


@dataclass(frozen=True, slots=True)
class StoredKeys:
    records: dict[str, JsonObject]
    """Records of API keys, sorted by key id."""
    damage: list[str]
    """Messages, one for each stored API key that was left out because it could not be read."""


class KeyStore:
    """API keys of an application in Redis; use it from one event loop.

    Args:
        url: One of `redis_url.FORMS`.
        name: The application's name, `name` of its arguments.
        credentials: User, password and certificates; None for none.

    Raises:
        ConfigError: If the URL or the name is malformed.
    """

    def __init__(self, url: str, name: str, credentials: Credentials | None = None) -> None:
        self._connection = Connection(url, credentials)
        self._client = self._connection.client
        self._keys = ApplicationKeys(name)
        self._add = self._client.register_script(ADD)
        self._revoke = self._client.register_script(REVOKE)

    async def load(self) -> StoredKeys:
        """Return all API keys; unreadable entries are left out and listed in `damage`.

        Raises:
            StoreError: If Redis is unreachable, or the key's value is not a hash.
        """
        key = self._keys.api_keys
        async with self._connection.errors():
            raw: Mapping[bytes, bytes] = await self._client.hgetall(key)
        found = StoredKeys({}, [])
        for field, value in sorted(raw.items()):
            # The invalid field may be an API key, so the message does not show it.
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
        """Add an API key's record; return False, and change nothing, if its id exists already.

        Args:
            record: JSON object with the key's id as `id`.

        Raises:
            StoreError: Also if the record is not JSON.
        """
        key = self._keys.api_keys
        value = encode(key, record)
        async with self._connection.errors():
            return bool(await self._add(keys=[key], args=[record["id"], value]))

    async def revoke(self, key_id: str) -> bool:
        """Remove an API key's record, even an unreadable one; return whether it existed."""
        async with self._connection.errors():
            return bool(await self._revoke(keys=[self._keys.api_keys], args=[key_id]))

    async def aclose(self) -> None:
        await self._connection.aclose()
