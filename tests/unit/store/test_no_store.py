"""Without a store only the increase of epochs is guaranteed."""

from justitia_ray.store.prediction_store import PredictionMemory
from justitia_ray.store.scheduler_store import NoStore, StoredState


async def test_scheduler_epochs_follow_the_clock_and_always_increase() -> None:
    """Replicas ignore an epoch below the last one, and the clock may have been set back."""
    first = await NoStore(lambda: 1_790_000_000.5).become_leader()
    behind = NoStore(lambda: 1_780_000_000.0)

    assert 1_790_000_000_500 == first
    assert 1_780_000_000_000 == await behind.become_leader()
    assert first + 1 == await behind.become_leader(above=first)


async def test_saved_state_is_lost_without_a_store() -> None:
    store = NoStore()
    epoch = await store.become_leader()

    assert await store.save(epoch, {"v": 1}, {"a": {}}, (), {"policy": "fcfs"}, {"r": {}})
    assert StoredState(None, {}, None, {}) == await store.load()


async def test_observation_ids_have_the_form_and_order_of_stream_ids() -> None:
    """The predictor finds new observations, and their times, by ids like those of Redis."""
    wall = iter([1_790_000_000.0, 1_790_000_000.0, 1_780_000_000.0, 1_790_000_001.0])
    memory = PredictionMemory(lambda: next(wall))
    await memory.add_observed([{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}])
    entries = await memory.read_observed("", 10)
    ids = [entry_id for entry_id, _ in entries]

    assert ids == sorted(set(ids))
    assert ["1790000000000"] * 3 + ["1790000001000"] == [name.partition("-")[0] for name in ids]
    assert [{"n": 3}, {"n": 4}] == [value for _, value in await memory.read_observed(ids[1], 10)]
