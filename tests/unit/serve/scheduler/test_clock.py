"""The scheduler's clock leaves out the time in which the scheduler itself was stalled."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from justitia_ray.core.actions import EndApplication, Grant
from justitia_ray.core.events import InferenceSubmitted
from justitia_ray.serve.scheduler.clock import SteadyClock
from justitia_ray.serve.scheduler.service import SchedulerService
from tests.eventually import eventually
from tests.unit.serve.scheduler import services
from tests.unit.serve.scheduler.services import (
    ManualClock,
    Services,
    arrival_of,
    grants_in,
    pull_of,
)


def test_scheduler_clock_advances_with_the_process() -> None:
    monotonic = ManualClock()
    clock = SteadyClock(monotonic)
    before = clock.now()
    for _ in range(50):
        monotonic.at += 0.2
        clock.beat()

    assert clock.now() - before == pytest.approx(10.0)
    assert clock.stalled_s == 0


def test_scheduler_clock_omits_the_duration_of_a_stall() -> None:
    """After a stall of 30 s, no replica may count as silent for 30 s."""
    monotonic = ManualClock()
    clock = SteadyClock(monotonic)
    before = clock.now()
    monotonic.at += 30.0

    assert clock.now() - before == pytest.approx(0.2)
    monotonic.at += 0.5
    assert clock.now() - before == pytest.approx(0.7)
    assert clock.stalled_s == pytest.approx(29.8)


def test_scheduler_clock_never_goes_back() -> None:
    """With an earlier time, all deadlines would be late."""
    monotonic = ManualClock()
    clock = SteadyClock(monotonic)
    readings = []
    for gap in (0.1, 1.19, 1.3, 0.0, 5.0, 0.2):
        monotonic.at += gap
        readings.append(clock.now())

    assert readings == sorted(readings)


_HOUR_S = 3_600.0
_NOON = 1_800_000_000.0
_NAMES = ("large", "small")


class Machine(Services):
    """Scheduler services on a machine whose wall clock the test sets."""

    def __init__(self) -> None:
        super().__init__(clock=self._make_clock, save_interval_s=0.01)
        self.wall_ahead_s = 0.0

    def _make_clock(self) -> SteadyClock:
        loop = asyncio.get_running_loop()
        return SteadyClock(loop.time, lambda: _NOON + self.wall_ahead_s + loop.time())


@pytest.fixture
async def machine() -> AsyncIterator[Machine]:
    machine = Machine()
    yield machine
    await machine.close()


def resubmitted_inference(request_id: str, application_id: str) -> InferenceSubmitted:
    """Return an inference that is resubmitted three seconds after its first submission."""
    return services.submission_of(request_id, application_id, 50, resubmitted=True, age_s=3.0)


async def pull_until_granted(service: SchedulerService, epoch: int) -> list[Grant]:
    number = 0

    async def pull_grants() -> list[Grant]:
        nonlocal number
        number += 1
        return grants_in(await service.pull(pull_of(number, epoch)))

    found: list[Grant] = await eventually(pull_grants, "something is granted")
    return found


@pytest.mark.parametrize("jump_s", [-5 * _HOUR_S, 5 * _HOUR_S], ids=["back", "forward"])
async def test_jump_of_the_wall_clock_changes_no_age_order_or_deadline(
    machine: Machine, jump_s: float
) -> None:
    """Between two schedulers no age may become negative and no deadline immediate or late.

    The small application is opened last and has the smallest tag before and after the jump.
    """
    before = await machine.start_leader()
    for name, cost in (("large", 9_000.0), ("small", 1_000.0)):
        await before.open_application(arrival_of(name, cost))
    tags = {name: (await before.application(name) or {})["virtual_finish_time"] for name in _NAMES}
    await before.term.end()
    machine.wall_ahead_s += jump_s
    after = await machine.start_leader()
    await after.submit_many(
        "i", 2, 0, (resubmitted_inference("l", "large"), resubmitted_inference("s", "small"))
    )
    first = await pull_until_granted(after, 2)
    known = {name: await after.application(name) or {} for name in _NAMES}

    assert tags == {name: one["virtual_finish_time"] for name, one in known.items()}
    assert all(one["age_s"] >= 0 for one in known.values())
    assert ["s"] == [grant.request_id for grant in first]
    assert 3.0 == pytest.approx(first[0].waited_s, abs=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("jump_s", [-5 * _HOUR_S, 5 * _HOUR_S], ids=["back", "forward"])
async def test_restored_application_ends_exactly_after_its_idle_time(
    machine: Machine, jump_s: float
) -> None:
    """The wall clock may have jumped in either direction between the schedulers."""
    before = await machine.start_leader()
    await before.open_application(arrival_of("a"))
    await before.term.end()
    machine.wall_ahead_s += jump_s
    after = await machine.start_leader(application_idle_s=0.2)

    assert await after.application("a") is not None
    await after.submit_many("i", 2, 0, (arrival_of("a"),))
    mail = await after.poll_grants("i", 2, 0)
    (ended,) = [message for _, message in mail.messages if isinstance(message, EndApplication)]
    assert ended.ended_at >= ended.arrived_at


async def test_wall_clock_jump_does_not_change_scheduler_time(machine: Machine) -> None:
    """The scheduler's clock reads the wall clock once, when it is created."""
    service = await machine.start_leader()
    await service.open_application(arrival_of("a"))
    machine.wall_ahead_s -= 5 * _HOUR_S
    age_s = (await service.application("a") or {})["age_s"]

    assert 0 <= age_s < 60


def test_scheduler_clock_starts_after_the_last_stored_time() -> None:
    """A wall clock that is already ahead is not changed."""
    behind = SteadyClock(lambda: 100.0, lambda: 1_000.0)
    ahead = SteadyClock(lambda: 100.0, lambda: 9_000.0)
    for clock in (behind, ahead):
        clock.not_before(5_000.0)

    assert [5_000.0, 9_000.0] == [behind.now(), ahead.now()]
