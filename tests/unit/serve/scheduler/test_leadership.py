"""Only one scheduler grants leases at a time; a superseded one names its successor."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from justitia_ray.errors import SchedulerSuperseded
from justitia_ray.store.leader import LeaderRecord
from tests.eventually import eventually
from tests.unit.serve.scheduler.services import (
    PullingReplica,
    Services,
    arrival_of,
    exporter_of,
    granted_ids,
    pull_of,
    submission_of,
    wait_until_pulling,
)

STALL_S = 5.0
WINNER = LeaderRecord(host="gpu-9", process_id=4_711, namespace="n", version="9", since=0.0)


@pytest.fixture
async def services() -> AsyncIterator[Services]:
    services = Services()
    yield services
    await services.close()


async def test_superseded_scheduler_grants_no_lease_and_names_the_leader(
    services: Services,
) -> None:
    """If two deployments share a name, ingresses must not report a restart forever."""
    old = await services.start_with_replica()
    waiting = asyncio.create_task(old.poll_grants("i", 1, 0))
    await eventually(lambda: "i" in old.term.driver.outboxes.ingresses, "it polls")
    services.store._leader = WINNER
    new = await services.start_leader()
    old.term.note_epoch(2)
    told = "epoch 2 leads, held by process 4711 on host gpu-9 .* another name"
    with pytest.raises(SchedulerSuperseded, match=told):
        await waiting
    for call in (
        lambda: old.open_application(arrival_of()),
        lambda: old.submit_many("i", 1, 0, (arrival_of(), submission_of("q"))),
        lambda: old.poll_grants("i", 1, 0),
        lambda: old.pull(pull_of(2)),
        lambda: old.configure({}),
        lambda: old.application("a"),
    ):
        with pytest.raises(SchedulerSuperseded, match="gpu-9"):
            await call()

    status = old.inspector.status()
    assert (False, 1) == (status.ready, status.epoch)
    assert "epoch 2 leads" in (status.degraded or "")
    assert [] == services.reasons
    services.replicas.append(PullingReplica(new, 2))
    await wait_until_pulling(new)
    assert ["q"] == granted_ids(
        await new.submit_many("i", 2, 0, (arrival_of(), submission_of("q")))
    )


@pytest.mark.parametrize("is_lost", [True, False])
async def test_replaced_scheduler_handles_no_more_events(services: Services, is_lost: bool) -> None:
    """A replaced scheduler would expire replicas and log ends of applications that are not true."""
    service = await services.start_with_replica()
    await service.open_application(arrival_of())
    driver, handled = service.term.driver, list[str]()
    if is_lost:
        services.store.epoch = 2
        service.term.note_epoch(2)
        await eventually(lambda: service.term.lost, "it has noticed")
    else:
        await service.term.end()
    driver.observer = lambda event, actions, now: handled.append(type(event).__name__)
    pulling = services.replicas[0]._task
    if is_lost:
        await asyncio.wait([pulling])
        with pytest.raises(SchedulerSuperseded):
            pulling.result()
    else:
        await services.replicas[0].stop()
    service.replica_disconnected("r")

    assert ([], None) == (handled, driver._timer)


async def test_superseded_scheduler_exports_no_queue_metrics(services: Services) -> None:
    """Metrics of a replaced process would be added to the next scheduler's."""
    old = await services.start_leader()
    await old.open_application(arrival_of())
    await old.submit_many("i", 1, 0, (submission_of("q"),))
    exporter_of(old).export()
    before = dict(services.told.gauges)
    services.store.epoch = 2
    old.term.note_epoch(2)
    await eventually(lambda: old.term.lost, "it has noticed")
    gauges = ("waiting_inferences",), ("live_applications",), ("backlog_kv_tokens",)

    assert [1, 1, 30] == [before[name] for name in gauges]
    assert [0, 0, 0] == [services.told.gauges[name] for name in gauges]
    told = services.told.calls
    await old.term.end()
    assert told == services.told.calls


async def test_scheduler_that_lost_its_leadership_never_writes_again(services: Services) -> None:
    old = await services.start_leader()
    services.store.epoch = 2
    old.term.note_epoch(2)
    await eventually(lambda: old.term.lost, "it has noticed")
    services.store.epoch = 0
    await old.term.end()

    assert (0, 0) == (services.store.epoch, services.store.saves)


async def test_scheduler_process_that_ray_has_replaced_exits_at_once(services: Services) -> None:
    """Callers already reach the actor's new process."""
    service = await services.start_leader()
    successor = services.store._leader = replace(WINNER, actor="the same")
    services.store.put_leader(2, successor)
    service.term.note_epoch(2)
    await eventually(lambda: services.reasons, "it steps down")

    assert service.term.has_successor
    assert ["another process of this actor leads"] == services.reasons


async def test_grants_after_a_stall_wait_until_the_epoch_is_confirmed(
    services: Services,
) -> None:
    """A process that was suspended cannot know whether another one became the leader."""
    old = await services.start_with_replica()
    services.hands.at += STALL_S
    services.store.free.clear()
    mail = asyncio.create_task(old.submit_many("i", 1, 0, (arrival_of(), submission_of("q"))))
    await eventually(lambda: services.store.tried, "it asks the store")
    was_done = mail.done()
    services.store.epoch = 2
    services.store.free.set()

    assert not was_done
    with pytest.raises(SchedulerSuperseded):
        await mail


async def test_stall_without_loss_of_leadership_only_delays_messages(services: Services) -> None:
    """Most stalls are short, and the grants are still valid."""
    service = await services.start_with_replica()
    services.hands.at += STALL_S

    assert ["q"] == granted_ids(
        await service.submit_many("i", 1, 0, (arrival_of(), submission_of("q")))
    )
    assert 1 == services.store.tried


async def test_save_that_began_before_a_stall_does_not_confirm_the_leadership(
    services: Services,
) -> None:
    """The save may have been written before another scheduler took over."""
    service = await services.start_with_replica()
    services.store.free.clear()
    service.term.checkpointer.save_soon()
    await eventually(lambda: services.store.tried, "a save is on its way")
    services.hands.at += STALL_S
    mail = asyncio.create_task(service.submit_many("i", 1, 0, (arrival_of(), submission_of("q"))))
    services.store.free.set()

    assert ["q"] == granted_ids(await mail)
    assert 2 == services.store.tried


async def test_messages_wait_until_an_old_leadership_is_confirmed_again(
    services: Services,
) -> None:
    """While the store is slow, another scheduler could take over unnoticed."""
    service = await services.start_with_replica()
    services.store.free.clear()
    service.term.checkpointer._bound_s = -1.0
    mail = asyncio.create_task(service.submit_many("i", 1, 0, (arrival_of(), submission_of("q"))))
    await eventually(lambda: services.store.tried, "it asks the store")
    was_done = mail.done()
    services.store.free.set()

    assert not was_done
    assert ["q"] == granted_ids(await mail)


async def test_scheduling_continues_in_memory_while_the_store_is_unreachable(
    services: Services,
) -> None:
    """Decisions are made in memory; the store keeps a copy."""
    service = await services.start_with_replica()
    services.store.away = True
    service.term.checkpointer._bound_s = -1.0
    first = granted_ids(await service.submit_many("i", 1, 0, (arrival_of(), submission_of("q1"))))
    tried = services.store.tried
    await wait_until_pulling(service)
    second = granted_ids(await service.submit_many("i", 1, 1, (submission_of("q2"),)))

    assert (["q1"], ["q2"]) == (first, second)
    assert (1, 1) == (tried, services.store.tried)  # The second save was not attempted.


async def test_scheduler_raises_the_epoch_that_its_store_lost(
    services: Services,
) -> None:
    """Replicas and ingresses ignore the low epochs that an emptied store issues."""
    service = await services.start_leader()
    answer = await service.poll_grants("i", 7, 0)
    await eventually(lambda: services.outranked, "the store was asked")

    assert (1, [7]) == (answer.epoch, services.outranked)


async def test_higher_epoch_in_the_store_supersedes_the_scheduler(services: Services) -> None:
    """A replica of the next scheduler reports the higher epoch before a save would."""
    service = await services.start_leader()
    services.store.epoch = 2
    await service.pull(pull_of(1, epoch=2))
    await eventually(lambda: service.term.lost, "the store was asked")

    assert [] == services.outranked


async def test_lower_scheduler_epoch_is_ignored(services: Services) -> None:
    service = await services.start_leader()
    await service.pull(pull_of(1, epoch=0))

    assert not service.term.checkpointer._wanted.is_set()


async def test_internal_error_does_not_stop_the_checkpoints(
    services: Services, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A scheduler that stopped saving would lose everything at the next restart."""
    service = await services.start_leader()
    with monkeypatch.context() as patch:
        patch.setattr(service.term.checkpointer, "_write_changes", None)
        assert not await service.term.checkpointer.next_save()

    assert await service.term.checkpointer.next_save()
    assert ["scheduler.save_failed"] == [r.message for r in caplog.records if r.exc_info]
