"""The simulation's store follows the rules of the real one, whose scripts run in memory here.

The simulation does not use the real store itself: 60 seeds took 1.7 times as long with it.
"""

import random
from typing import Any

import pytest

from justitia_ray.store.leader import StaleEpoch
from justitia_ray.store.scheduler_store import SchedulerStore
from tests.fake_redis import FakeSchedulerStore
from tests.harness.simulation.store import RedisMemory, StoreClient

_Store = SchedulerStore | StoreClient


async def _store_answers(first: _Store, second: _Store, lose: Any) -> list[object]:
    """Return the store's answers to two consecutive schedulers, before and after a loss of data."""
    old = await first.become_leader()
    seen: list[object] = [
        await first.save(old, {"v": 1}, {"a": {"f": 1}, "b": {"f": 2}}, (), {"p": 1}, {"r": {}}),
        await first.save(old, None, {"c": {"f": 3}}, ("a",)),
    ]
    new = await second.become_leader()
    loaded = await second.load()
    seen += [loaded.clock, loaded.applications, loaded.settings, loaded.replicas]
    seen += [new > old, loaded.epoch == new]
    with pytest.raises(StaleEpoch) as stale:
        await first.save(old, {"v": 9}, {}, ())
    seen.append((stale.value.ours, stale.value.theirs) == (old, new))
    seen.append(await second.save(new, {"v": 2}, {"d": {"f": 4}}, ("nobody",), None, {}))
    lose()
    seen.append(await second.save(new, {"v": 3}, {"e": {"f": 5}}, ()))
    seen.append(await second.save(new, {"v": 4}, {"e": {"f": 5}}, ()))
    loaded = await second.load()
    seen += [loaded.clock, loaded.applications, loaded.settings, loaded.replicas]
    seen.append(await second.become_leader(above=new + 10**15) == new + 10**15 + 1)
    return seen


async def test_simulated_store_answers_as_the_real_store_does() -> None:
    """A simulation with a different store would find other errors and miss real ones."""
    redis = RedisMemory()
    first, second = (StoreClient(redis, random.Random(seed), dict) for seed in (1, 2))
    simulated = await _store_answers(first, second, redis.empty)
    real = FakeSchedulerStore()

    assert await _store_answers(real, real, real.raw.flushall) == simulated
