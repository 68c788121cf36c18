"""One scheduler at a time hands out leases; one that has lost its office says so, and to whom."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from justitia_ray.errors import SchedulerSuperseded
from justitia_ray.store.scheduler_store import StaleEpoch
from tests.eventually import eventually
from tests.unit.serve.memory_store import MemoryStore
from tests.unit.serve.scheduler_office import (
    Office,
    PullingReplica,
    exporter_of,
    granted,
    inference,
    opened,
    pull,
    waits_for_work,
)

STALL_S = 5.0
WINNER = {"host": "gpu-9", "process_id": 4_711, "namespace": "n", "version": "9", "since": 0.0}


class Redis(MemoryStore):
    """A store whose saves wait while it is held, and that may belong to somebody else."""

    def __init__(self) -> None:
        super().__init__()
        self.free = asyncio.Event()
        self.free.set()
        self.tried = 0
        self.by_own_successor = False

    async def save(self, *arguments: Any) -> bool:
        """Save once the store is let go."""
        self.tried += 1
        await self.free.wait()
        epoch = arguments[0]
        if not self.away and self.epoch > epoch:
            raise StaleEpoch(epoch, self.epoch, WINNER, self.by_own_successor)
        return await super().save(*arguments)


@pytest.fixture
async def office() -> AsyncIterator[Office]:
    """A store that one can hold."""
    office = Office(Redis())
    yield office
    redis_of(office).free.set()
    await office.close()


def redis_of(office: Office) -> Redis:
    """Return the office's store."""
    assert isinstance(office.store, Redis)
    return office.store


async def test_scheduler_that_lost_its_office_hands_out_nothing_and_says_to_whom(
    office: Office,
) -> None:
    """Two deployments of one name: ingresses must not say `being started again` for ever."""
    old = await office.serving()
    waiting = asyncio.create_task(old.poll_grants("i", 1, 0))
    await eventually(lambda: "i" in old._driver.mail._ingresses, "it polls")
    new = await office.start()
    old._tenure.heard_of(2)
    told = "epoch 2 is in office, held by process 4711 on host gpu-9 .* another name"
    with pytest.raises(SchedulerSuperseded, match=told):
        await waiting
    for call in (
        lambda: old.open_application(opened()),
        lambda: old.submit_many("i", 1, 0, (opened(), inference("q"))),
        lambda: old.poll_grants("i", 1, 0),
        lambda: old.pull(pull(2)),
        lambda: old.configure({}),
        lambda: old.application("a"),
    ):
        with pytest.raises(SchedulerSuperseded, match="gpu-9"):
            await call()

    status = await old.status()
    assert (False, 1) == (status["ready"], status["epoch"])
    assert "epoch 2 is in office" in status["degraded"]
    assert [] == office.reasons
    office.replicas.append(PullingReplica(new, 2))
    await waits_for_work(new)
    assert ["q"] == granted(await new.submit_many("i", 2, 0, (opened(), inference("q"))))


async def test_scheduler_that_lost_its_office_tells_of_no_queue_any_more(office: Office) -> None:
    """Its process lives on while somebody asks: what it told last would be added to the other's."""
    old = await office.start()
    await old.open_application(opened())
    await old.submit_many("i", 1, 0, (inference("q"),))
    exporter_of(old).export()
    before = dict(office.told[0].gauges)
    office.store.epoch = 2
    old._tenure.heard_of(2)
    await eventually(lambda: old._tenure.lost, "it has noticed")
    gauges = ("waiting_inferences",), ("live_applications",), ("backlog_kv_tokens",)

    assert [1, 1, 30] == [before[name] for name in gauges]
    assert [0, 0, 0] == [office.told[0].gauges[name] for name in gauges]
    assert exporter_of(old)._has_ended


async def test_scheduler_that_lost_its_office_never_writes_again(office: Office) -> None:
    """Also not when the store was emptied, and would take its epoch."""
    old = await office.start()
    office.store.epoch = 2
    old._tenure.heard_of(2)
    await eventually(lambda: old._tenure.lost, "it has noticed")
    office.store.epoch = 0
    await old.stop()

    assert (0, 0) == (office.store.epoch, office.store.saves)


async def test_process_that_ray_has_replaced_ends_at_once(office: Office) -> None:
    """Callers are led to the new process of the same actor: nobody is left to be told."""
    service = await office.start()
    redis_of(office).by_own_successor = True
    office.store.epoch = 2
    service._tenure.heard_of(2)
    await eventually(lambda: office.reasons, "it stands down")

    assert service.is_succeeded
    assert ["another process of this actor is in office"] == office.reasons


async def test_nothing_is_handed_out_after_a_stall_before_the_epoch_is_confirmed(
    office: Office,
) -> None:
    """A process that was stopped cannot know who took office meanwhile."""
    old = await office.serving()
    office.hands.at += STALL_S
    redis_of(office).free.clear()
    mail = asyncio.create_task(old.submit_many("i", 1, 0, (opened(), inference("q"))))
    await eventually(lambda: redis_of(office).tried, "it asks the store")
    was_done = mail.done()
    office.store.epoch = 2
    redis_of(office).free.set()

    assert not was_done
    with pytest.raises(SchedulerSuperseded):
        await mail


async def test_stall_that_cost_no_office_delays_the_mail_and_no_more(office: Office) -> None:
    """Most stalls are short: the grants are still good."""
    service = await office.serving()
    office.hands.at += STALL_S

    assert ["q"] == granted(await service.submit_many("i", 1, 0, (opened(), inference("q"))))
    assert 1 == redis_of(office).tried


async def test_save_that_began_before_the_stall_confirms_nothing(office: Office) -> None:
    """It may have been written before another scheduler took office."""
    service = await office.serving()
    redis_of(office).free.clear()
    service._tenure._saver.save_soon()
    await eventually(lambda: redis_of(office).tried, "a save is on its way")
    office.hands.at += STALL_S
    mail = asyncio.create_task(service.submit_many("i", 1, 0, (opened(), inference("q"))))
    redis_of(office).free.set()

    assert ["q"] == granted(await mail)
    assert 2 == redis_of(office).tried


async def test_mail_waits_if_the_last_confirmation_is_old(office: Office) -> None:
    """A store that takes long to say no could otherwise be overtaken."""
    service = await office.serving()
    redis_of(office).free.clear()
    service._tenure._saver._bound_s = -1.0
    mail = asyncio.create_task(service.submit_many("i", 1, 0, (opened(), inference("q"))))
    await eventually(lambda: redis_of(office).tried, "it asks the store")
    was_done = mail.done()
    redis_of(office).free.set()

    assert not was_done
    assert ["q"] == granted(await mail)


async def test_scheduling_goes_on_in_memory_while_the_store_is_away(office: Office) -> None:
    """The store is not what decides; it only remembers."""
    service = await office.serving()
    office.store.away = True
    service._tenure._saver._bound_s = -1.0
    first = granted(await service.submit_many("i", 1, 0, (opened(), inference("q1"))))
    tried = redis_of(office).tried
    await waits_for_work(service)
    second = granted(await service.submit_many("i", 1, 1, (inference("q2"),)))

    assert (["q1"], ["q2"]) == (first, second)
    assert (1, 1) == (tried, redis_of(office).tried)  # the second did not ask again


async def test_higher_epoch_that_the_store_has_lost_begins_again_above_it(office: Office) -> None:
    """An emptied store would give out epochs that nobody listens to any more."""
    service = await office.start()
    answer = await service.poll_grants("i", 7, 0)
    await eventually(lambda: office.outranked, "the store was asked")

    assert (1, [7]) == (answer.epoch, office.outranked)


async def test_higher_epoch_that_the_store_knows_is_the_end(office: Office) -> None:
    """A replica that has heard of the successor tells an old scheduler sooner than a save would."""
    service = await office.start()
    office.store.epoch = 2
    await service.pull(pull(1, epoch=2))
    await eventually(lambda: service._tenure.lost, "the store was asked")

    assert [] == office.outranked


async def test_lower_epoch_is_no_news(office: Office) -> None:
    """Everybody calls with an old one after a restart."""
    service = await office.start()
    await service.pull(pull(1, epoch=0))

    assert not service._tenure._saver._wanted.is_set()


async def test_error_of_ours_does_not_end_saving(
    office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A scheduler that no longer saves would lose everything with the next restart, unnoticed."""
    service = await office.start()
    with monkeypatch.context() as patch:
        patch.setattr(service._office.keeper, "save", None)
        assert not await service._tenure._saver.next_save()

    assert await service._tenure._saver.next_save()
    assert ["scheduler.save_failed"] == [r.message for r in caplog.records if r.exc_info]
