"""Two schedulers on a real Redis, at once or in turn, and a Redis that restarts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from justitia_ray.config import AppConfig
from justitia_ray.errors import SchedulerSuperseded
from justitia_ray.serve.scheduler.leadership import Term
from justitia_ray.serve.scheduler.service import SchedulerService
from justitia_ray.store.embedded import EmbeddedRedis
from justitia_ray.store.leader import LeaderRecord
from justitia_ray.store.scheduler_store import SchedulerStore
from justitia_ray.store.schema import SCHEMA_VERSION, Keys
from tests.eventually import eventually
from tests.unit.serve.scheduler.services import (
    PullingReplica,
    arrival_of,
    granted_ids,
    pull_of,
    submission_of,
    wait_until_pulling,
)
from tests.unit.store.version_one import APPLICATION, CLOCK

pytestmark = pytest.mark.redis

Start = Callable[..., Awaitable[SchedulerService]]


def config_that_saves_often(**section: Any) -> AppConfig:
    """Return the arguments of an application that saves its state often."""
    return AppConfig.parse(
        {
            "model": {"name": "m", "path": "none"},
            "scheduler": {"recovery_s": 0.05},
            "store": {"save_interval_s": 0.02, **section},
        }
    )


@pytest.fixture
async def start(server: EmbeddedRedis, name: str) -> AsyncIterator[Start]:
    services: list[SchedulerService] = []

    async def start_scheduler(
        host: str = "gpu-1",
        above: int = 0,
        revive: Callable[[], None] | None = None,
        **section: Any,
    ) -> SchedulerService:
        store = SchedulerStore(
            server.url, name, leader=LeaderRecord("ns", f"actor-{host}", "1", host)
        )
        service = SchedulerService(
            Term(config_that_saves_often(**section), store, lambda reason: None)
        )
        services.append(service)
        await service.term.begin(above)
        if not service.term.has_settings.is_set():
            await service.configure({})
        return service

    yield start_scheduler
    for service in services:
        await service.term.end()


async def test_second_deployment_of_a_name_leads_and_the_first_reports_this(start: Start) -> None:
    """If two deployments share a name by mistake, nothing is leased twice, and the log says so."""
    first = await start("gpu-1")
    replica = PullingReplica(first, first.term.epoch)
    await wait_until_pulling(first)
    second = await start("gpu-2")
    await eventually(lambda: first.term.lost, "the first one finds out")
    await replica.stop()
    epoch = second.term.epoch
    with pytest.raises(SchedulerSuperseded, match=rf"epoch {epoch} leads, .* host gpu-2"):
        await first.submit_many("i", 1, 0, (arrival_of(), submission_of("q")))
    other = PullingReplica(second, epoch)
    await wait_until_pulling(second)
    mail = await second.submit_many("i", epoch, 0, (arrival_of(), submission_of("q")))
    await other.stop()

    assert ["q"] == granted_ids(mail)
    assert not first.inspector.status().ready
    status = second.inspector.status()
    assert (True, None) == (status.ready, status.degraded)


async def test_scheduler_writes_its_complete_state_to_an_emptied_redis(
    start: Start, raw: redis.Redis, keys: Keys
) -> None:
    """A Redis without persistence restarts empty; the next scheduler needs the complete state."""
    service = await start()
    epoch = service.term.epoch
    await service.configure({"policy": "vtc", "admission": "prompt"})
    await service.pull(pull_of(1, epoch=epoch))
    for name in ("a", "b"):
        await service.open_application(arrival_of(name))
    await eventually(lambda: raw.hlen(keys.applications) == 2, "it is saved")
    names = (keys.schema, keys.epoch, keys.leader, keys.clock, keys.settings, keys.applications)
    before = {key: raw.dump(key) for key in (keys.leader, keys.settings, keys.replicas)}
    raw.flushall()
    await eventually(lambda: raw.exists(*names, keys.replicas) == 7, "everything is there again")

    assert (str(epoch), str(SCHEMA_VERSION)) == (raw.get(keys.epoch), raw.get(keys.schema))
    assert before == {key: raw.dump(key) for key in before}
    successor = await start()
    known = await successor.application("b")
    assert known is not None
    assert "vtc" == successor.inspector.status().policy


async def test_stored_data_of_version_1_are_migrated_when_a_scheduler_becomes_leader(
    start: Start, server: EmbeddedRedis, name: str, raw: redis.Redis, keys: Keys
) -> None:
    """An upgrade keeps the fair-share state; the older version can no longer write."""
    older = SchedulerStore(server.url, name)
    epoch = await older.become_leader()
    await older.save(epoch, CLOCK, {"a": APPLICATION}, ())
    await older.aclose()
    raw.set(keys.schema, "1")
    raw.delete(keys.leader)
    service = await start()
    known = await service.application("t|a")

    assert known is not None
    assert (1_012.5, 640.0) == (known["virtual_finish_time"], known["kv_token_time"])
    assert str(SCHEMA_VERSION) == raw.get(keys.schema)
    assert epoch < int(str(raw.get(keys.epoch)))
    assert '"replicas":[]' in str(raw.hget(keys.applications, "t|a"))


async def test_interrupted_data_migration_starts_from_the_beginning(
    server: EmbeddedRedis, name: str, raw: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored data stay those of the older version until the migration is complete."""
    older = SchedulerStore(server.url, name)
    first = await older.become_leader()
    await older.save(first, CLOCK, {"a": APPLICATION}, ())
    raw.set(keys.schema, "1")
    before = raw.hgetall(keys.applications)

    async def die_during_migration(*_: Any, **__: Any) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(older, "_migrate", die_during_migration)
    with pytest.raises(asyncio.CancelledError):
        await older.become_leader()
    cut_off = (raw.get(keys.schema), raw.hgetall(keys.applications))
    second = int(str(raw.get(keys.epoch)))
    await older.aclose()
    newer = SchedulerStore(server.url, name)
    epoch = await newer.become_leader()
    migrated = (await newer.load()).applications["t|a"]
    await newer.aclose()

    assert ("1", before) == cut_off
    assert first < second < epoch
    assert ([], 640.0) == (migrated["replicas"], migrated["kv_token_time"])


async def test_killed_embedded_redis_is_restarted_and_no_data_is_lost(tmp_path: Path) -> None:
    """Grants continue while Redis is down, and changes are saved once it is back."""
    server = EmbeddedRedis(tmp_path / "data")
    server.start()
    store = SchedulerStore(server.url, "a/m")
    service = SchedulerService(
        Term(config_that_saves_often(), store, lambda reason: None, server.start)
    )
    await service.term.begin()
    await service.configure({})
    epoch = service.term.epoch
    replica = PullingReplica(service, epoch)
    await wait_until_pulling(service)
    try:
        assert server._process is not None
        server._process.kill()
        server._process.wait()
        meanwhile = granted_ids(
            await service.submit_many("i", epoch, 0, (arrival_of(), submission_of("q")))
        )
        await eventually(lambda: service.term.checkpointer.trouble, "it notices")

        async def state_is_saved() -> bool:
            is_there = service.term.checkpointer.trouble is None
            return is_there and "a" in (await store.load()).applications

        assert await eventually(state_is_saved, "it is back")
        assert ["q"] == meanwhile
    finally:
        await replica.stop()
        await service.term.end()
        server.stop()
