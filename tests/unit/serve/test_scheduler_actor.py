"""The actor's own part, without Ray: starting, and saying why it cannot."""

from typing import Any

import pytest

from justitia_ray.errors import StoreError
from justitia_ray.serve import scheduler_actor
from justitia_ray.serve.scheduler_actor import SchedulerActor

from .memory_store import MemoryStore


class DamagedStore(MemoryStore):
    """Holds an application that nobody can read, until it is repaired."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = {
            "virtual_time": 0,
            "kind": "served",
            "sequence": 0,
            "grants": 0,
            "policy": "justitia",
            "counted": {},
        }
        self.applications = {"a": {"finish": "soon"}}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> DamagedStore:
    """The store that the actor opens."""
    store = DamagedStore()
    monkeypatch.setattr(scheduler_actor, "scheduler_store", lambda *_: store)
    return store


@pytest.fixture
def config() -> dict[str, Any]:
    """Arguments that name a server, so that no embedded one is started."""
    return {"model": {"name": "m", "path": "none"}, "store": {"redis_url": "redis://127.0.0.1:1"}}


async def test_state_that_cannot_be_read_is_named_and_callers_are_not_left_waiting(
    store: DamagedStore, config: dict[str, Any]
) -> None:
    """An operator has to repair the store, and sees in the status what is wrong with it."""
    actor = SchedulerActor(config)
    assert "starting" == (await actor.status())["degraded"]
    for _ in range(2):
        with pytest.raises(StoreError, match=r"applications\[a\]: the stored record is damaged"):
            await actor.cancel_application("a")

    status = await actor.status()
    assert not status["ready"]
    assert status["degraded"].startswith("applications[a]: the stored record is damaged")
    store.applications.clear()
    assert not await actor.cancel_application("a")
    assert (await actor.status())["ready"]
    await actor.retire()
