"""The scheduler actor without Ray: its start, and the reason when it cannot start."""

import json
from typing import Any

import pytest

from justitia_ray.errors import StoreError
from justitia_ray.serve.scheduler import actor
from justitia_ray.serve.scheduler.actor import SchedulerActor
from tests.fake_redis import FakeSchedulerStore


class DamagedStore(FakeSchedulerStore):
    """Store with an unreadable application, until it is repaired."""

    def __init__(self) -> None:
        super().__init__()
        clock = {
            "virtual_time": 0,
            "kind": "served",
            "sequence": 0,
            "grants": 0,
            "policy": "justitia",
            "counted": {},
        }
        self.raw.set(self._keys.clock, json.dumps(clock))
        self.raw.hset(self._keys.applications, "a", '{"finish": "soon"}')

    def repair(self) -> None:
        self.raw.delete(self._keys.applications)


@pytest.fixture
def damaged_store(monkeypatch: pytest.MonkeyPatch) -> DamagedStore:
    damaged_store = DamagedStore()
    monkeypatch.setattr(actor, "scheduler_store", lambda *_: damaged_store)
    return damaged_store


@pytest.fixture
def app_config() -> dict[str, Any]:
    """Return arguments that name a Redis server, so that no embedded one is started."""
    return {"model": {"name": "m", "path": "none"}, "store": {"redis_url": "redis://127.0.0.1:1"}}


async def test_unreadable_scheduler_state_fails_waiting_callers_with_the_reason(
    damaged_store: DamagedStore, app_config: dict[str, Any]
) -> None:
    """An operator reads in the status why the store must be repaired."""
    scheduler = SchedulerActor(app_config)
    assert "starting" == (await scheduler.status())["degraded"]
    for _ in range(2):
        with pytest.raises(StoreError, match=r"applications\[a\]: the stored record is damaged"):
            await scheduler.cancel_application("a")

    status = await scheduler.status()
    assert not status["ready"]
    assert status["degraded"].startswith("applications[a]: the stored record is damaged")
    damaged_store.repair()
    assert not await scheduler.cancel_application("a")
    assert (await scheduler.status())["ready"]
    await scheduler.retire()
