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


def args_of(server: EmbeddedRedis, name: str) -> AppArgs:
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
    args = args_of(server, name)
    store = key_store(args)
    await store.add(record_to_json(KEY.record))
    yield args
    await store.aclose()


async def tenant_of(keeper: AccessKeeper, secret: str) -> str:
    scope = {"headers": [(b"x-api-key", secret.encode())]}
    await keeper.door.admit(scope, "/v1/models")
    return context_of(scope).tenant


async def test_ingress_follows_the_keys_in_redis(args: AppArgs) -> None:
    """A new key is accepted within `reload_s`, and a revoked key is refused."""
    keeper = AccessKeeper(args)
    await keeper.start()
    store, other = key_store(args), create_key(tenant="beta", now=0.0)

    async def opens(secret: str) -> bool:
        try:
            return bool(await tenant_of(keeper, secret))
        except Unauthenticated:
            return False

    async def is_closed() -> bool:
        return not await opens(KEY.secret)

    assert "acme" == await tenant_of(keeper, KEY.secret)
    assert not await opens(other.secret)
    await store.add(record_to_json(other.record))
    await eventually(lambda: opens(other.secret), "the new key opens", 10.0)
    await store.revoke(KEY.record.key_id)
    await eventually(is_closed, "the revoked key does not", 10.0)
    await keeper.stop()
    await store.aclose()


async def test_keys_stay_valid_while_redis_is_away(tmp_path: Path) -> None:
    """Known keys stay valid; before the first answer of Redis no key is called wrong."""
    server = EmbeddedRedis(tmp_path / "data")
    args = args_of(server, "away")
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
