"""The predictor's store on a real Redis: contents, write permission, damaged data."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from justitia_ray.errors import StoreError
from justitia_ray.predictor.versions import VersionIndex
from justitia_ray.store.embedded import EmbeddedRedis
from justitia_ray.store.prediction_store import Learned, PredictionStore, StoredPredictions
from justitia_ray.store.scheduler_store import SchedulerStore
from justitia_ray.store.schema import SCHEMA_VERSION, Keys

pytestmark = pytest.mark.redis

_HOLD_S = 30.0


@pytest.fixture
async def store(server: EmbeddedRedis, name: str) -> AsyncIterator[PredictionStore]:
    store = PredictionStore(server.url, name)
    yield store
    await store.aclose()


async def observation_ids(store: PredictionStore) -> list[str]:
    return [name for name, _ in await store.read_observed("0-0", 1_000)]


async def test_prediction_store_of_a_new_model_is_empty(store: PredictionStore) -> None:
    assert StoredPredictions(0, "0-0", {}, {}, {}, []) == await store.load()
    assert ([], 0) == await store.load_samples("EV")


async def test_learned_observations_are_removed_from_the_store(
    store: PredictionStore,
) -> None:
    """All replicas add observations; the one predictor that trains reads each of them once."""
    await store.add_observed([{"n": 1}, {"n": 2}])
    await store.add_observed([{"n": 3}])
    assert 3 == await store.observed_count()
    first, second = await store.read_observed("0-0", 2)
    assert [{"n": 1}, {"n": 2}] == [first[1], second[1]]
    assert await store.hold("a", _HOLD_S)
    await store.save("a", Learned(second[0]), bound=10)

    assert second[0] == (await store.load()).applied
    assert [{"n": 3}] == [value for _, value in await store.read_observed(second[0], 10)]
    assert 2 == await store.observed_count()  # The observation learned last stays as a marker.


async def test_saved_learned_state_is_loaded(store: PredictionStore) -> None:
    """The store keeps the configured number of latest samples of each class."""
    await store.add_observed([{}])
    (entry,) = await observation_ids(store)
    await store.hold("a", _HOLD_S)
    for number in range(3):
        samples = {"EV": [{"n": number}]}
        saved = Learned(
            entry, classes={"EV": {"n": number}}, learning={"DM": {"x": 1}}, samples=samples
        )
        assert number + 1 == await store.save("a", saved, bound=2)

    stored = await store.load()
    assert ({"EV": {"n": 2}}, {"DM": {"x": 1}}) == (stored.classes, stored.learning)
    assert ([{"n": 1}, {"n": 2}], 0) == await store.load_samples("EV")
    assert stored.revision == await store.revision() == 3


async def test_one_predictor_holds_the_learners_lock_until_it_expires(
    store: PredictionStore,
) -> None:
    """Two training predictors would overwrite each other; a dead one is replaced."""
    assert await store.hold("a", _HOLD_S)
    assert await store.hold("a", 0.05)
    assert not await store.hold("b", _HOLD_S)
    async with asyncio.timeout(10.0):
        while not await store.hold("b", _HOLD_S):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await store.release("a")  # The lock now belongs to another learner.

    assert not await store.hold("a", _HOLD_S)
    await store.release("b")
    assert await store.hold("a", _HOLD_S)


async def test_replica_without_the_learners_lock_writes_nothing(store: PredictionStore) -> None:
    """A suspended predictor notices by its failed save that another has replaced it."""
    await store.hold("a", _HOLD_S)
    saved = await store.save("b", Learned("1-0", classes={"EV": {"n": 1}}), bound=10)

    assert saved is None
    assert {} == (await store.load()).classes


async def test_storing_a_model_updates_the_index_and_removes_old_models(
    store: PredictionStore, raw: redis.Redis, keys: Keys
) -> None:
    index = VersionIndex()
    for number in range(1, 8):
        data = b"model %d \xff" % number
        after = index.published(data, {"samples": number})
        assert await store.save_index("EV", index, after, data) is not None
        index = after

    assert {"EV": index} == (await store.load()).models
    assert b"model 7 \xff" == await store.load_model("EV", 7)
    assert 5 == len(list(raw.scan_iter(match=keys.model("EV", 0)[:-1] + "*")))
    assert await store.load_model("EV", 2) is None
    raw.rpush(keys.model("EV", 2), "x")
    assert await store.load_model("EV", 2) is None


async def test_model_index_changed_by_another_writer_is_not_overwritten(
    store: PredictionStore,
) -> None:
    """A rollback must not be lost to a training that ends at the same time."""
    first = VersionIndex().published(b"1", {})
    await store.save_index("EV", VersionIndex(), first, b"1")
    pinned = first.activated(0, pinned=True)
    assert await store.save_index("EV", first, pinned) is not None

    assert await store.save_index("EV", first, first.published(b"2", {}), b"2") is None
    assert {"EV": pinned} == (await store.load()).models


async def test_predictor_can_store_data_before_a_scheduler_becomes_leader(
    server: EmbeddedRedis, store: PredictionStore, raw: redis.Redis, keys: Keys, name: str
) -> None:
    """Deployments start in any order, so the store's version is written with the first value."""
    await store.add_observed([{"n": 1}])
    scheduler = SchedulerStore(server.url, name)
    epoch = await scheduler.become_leader()
    await scheduler.aclose()

    assert str(SCHEMA_VERSION) == raw.get(keys.schema)
    assert epoch > 0


@pytest.mark.parametrize(
    ("key_name", "damage"),
    [
        ("schema", lambda raw, key: raw.set(key, SCHEMA_VERSION + 1)),
        ("prediction_classes", lambda raw, key: raw.set(key, "x")),
        ("prediction_models", lambda raw, key: raw.rpush(key, "x")),
        ("prediction_revision", lambda raw, key: raw.set(key, "-1")),
    ],
)
async def test_error_for_a_redis_key_of_the_wrong_type_names_the_key(
    store: PredictionStore,
    raw: redis.Redis,
    keys: Keys,
    key_name: str,
    damage: Callable[[redis.Redis, str], object],
) -> None:
    """The predictor continues with its prior, and the operator learns the reason."""
    damage(raw, getattr(keys, key_name))

    with pytest.raises(StoreError) as error:
        await store.load()
    assert getattr(keys, key_name) in str(error.value)


async def test_damaged_values_are_skipped_and_named_in_the_log(
    store: PredictionStore, raw: redis.Redis, keys: Keys
) -> None:
    raw.hset(keys.prediction_classes, mapping={"EV": "[]", "DM": "{}"})
    raw.hset(keys.prediction_learning, "EV", "not JSON")
    raw.hset(keys.prediction_models, "EV", '{"index": {}, "sha256": ""}')
    raw.rpush(keys.samples("EV"), '{"n": 1}', "NaN", *['{"n": 2}'] * 10)

    stored = await store.load()
    assert ({"DM": {}}, {}, {}) == (stored.classes, stored.learning, stored.models)
    for key, line in zip(
        (keys.prediction_classes, keys.prediction_learning, keys.prediction_models),
        stored.damage,
        strict=True,
    ):
        assert f"{key}[EV]" in line
    samples, unreadable = await store.load_samples("EV")
    assert ([{"n": 1}, *[{"n": 2}] * 10], 1) == (samples, unreadable)


async def test_damaged_observation_is_skipped(
    store: PredictionStore, raw: redis.Redis, keys: Keys
) -> None:
    raw.xadd(keys.prediction_observed, {"o": "NaN"})
    raw.xadd(keys.prediction_observed, {"p": "{}"})
    await store.add_observed([{"n": 1}])

    values = [value for _, value in await store.read_observed("0-0", 10)]
    assert [None, None, {"n": 1}] == values


async def test_damaged_index_of_models_can_be_replaced(
    store: PredictionStore, raw: redis.Redis, keys: Keys
) -> None:
    raw.hset(keys.prediction_models, "EV", "x")
    after = VersionIndex().published(b"1", {})

    assert await store.save_index("EV", VersionIndex(), after, b"1") is not None
    assert {"EV": after} == (await store.load()).models


async def test_value_that_json_cannot_represent_is_not_saved(
    store: PredictionStore, keys: Keys
) -> None:
    await store.hold("a", _HOLD_S)
    with pytest.raises(StoreError) as error:
        await store.save("a", Learned("1-0", classes={"EV": {"mean": object()}}), bound=10)

    assert f"{keys.prediction_classes}[EV]" in str(error.value)
    assert 0 == await store.revision()


async def test_unreachable_redis_is_a_store_error(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path / "data")
    server.start()
    store = PredictionStore(server.url, "a/m")
    server.stop()
    calls: list[Any] = [
        store.load,
        store.revision,
        lambda: store.load_samples("EV"),
        lambda: store.load_model("EV", 1),
        lambda: store.add_observed([{}]),
        store.observed_count,
        lambda: store.read_observed("0-0", 1),
        lambda: store.hold("a", 1.0),
        lambda: store.release("a"),
        lambda: store.save("a", Learned("1-0"), 1),
        lambda: store.save_index("EV", VersionIndex(), VersionIndex()),
    ]
    try:
        for call in calls:
            with pytest.raises(StoreError, match=r"Redis at unix://.*redis\.sock"):
                await call()
    finally:
        await store.aclose()
