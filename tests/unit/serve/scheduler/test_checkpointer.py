"""Checkpoints contain every decision of the scheduler, even after a store outage."""

from typing import Any

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.serve.scheduler import checkpointer
from tests.fake_redis import AWAY, FakeSchedulerStore
from tests.unit.serve.scheduler.services import CheckpointedCore


def open_application(core: SchedulerCore, name: str) -> None:
    core.handle(ev.ApplicationArrived(name, "c", "t", 1.0, 100.0, "i"), 0.0)


async def leading_core() -> tuple[FakeSchedulerStore, CheckpointedCore]:
    store = FakeSchedulerStore()
    kept = CheckpointedCore(store)
    await kept.become_leader()
    return store, kept


async def test_application_that_ends_in_a_store_outage_is_removed_later() -> None:
    """An application that stays stored would be open again at the next scheduler."""
    store, kept = await leading_core()
    open_application(kept.core, "a")
    open_application(kept.core, "b")
    await kept.save()
    store.away = True
    kept.core.handle(ev.ApplicationCancelled("a"), 1.0)
    await kept.save()
    trouble = kept.checkpointer.trouble
    store.away = False
    await kept.save()

    assert AWAY == trouble
    assert kept.checkpointer.trouble is None
    assert ["b"] == list(store.stored_applications())


async def test_settings_changed_during_a_store_outage_are_saved_later() -> None:
    """Settings are written only on change, so a lost write would never be repeated."""
    store, kept = await leading_core()
    kept.settings = {"policy": "justitia"}
    await kept.save()
    store.away = True
    kept.checkpointer.save_everything()
    kept.settings = {"policy": "fcfs"}
    await kept.save()
    store.away = False
    kept.settings = {"policy": "fcfs"}
    await kept.save()

    assert {"policy": "fcfs"} == store.stored_settings()


async def test_many_applications_are_saved_in_several_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One write of 200,000 applications would exceed the timeout of Redis every time."""
    monkeypatch.setattr(checkpointer, "_MOST_AT_ONCE", 4)
    store, kept = await leading_core()
    for i in range(10):
        open_application(kept.core, f"a{i}")
    kept.settings = {"policy": "justitia"}
    await kept.save()
    kept.core.handle(ev.ApplicationCancelled("a3"), 1.0)
    kept.settings = {"policy": "justitia"}
    await kept.save()

    assert [f"a{i}" for i in range(10) if i != 3] == sorted(store.stored_applications())
    assert {"policy": "justitia"} == store.stored_settings()
    assert 2 == kept.checkpointer.saves


class FailingStore(FakeSchedulerStore):
    """Store that is unreachable once, after its first save."""

    async def save(self, *arguments: Any) -> bool:
        kept = await super().save(*arguments)
        self.away = self.saves == 1
        return kept


async def test_interrupted_save_is_repeated_with_all_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpointer, "_MOST_AT_ONCE", 4)
    store = FailingStore()
    kept = CheckpointedCore(store)
    await kept.become_leader()
    for i in range(10):
        open_application(kept.core, f"a{i}")
    saved = await kept.save()
    written = len(store.stored_applications())
    store.away = False
    again = await kept.save()

    assert (False, 4) == (saved, written)
    assert again
    assert 10 == len(store.stored_applications())


class EmptiedStore(FakeSchedulerStore):
    """Store that loses its data before its second save, while the settings change."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: CheckpointedCore | None = None
        """Scheduler core whose save reaches the emptied store."""

    async def save(self, *arguments: Any) -> bool:
        if self.kept is not None:
            self.raw.flushall()
            self.kept.settings = {"policy": "fcfs"}
            self.kept.checkpointer.save_everything()
            self.kept = None
        return await super().save(*arguments)


async def test_settings_changed_during_a_save_reach_an_emptied_store() -> None:
    store = EmptiedStore()
    kept = CheckpointedCore(store)
    await kept.become_leader()
    kept.settings = {"policy": "justitia"}
    await kept.save()
    store.kept = kept
    await kept.save()

    assert {"policy": "fcfs"} == store.stored_settings()
