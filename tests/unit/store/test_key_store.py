"""API keys in Redis."""

import json

import pytest

from justitia_ray.access.keys import create_key, record_to_json, records_from_json
from justitia_ray.errors import ConfigError, StoreError
from justitia_ray.store.key_store import KeyStore, StoredKeys
from justitia_ray.store.schema import ApplicationKeys, Keys
from tests.fake_redis import AWAY, FakeKeyStore

KEY = "justitia:{app}:keys"
NEW = create_key(tenant="acme", now=1_800_000_000.0, random_bytes=bytes)
RECORD = record_to_json(NEW.record)
ID = NEW.record.key_id


async def test_only_the_digest_of_an_api_key_is_stored() -> None:
    store = FakeKeyStore()

    assert await store.add(RECORD)
    loaded = await store.load()
    assert StoredKeys({ID: RECORD}, []) == loaded
    assert ([NEW.record], []) == records_from_json(loaded.records)
    assert NEW.secret not in str(store.raw.hgetall(KEY))


async def test_api_key_id_in_use_is_not_overwritten() -> None:
    store = FakeKeyStore()
    await store.add(RECORD)

    assert not await store.add(RECORD | {"tenant": "other"})
    assert RECORD == (await store.load()).records[ID]


async def test_api_key_can_be_revoked_once() -> None:
    store = FakeKeyStore()
    await store.add(RECORD)

    assert [True, False] == [await store.revoke(ID), await store.revoke(ID)]
    assert StoredKeys({}, []) == await store.load()


async def test_damaged_key_entries_are_skipped_and_named() -> None:
    """One damaged entry, whose content may be a key, must not invalidate the others."""
    store = FakeKeyStore()
    await store.add(RECORD)
    store.raw.hset(KEY, "0" * 8, "{")
    store.raw.hset(KEY, "1" * 8, "[]")
    store.raw.hset(KEY, "2" * 8, b"\x80\x04N.")  # a pickle
    store.raw.hset(KEY, NEW.secret, json.dumps(RECORD))
    loaded = await store.load()

    assert {ID: RECORD} == loaded.records
    assert 4 == len(loaded.damage)
    for number in range(3):
        assert f"{KEY}[{str(number) * 8}]: holds " in loaded.damage[number]
    assert f"{KEY}: a field is no key id, 8 digits of 0-9 a-f" == loaded.damage[3]
    assert NEW.secret not in str(loaded)


async def test_damaged_key_entry_can_be_revoked() -> None:
    store = FakeKeyStore()
    store.raw.hset(KEY, ID, "{")

    assert await store.revoke(ID)


async def test_error_names_a_redis_key_of_another_type() -> None:
    store = FakeKeyStore()
    store.raw.set(KEY, "x")
    for call in (store.load(), store.add(RECORD), store.revoke(ID)):
        with pytest.raises(StoreError, match="WRONGTYPE"):
            await call

    assert "x" == store.raw.get(KEY)


async def test_error_of_an_unreachable_redis_is_one_sentence() -> None:
    store = FakeKeyStore()
    store.away = True
    for call in (store.load(), store.add(RECORD), store.revoke(ID)):
        with pytest.raises(StoreError) as failed:
            await call

        assert AWAY == str(failed.value)


def test_application_keys_and_model_keys_are_separate() -> None:
    assert KEY == ApplicationKeys("app").api_keys
    assert not any(KEY == key for key in vars(Keys("app/keys")).values())
    for name in ("", "app/m", "{app}", "a b"):
        with pytest.raises(ConfigError, match="application name is"):
            KeyStore("redis://h", name)
