"""What outlives a scheduler is what it decided, also when the store was away for a while."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.serve import state_keeper
from justitia_ray.serve.state_keeper import StateKeeper
from justitia_ray.store.scheduler_store import SchedulerStore, StaleEpoch
from tests.unit.serve.memory_store import MemoryStore


def keeper_of(store: MemoryStore, revive: Callable[[], None] = lambda: None) -> StateKeeper:
    return StateKeeper(cast(SchedulerStore, store), revive)


def opened(core: SchedulerCore, name: str) -> None:
    core.handle(ev.ApplicationArrived(name, "c", "t", 1.0, 100.0, "i"), 0.0)


async def test_application_that_ends_while_the_store_is_away_is_forgotten_later() -> None:
    """A stored one that nobody removes would come back, open, with the next scheduler."""
    store, core = MemoryStore(), SchedulerCore()
    keeper = keeper_of(store)
    epoch, _ = await keeper.take_office()
    opened(core, "a")
    opened(core, "b")
    await keeper.save(core, epoch, {})
    store.away = True
    core.handle(ev.ApplicationCancelled("a"), 1.0)
    await keeper.save(core, epoch, {})
    trouble = keeper.trouble
    store.away = False
    await keeper.save(core, epoch, {})

    assert "Redis at memory: away" == trouble
    assert keeper.trouble is None
    assert ["b"] == list(store.applications)


async def test_settings_changed_while_the_store_is_away_are_saved_later() -> None:
    """They are written only when they change, so a lost write would never be made good."""
    store, core = MemoryStore(), SchedulerCore()
    keeper = keeper_of(store)
    epoch, _ = await keeper.take_office()
    await keeper.save(core, epoch, {"policy": "justitia"})
    store.away = True
    keeper.save_everything()
    await keeper.save(core, epoch, {"policy": "fcfs"})
    store.away = False
    await keeper.save(core, epoch, {"policy": "fcfs"})

    assert {"policy": "fcfs"} == store.settings


async def test_failing_store_is_revived() -> None:
    """An embedded server that was killed has nobody else to start it again."""
    store, core = MemoryStore(), SchedulerCore()
    revived: list[bool] = []
    keeper = keeper_of(store, lambda: revived.append(True))
    epoch, _ = await keeper.take_office()
    store.away = True
    written = await keeper.save(core, epoch, {})
    await keeper.revive()

    assert (False, [True]) == (written, revived)


async def test_scheduler_of_an_old_epoch_is_told_so() -> None:
    """It must stand down, not try again."""
    store, core = MemoryStore(), SchedulerCore()
    keeper = keeper_of(store)
    epoch, _ = await keeper.take_office()
    await keeper_of(store).take_office()

    with pytest.raises(StaleEpoch):
        await keeper.save(core, epoch, {})


async def test_many_applications_are_written_in_parts_and_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One write of 200,000 takes longer than Redis is waited for: it would never succeed."""
    monkeypatch.setattr(state_keeper, "_MOST_AT_ONCE", 4)
    store, core = MemoryStore(), SchedulerCore()
    keeper = keeper_of(store)
    epoch, _ = await keeper.take_office()
    for i in range(10):
        opened(core, f"a{i}")
    await keeper.save(core, epoch, {"policy": "justitia"})
    core.handle(ev.ApplicationCancelled("a3"), 1.0)
    await keeper.save(core, epoch, {"policy": "justitia"})

    assert [f"a{i}" for i in range(10) if i != 3] == sorted(store.applications)
    assert {"policy": "justitia"} == store.settings
    assert 2 == keeper.saves


class LeavingStore(MemoryStore):
    """Away after its first save, once."""

    async def save(self, *arguments: Any) -> bool:
        kept = await super().save(*arguments)
        self.away = self.saves == 1
        return kept


async def test_store_that_fails_between_two_parts_gets_all_of_them_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was written of a save that failed is not known."""
    monkeypatch.setattr(state_keeper, "_MOST_AT_ONCE", 4)
    store, core = LeavingStore(), SchedulerCore()
    keeper = keeper_of(store)
    epoch, _ = await keeper.take_office()
    for i in range(10):
        opened(core, f"a{i}")
    saved = await keeper.save(core, epoch, {})
    written = len(store.applications)
    store.away = False
    again = await keeper.save(core, epoch, {})

    assert (False, 4) == (saved, written)
    assert again
    assert 10 == len(store.applications)
