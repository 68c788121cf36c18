"""The scheduler's store on a real Redis: contents, write permission, damaged data."""

import pickle
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from justitia_ray.errors import ConfigError, StoreError
from justitia_ray.store.connection import Credentials
from justitia_ray.store.embedded import EmbeddedRedis
from justitia_ray.store.leader import LeaderRecord, StaleEpoch
from justitia_ray.store.scheduler_store import SchedulerStore, StoredState
from justitia_ray.store.schema import SCHEMA_VERSION, Keys
from tests.eventually import eventually

pytestmark = pytest.mark.redis

FAR = 10**14
"""Scheduler epoch far above the epochs derived from Redis's clock."""
EMPTY = StoredState(clock=None, applications={}, settings=None, replicas={})


@pytest.fixture
async def store(server: EmbeddedRedis, name: str) -> AsyncIterator[SchedulerStore]:
    store = SchedulerStore(server.url, name)
    yield store
    await store.aclose()


def _redis_time_ms(raw: redis.Redis) -> int:
    seconds, microseconds = raw.time()
    return int(1000 * seconds + microseconds // 1000)


async def stored_without_leader(store: SchedulerStore) -> StoredState:
    return replace(await store.load(), epoch=None, leader=None)


async def test_epoch_rises_with_each_leader(store: SchedulerStore) -> None:
    """Ingresses and replicas tell schedulers apart by the epoch, even within one millisecond.

    A store that was reset would otherwise assign epochs that all clients ignore.
    """
    taken = [await store.become_leader() for _ in range(20)]

    assert sorted(set(taken)) == taken
    assert FAR + 1 == await store.become_leader(above=FAR)
    assert FAR + 2 == await store.become_leader(above=3)


async def test_epochs_stay_unique_after_two_schedulers_lose_their_store(
    store: SchedulerStore, raw: redis.Redis, keys: Keys
) -> None:
    """The first scheduler restores its own epoch; the second gets the next higher epoch."""
    first, second = await store.become_leader(), await store.become_leader()
    raw.delete(keys.schema, keys.epoch, keys.leader)
    put_back = await store.save(first, None, {}, ())
    await eventually(lambda: _redis_time_ms(raw) > second, "a millisecond has passed")

    assert not put_back
    assert str(first) == raw.get(keys.epoch)
    assert second < await store.become_leader()


async def test_first_epoch_of_an_emptied_store_exceeds_all_earlier_epochs(
    store: SchedulerStore, raw: redis.Redis, keys: Keys
) -> None:
    """A client would mistake a later scheduler with a known epoch for an earlier one."""
    known = await store.become_leader()
    since_ms = 1000 * raw.time()[0]
    raw.delete(keys.schema, keys.epoch, keys.leader)
    await eventually(lambda: _redis_time_ms(raw) > known, "a millisecond has passed")

    assert since_ms <= known < await store.become_leader()


async def test_store_names_the_leading_scheduler(
    server: EmbeddedRedis, name: str, raw: redis.Redis
) -> None:
    """A replaced scheduler logs the process of the new leader."""
    holder = LeaderRecord("ns", "a1", "1.2", "gpu-1", 42, 1_790_000_000.5)
    store = SchedulerStore(server.url, name, leader=holder)
    epoch = await store.become_leader(above=FAR)
    expected = {
        "epoch": FAR + 1,
        "namespace": "ns",
        "actor": "a1",
        "version": "1.2",
        "host": "gpu-1",
        "process_id": 42,
        "since": 1_790_000_000.5,
    }
    taken = (await store.load()).leader
    raw.flushall()
    await store.save(epoch, None, {}, ())
    again = (await store.load()).leader
    await store.aclose()

    assert (expected, expected) == (taken, again)


async def test_saved_scheduler_state_is_loaded(store: SchedulerStore) -> None:
    """The next scheduler continues with the stored virtual finish times and settings.

    Saves are incremental for applications but always contain all replicas: an empty list differs
    from an unchanged one, for which a new scheduler would wait.
    """
    epoch = await store.become_leader()
    clock = {"virtual_time": 0.1 + 0.2, "active": []}
    applications: dict[str, dict[str, Any]] = {"b": {"F": 2.5}, "a": {"F": 1}}
    await store.save(epoch, clock, applications, (), {"policy": "vtc"}, {"r1": {}})
    first = await stored_without_leader(store)
    await store.save(epoch, None, {"c": {"F": 3}}, iter(["a", "unknown"]))
    await store.save(epoch, None, {}, (), None, {"r2": {"M": 7}})

    assert first == StoredState(clock, applications, {"policy": "vtc"}, {"r1": {}})
    assert list(first.applications) == ["a", "b"]
    expected: dict[str, dict[str, Any]] = {"b": {"F": 2.5}, "c": {"F": 3}}
    assert await stored_without_leader(store) == StoredState(
        clock, expected, {"policy": "vtc"}, {"r2": {"M": 7}}
    )
    await store.save(epoch, None, {}, (), replicas={})
    assert {} == (await stored_without_leader(store)).replicas


async def test_ten_thousand_applications_are_saved_at_once(store: SchedulerStore) -> None:
    """An emptied store is refilled with the state of up to ten thousand live applications."""
    epoch = await store.become_leader()
    applications = {f"{number:05}": {"F": number} for number in range(10_000)}
    await store.save(epoch, None, applications, ())
    assert (await store.load()).applications == applications
    await store.save(epoch, None, {}, applications)

    assert await stored_without_leader(store) == EMPTY


async def test_save_with_an_outdated_epoch_fails_and_writes_nothing(
    server: EmbeddedRedis, name: str, store: SchedulerStore
) -> None:
    """Two leaders would overwrite each other; the epoch in the store decides."""
    old = await store.become_leader()
    await store.save(old, {"v": 1}, {"a": {"F": 1}}, (), {"s": 1}, {"r": {}})
    before = await stored_without_leader(store)
    holder = LeaderRecord("ns", "a1", "1.2", "gpu-1", 42, 1_790_000_000.5)
    successor = SchedulerStore(server.url, name, leader=holder)
    new = await successor.become_leader()
    await successor.aclose()

    winner = rf"epoch {new} leads, held by process 42 on host gpu-1 .*since 2026-09-21 14:13"
    with pytest.raises(StaleEpoch, match=winner) as error:
        await store.save(old, {"v": 9}, {"b": {"F": 9}}, ["a"], {"s": 9}, {"r9": {}})
    assert (error.value.ours, error.value.theirs) == (old, new)
    assert await stored_without_leader(store) == before


def test_stale_epoch_error_survives_pickling() -> None:
    """Ray pickles the errors that an actor raises."""
    error = pickle.loads(pickle.dumps(StaleEpoch(1, 2, {"host": "gpu-1"})))

    assert (error.ours, error.theirs, error.leader) == (1, 2, {"host": "gpu-1"})


async def test_scheduler_keeps_its_epoch_when_its_store_is_emptied(
    store: SchedulerStore, raw: redis.Redis, keys: Keys
) -> None:
    """A Redis without persistence restarts empty; a new epoch would then not be unique."""
    for _ in range(5):
        epoch = await store.become_leader()
    assert await store.save(epoch, None, {"a": {}}, ())
    raw.delete(keys.schema, keys.epoch, keys.applications)

    assert not await store.save(epoch, None, {"b": {}}, ())
    assert await store.save(epoch, None, {"a": {}, "b": {}}, ())
    assert raw.get(keys.schema) == str(SCHEMA_VERSION)
    assert epoch < await store.become_leader()


async def test_stores_of_different_names_are_independent(
    server: EmbeddedRedis, store: SchedulerStore
) -> None:
    epoch = await store.become_leader()
    await store.save(epoch, {"v": 1}, {"a": {}}, ())
    other = SchedulerStore(server.url, "app/other")
    loaded = await other.load()
    await other.become_leader()
    await other.aclose()

    assert loaded == EMPTY
    assert epoch == (await store.load()).epoch


def test_redis_keys_have_the_documented_form() -> None:
    """Operators read the keys; their braces keep a model in one slot of a Redis Cluster."""
    assert Keys("app/org/m").prediction_classes == "justitia:{app/org/m}:prediction:classes"


@pytest.mark.parametrize("name", ["", "a b", "a{b", "a}b", "x" * 201])
def test_model_name_with_a_brace_is_refused(name: str) -> None:
    """A brace in the name would spread the keys of one model over several slots."""
    with pytest.raises(ConfigError, match="store name"):
        SchedulerStore("redis://localhost", name)


DAMAGES: dict[str, tuple[str, Callable[[redis.Redis, str], object]]] = {
    "schema is no number": ("schema", lambda raw, key: raw.set(key, "one")),
    "schema is newer": ("schema", lambda raw, key: raw.set(key, SCHEMA_VERSION + 1)),
    "schema is a list": ("schema", lambda raw, key: raw.rpush(key, "1")),
    "epoch is no number": ("epoch", lambda raw, key: raw.set(key, "1.5")),
    "epoch is zero": ("epoch", lambda raw, key: raw.set(key, "0")),
    "epoch is a hash": ("epoch", lambda raw, key: raw.hset(key, "a", "1")),
    "clock is cut": ("clock", lambda raw, key: raw.set(key, '{"v": 1')),
    "clock is a list": ("clock", lambda raw, key: raw.set(key, "[1]")),
    "clock is NaN": ("clock", lambda raw, key: raw.set(key, '{"v": NaN}')),
    "clock is a pickle": ("clock", lambda raw, key: raw.set(key, pickle.dumps({"v": 1}))),
    "settings are null": ("settings", lambda raw, key: raw.set(key, "null")),
    "settings are deep": ("settings", lambda raw, key: raw.set(key, "[" * 100_000)),
    "applications are a string": ("applications", lambda raw, key: raw.set(key, "{}")),
    "an application is a number": ("applications", lambda raw, key: raw.hset(key, "a7", "3")),
    "an id is not UTF-8": ("applications", lambda raw, key: raw.hset(key, b"\xff", "{}")),
    "a replica is no JSON": ("replicas", lambda raw, key: raw.hset(key, "r1", "x")),
}


@pytest.mark.parametrize(("key_name", "damage"), DAMAGES.values(), ids=DAMAGES.keys())
async def test_error_for_damaged_data_names_the_key(
    store: SchedulerStore,
    raw: redis.Redis,
    keys: Keys,
    key_name: str,
    damage: Callable[[redis.Redis, str], object],
) -> None:
    """An operator must learn which key to repair; a guess would corrupt the order."""
    key = getattr(keys, key_name)
    raw.delete(key)
    damage(raw, key)

    with pytest.raises(StoreError) as error:
        await store.load()
    assert key in str(error.value)


async def test_error_for_damaged_data_names_the_field(
    store: SchedulerStore, raw: redis.Redis, keys: Keys
) -> None:
    raw.hset(keys.applications, mapping={"a1": "{}", "a2": "oops"})

    with pytest.raises(StoreError) as error:
        await store.load()
    assert f"{keys.applications}[a2]" in str(error.value)
    assert "oops" not in str(error.value)


async def test_no_scheduler_becomes_leader_on_newer_data(
    store: SchedulerStore, raw: redis.Redis, keys: Keys
) -> None:
    """A scheduler of an older version must not overwrite data that it cannot read."""
    epoch = await store.become_leader()
    raw.set(keys.schema, SCHEMA_VERSION + 1)

    with pytest.raises(StoreError, match="newer justitia_ray"):
        await store.become_leader()
    assert raw.get(keys.epoch) == str(epoch)


async def test_error_for_a_damaged_epoch_names_the_key(
    store: SchedulerStore, raw: redis.Redis, keys: Keys
) -> None:
    raw.set(keys.epoch, "x")

    with pytest.raises(StoreError) as error:
        await store.become_leader()
    assert keys.epoch in str(error.value)


@pytest.mark.parametrize("key_name", ["epoch", "applications"])
async def test_save_to_a_damaged_redis_key_writes_nothing(
    store: SchedulerStore, raw: redis.Redis, keys: Keys, key_name: str
) -> None:
    """Redis does not undo a failed script, so the script must fail before its first write."""
    epoch = await store.become_leader()
    await store.save(epoch, {"v": 1}, {"a": {}}, ())
    key = getattr(keys, key_name)
    raw.delete(key)
    raw.set(key, "x")

    with pytest.raises(StoreError) as error:
        await store.save(epoch, {"v": 2}, {"b": {}}, ())
    assert key in str(error.value)
    assert raw.get(keys.clock) == '{"v":1}'


async def test_value_that_json_cannot_represent_is_not_saved(
    store: SchedulerStore, keys: Keys
) -> None:
    """A NaN in the store would stop the next scheduler from starting."""
    epoch = await store.become_leader()

    with pytest.raises(StoreError) as error:
        await store.save(epoch, {"v": 1}, {"a": {"F": float("nan")}}, ())
    assert f"{keys.applications}[a]" in str(error.value)
    assert await stored_without_leader(store) == EMPTY


async def test_id_that_is_not_valid_utf8_is_a_store_error(store: SchedulerStore) -> None:
    """JSON allows half a surrogate pair in an id, which must not end the saving task."""
    epoch = await store.become_leader()

    with pytest.raises(StoreError, match="surrogates"):
        await store.save(epoch, None, {"\ud800": {}}, ())


async def test_unreachable_redis_is_a_store_error_until_redis_is_back(tmp_path: Path) -> None:
    """A leading scheduler continues in memory, and saves once Redis is back."""
    server = EmbeddedRedis(tmp_path / "data")
    server.start()
    store = SchedulerStore(server.url, "a/m")
    try:
        epoch = await store.become_leader()
        assert await store.ping()
        server.stop()
        calls: list[Callable[[], Awaitable[Any]]] = [
            store.become_leader,
            store.load,
            lambda: store.save(epoch, None, {"a": {}}, ()),
        ]
        for call in calls:
            with pytest.raises(StoreError, match=r"Redis at unix://.*redis\.sock"):
                await call()
        assert not await store.ping()

        server.start()

        assert await store.save(epoch, None, {"a": {}}, ())
        assert epoch < await store.become_leader()
        assert (await store.load()).applications == {"a": {}}
    finally:
        await store.aclose()
        server.stop()


async def test_redis_password_is_used_and_never_shown(
    server: EmbeddedRedis, name: str, store: SchedulerStore, raw: redis.Redis
) -> None:
    raw.ping()
    raw.config_set("requirepass", "s3cret")
    try:
        with pytest.raises(StoreError) as refused:
            await store.become_leader()
        knowing = SchedulerStore(server.url, name, Credentials(password="s3cret"))
        epoch = await knowing.become_leader()
        await knowing.aclose()
    finally:
        raw.config_set("requirepass", "")
    away = SchedulerStore("redis://localhost:1/0", name, Credentials("user", "s3cret"))
    with pytest.raises(StoreError, match="redis://localhost:1") as unreachable:
        await away.load()
    await away.aclose()

    assert epoch > 0
    assert "s3cret" not in f"{refused.value} {unreachable.value}"
