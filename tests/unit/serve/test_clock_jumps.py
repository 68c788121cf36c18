"""The wall clock is set back or forward by hours while no scheduler runs, or while one does."""

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from justitia_ray.config import AppConfig, parse_app_config
from justitia_ray.core.actions import EndApplication, Grant
from justitia_ray.core.entities import ReplicaCapacity
from justitia_ray.core.events import ApplicationArrived, InferenceSubmitted
from justitia_ray.protocol.messages import Pull
from justitia_ray.serve.scheduler_service import SchedulerService
from justitia_ray.serve.steady_clock import SteadyClock
from justitia_ray.store.scheduler_store import SchedulerStore
from tests.eventually import eventually

from .memory_store import MemoryStore

_HOUR_S = 3_600.0
_NOON = 1_800_000_000.0
_NAMES = ("large", "small")


class Machine:
    """A machine whose wall clock is set by hand; its monotonic clock is the real one."""

    def __init__(self) -> None:
        self.wall_ahead_s = 0.0
        self.store = MemoryStore()
        self.services: list[SchedulerService] = []

    async def start(self, idle_s: float = 600.0) -> SchedulerService:
        """Let a scheduler take office on what the last one has left."""
        loop = asyncio.get_running_loop()
        clock = SteadyClock(loop.time, lambda: _NOON + self.wall_ahead_s + loop.time())
        service = SchedulerService(
            _config(idle_s), cast(SchedulerStore, self.store), lambda reason: None, clock=clock
        )
        self.services.append(service)
        await service.start()
        return service


def _config(idle_s: float) -> AppConfig:
    return parse_app_config(
        {
            "model": {"name": "m", "path": "none"},
            "scheduler": {"recovery_s": 0.02, "application_idle_s": idle_s},
            "store": {"save_interval_s": 0.01},
        }
    )


@pytest.fixture
async def machine() -> AsyncIterator[Machine]:
    """A machine; what runs on it is stopped at the end."""
    machine = Machine()
    yield machine
    for service in machine.services:
        await service.stop()


def opened(name: str, cost: float = 1_000.0) -> ApplicationArrived:
    """Return the opening of an application."""
    return ApplicationArrived(name, "c", "t", 1.0, cost, "i")


def inference(request_id: str, application_id: str) -> InferenceSubmitted:
    """Return an inference that is submitted again, three seconds old."""
    return InferenceSubmitted(
        request_id, application_id, "0", "i", 50, 10, 10, again=True, age_s=3.0
    )


def pull(number: int, epoch: int) -> Pull:
    """Return a pull of replica `r`, with room for one inference, that does not wait."""
    return Pull("r", epoch, number, 0, ReplicaCapacity(100), 100, (), (), 0, 0.0)


async def granted(service: SchedulerService, epoch: int) -> list[Grant]:
    """Let a replica pull until something is granted, and return that."""
    number = 0

    async def grants() -> list[Grant]:
        nonlocal number
        number += 1
        mail = await service.pull(pull(number, epoch))
        return [message for _, message in mail.messages if isinstance(message, Grant)]

    found: list[Grant] = await eventually(grants, "something is granted")
    return found


@pytest.mark.parametrize("jump_s", [-5 * _HOUR_S, 5 * _HOUR_S], ids=["back", "forward"])
async def test_ages_order_and_deadlines_outlive_a_jump_between_two_schedulers(
    machine: Machine, jump_s: float
) -> None:
    """What is stored is of another time: nothing may be of negative age, or end at once, or wait.

    The small application is opened last and has the least tag, before and after.
    """
    before = await machine.start()
    for name, cost in (("large", 9_000.0), ("small", 1_000.0)):
        await before.open_application(opened(name, cost))
    tags = {name: (await before.application(name) or {})["virtual_finish_time"] for name in _NAMES}
    await before.stop()
    machine.wall_ahead_s += jump_s
    after = await machine.start()
    await after.submit_many("i", 2, 0, (inference("l", "large"), inference("s", "small")))
    first = await granted(after, 2)
    known = {name: await after.application(name) or {} for name in _NAMES}

    assert tags == {name: one["virtual_finish_time"] for name, one in known.items()}
    assert all(one["age_s"] >= 0 for one in known.values())
    assert ["s"] == [grant.request_id for grant in first]
    assert 3.0 == pytest.approx(first[0].waited_s, abs=1.0)


@pytest.mark.parametrize("jump_s", [-5 * _HOUR_S, 5 * _HOUR_S], ids=["back", "forward"])
async def test_restored_application_ends_after_its_idle_time_and_not_before(
    machine: Machine, jump_s: float
) -> None:
    """Hours forward must not end it at once, hours back must not keep it for hours."""
    before = await machine.start()
    await before.open_application(opened("a"))
    await before.stop()
    machine.wall_ahead_s += jump_s
    after = await machine.start(idle_s=0.2)

    assert await after.application("a") is not None
    await after.submit_many("i", 2, 0, (opened("a"),))
    mail = await after.poll_grants("i", 2, 0)
    (ended,) = [message for _, message in mail.messages if isinstance(message, EndApplication)]
    assert ended.ended_at >= ended.arrived_at


async def test_jump_while_a_scheduler_runs_changes_nothing(machine: Machine) -> None:
    """Its clock takes the wall clock's time once, when it is made."""
    service = await machine.start()
    await service.open_application(opened("a"))
    machine.wall_ahead_s -= 5 * _HOUR_S
    age_s = (await service.application("a") or {})["age_s"]

    assert 0 <= age_s < 60


def test_clock_begins_no_earlier_than_what_was_noted() -> None:
    """The next instant is after all that is stored; a clock that is ahead stays as it is."""
    behind = SteadyClock(lambda: 100.0, lambda: 1_000.0)
    ahead = SteadyClock(lambda: 100.0, lambda: 9_000.0)
    for clock in (behind, ahead):
        clock.not_before(5_000.0)

    assert [5_000.0, 9_000.0] == [behind.now(), ahead.now()]
