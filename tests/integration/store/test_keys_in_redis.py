"""API keys in a real Redis, written by `justitia keys` and read by an ingress."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from justitia_ray.access.keys import create_key, record_to_json
from justitia_ray.config import AppArgs
from justitia_ray.errors import AdmissionError, Unauthenticated
from justitia_ray.serve.ingress.access_keeper import AccessKeeper, RedisKeys
from justitia_ray.serve.ingress.door import context_of
from justitia_ray.serve.stores import key_store
from justitia_ray.store.embedded import EmbeddedRedis
from tests.eventually import eventually

pytestmark = pytest.mark.redis

KEY = create_key(tenant="acme", now=0.0)


def config_args(server: EmbeddedRedis, name: str) -> AppArgs:
    return AppArgs.parse(
        {
            "name": name.replace("/", "-"),
            "model": {"name": "m", "path": "none"},
            "store": {"redis_url": server.url},
            "access": {"keys_in_redis": True, "reload_s": 0.02},
        }
    )


@pytest.fixture
async def args(server: EmbeddedRedis, name: str) -> AsyncIterator[AppArgs]:
    args = config_args(server, name)
    store = key_store(args)
    await store.add(record_to_json(KEY.record))
    yield args
    await store.aclose()


async def tenant_of_key(keeper: AccessKeeper, secret: str) -> str:
    scope = {"headers": [(b"x-api-key", secret.encode())]}
    await keeper.door.admit(scope, "/v1/models")
    return context_of(scope).tenant


async def test_ingress_follows_key_changes_in_redis(args: AppArgs) -> None:
    keeper = AccessKeeper(args)
    await keeper.start()
    store, other = key_store(args), create_key(tenant="beta", now=0.0)

    async def key_is_accepted(secret: str) -> bool:
        try:
            return bool(await tenant_of_key(keeper, secret))
        except Unauthenticated:
            return False

    async def key_is_refused() -> bool:
        return not await key_is_accepted(KEY.secret)

    assert "acme" == await tenant_of_key(keeper, KEY.secret)
    assert not await key_is_accepted(other.secret)
    await store.add(record_to_json(other.record))
    await eventually(lambda: key_is_accepted(other.secret), "the new key opens", 10.0)
    await store.revoke(KEY.record.key_id)
    await eventually(key_is_refused, "the revoked key does not", 10.0)
    await keeper.stop()
    await store.aclose()


async def test_known_keys_stay_valid_while_redis_is_unreachable(tmp_path: Path) -> None:
    """An ingress that has not reached Redis since its start does not call any key wrong."""
    server = EmbeddedRedis(tmp_path / "data")
    args = config_args(server, "away")
    early = RedisKeys(key_store(args))
    await early.refresh()
    with pytest.raises(AdmissionError, match="cannot be read from Redis"):
        early.table()
    server.start()
    store = key_store(args)
    await store.add(record_to_json(KEY.record))
    await early.refresh()
    server.stop()
    await early.refresh()

    assert 1 == len(early.table())
    for one in (store, early):
        await one.aclose()
