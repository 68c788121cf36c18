"""The leases of a replica: who may run, who is stopped, and that every end is told once."""

import asyncio
from contextlib import suppress
from typing import Any, cast

import pytest

from justitia_ray.core.actions import Abort, Grant
from justitia_ray.core.entities import Outcome
from justitia_ray.core.events import LeaseFinished, LeaseProgress
from justitia_ray.errors import EngineError, UnknownLease
from justitia_ray.serve.engine import Engine, Progress
from justitia_ray.serve.lease_desk import LeaseDesk
from tests.eventually import eventually

_PROMPT, _OUTPUT = 5, 3


class Meters:
    """An engine as far as a desk reads it: every lease has used the same."""

    def __init__(self) -> None:
        self.released: list[str] = []

    def progress(self, lease_id: str) -> Progress:
        """Return what every lease has used."""
        return Progress(_PROMPT, _OUTPUT)

    def release(self, lease_id: str) -> Progress:
        """Note that it is forgotten."""
        self.released.append(lease_id)
        return self.progress(lease_id)


@pytest.fixture
def meters() -> Meters:
    """The engine."""
    return Meters()


@pytest.fixture
def desk(meters: Meters) -> LeaseDesk:
    """A desk that waits almost no time for a lease."""
    return LeaseDesk("r", cast(Engine, meters), grace_s=0.01)


@pytest.fixture
def patient_desk(meters: Meters) -> LeaseDesk:
    """A desk that waits as long as it takes."""
    return LeaseDesk("r", cast(Engine, meters), grace_s=60.0)


def grant(lease_id: str = "1-1", priority: int = 7) -> Grant:
    """Return a grant to this replica."""
    return Grant("q", "i", lease_id, "r", priority, 10, 0.0)


def finished(lease_id: str = "1-1", outcome: Outcome | None = Outcome.FINISHED) -> LeaseFinished:
    """Return the last word on a lease."""
    return LeaseFinished(lease_id, _PROMPT, _OUTPUT, outcome)


async def run(desk: LeaseDesk, lease_id: str = "1-1", error: Exception | None = None) -> int:
    """Run a payload to its end at once and return the priority it had."""
    async with desk.hold(lease_id) as lease:
        if error is not None:
            raise error
        lease.outcome = Outcome.FINISHED
        return lease.priority


def begin(desk: LeaseDesk, lease_id: str = "1-1") -> "asyncio.Task[Any]":
    """Begin a payload that runs until it is stopped."""

    async def work() -> None:
        async with desk.hold(lease_id):
            await asyncio.Event().wait()

    return asyncio.create_task(work())


async def begun(desk: LeaseDesk, lease_id: str = "1-1") -> "asyncio.Task[Any]":
    """Begin a payload and return once it runs."""
    task = begin(desk, lease_id)
    await eventually(lambda: lease_id in running_in(desk), "it runs")
    return task


def running_in(desk: LeaseDesk) -> list[str]:
    """Return the leases that the desk reports as running."""
    progress, _ = desk.report()
    return [lease.lease_id for lease in progress if lease.running]


async def test_armed_lease_runs_its_payload_and_its_end_is_reported(
    desk: LeaseDesk, meters: Meters
) -> None:
    """An end that is never reported would leave its inference running for ever."""
    desk.read([grant()])
    priority = await run(desk)

    assert 7 == priority
    assert ((), (finished(),)) == desk.report()
    assert ["1-1"] == meters.released


async def test_payload_that_comes_before_its_lease_is_parked_and_runs(
    patient_desk: LeaseDesk,
) -> None:
    """The ingress may learn of a grant before the answer to the replica's pull has come."""
    running = asyncio.create_task(run(patient_desk))
    await asyncio.sleep(0)  # it is parked
    patient_desk.read([grant()])

    assert 7 == await running
    assert ((), (finished(),)) == patient_desk.report()


async def test_payload_whose_lease_does_not_come_is_refused(desk: LeaseDesk) -> None:
    """The lease has lapsed: its inference may run elsewhere by now."""
    with pytest.raises(UnknownLease, match="replica r does not hold lease 1-1"):
        await run(desk)

    assert ((), ()) == desk.report()


async def test_second_payload_of_a_running_lease_is_refused(desk: LeaseDesk) -> None:
    """An ingress that repeats a call must not run the inference twice."""
    desk.read([grant()])
    running = await begun(desk)
    with pytest.raises(UnknownLease):
        await run(desk)

    assert ["1-1"] == running_in(desk)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_grant_that_is_sent_again_arms_nothing_new(desk: LeaseDesk) -> None:
    """Messages are repeated until they are acknowledged."""
    desk.read([grant(), grant(priority=8)])

    assert 7 == await run(desk)
    assert [finished()] == list(desk.report()[1])


async def test_progress_says_which_leases_run(desk: LeaseDesk) -> None:
    """A lease whose payload never comes lapses; one that runs does not."""
    desk.read([grant("1-1"), grant("1-2")])
    running = await begun(desk, "1-2")

    progress, _ = desk.report()
    assert (
        LeaseProgress("1-1", _PROMPT, _OUTPUT, False),
        LeaseProgress("1-2", _PROMPT, _OUTPUT, True),
    ) == progress
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_aborted_lease_that_has_not_begun_is_forgotten(desk: LeaseDesk) -> None:
    """Its payload may still come; it must not run then."""
    desk.read([grant(), Abort("r", "1-1")])
    with pytest.raises(UnknownLease):
        await run(desk)

    assert ((), ()) == desk.report()


async def test_aborted_lease_that_runs_is_stopped_and_not_reported(
    desk: LeaseDesk, meters: Meters
) -> None:
    """Whoever aborted it has forgotten it; its ingress learns that the lease does not hold."""
    desk.read([grant()])
    running = await begun(desk)
    desk.read([Abort("r", "1-1")])
    with pytest.raises(UnknownLease):
        await running

    assert ((), ()) == desk.report()
    assert ["1-1"] == meters.released


async def test_caller_that_leaves_is_reported_as_cancelled(desk: LeaseDesk) -> None:
    """What it has used is booked, and nothing of it runs again."""
    desk.read([grant()])
    running = await begun(desk)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert (finished(outcome=Outcome.CANCELLED),) == desk.report()[1]


async def test_death_of_the_engine_is_no_outcome(desk: LeaseDesk) -> None:
    """The inference waits again, instead of having failed."""
    desk.read([grant()])
    with pytest.raises(EngineError):
        await run(desk, error=EngineError("dead"))

    assert (finished(outcome=None),) == desk.report()[1]


async def test_end_is_in_every_report_until_it_is_confirmed(desk: LeaseDesk) -> None:
    """A report that is overtaken is not taken: the next one alone must say all."""
    desk.read([grant("1-1"), grant("1-2")])
    await run(desk, "1-1")
    _, overtaken = desk.report()
    await run(desk, "1-2")
    _, both = desk.report()
    desk.confirm(overtaken)

    assert (finished("1-1"), finished("1-2")) == both
    assert (finished("1-2"),) == desk.report()[1]


async def test_new_scheduler_is_told_what_finished_lately(desk: LeaseDesk) -> None:
    """The old one may have died before it told the ingress; what it has booked is booked."""
    desk.read([grant("1-1"), grant("1-2")])
    await run(desk, "1-1")
    _, ends = desk.report()
    desk.confirm(ends)
    await run(desk, "1-2")
    desk.report_all_again()

    assert (finished("1-1")._replace(booked=True), finished("1-2")) == desk.report()[1]


async def test_payload_that_goes_while_it_is_parked_leaves_nothing(
    patient_desk: LeaseDesk,
) -> None:
    """Its caller left before the lease came; what is kept of it would be kept for ever."""
    parked = begin(patient_desk)
    await asyncio.sleep(0)
    parked.cancel()
    with suppress(asyncio.CancelledError):
        await parked

    assert 0 == patient_desk.parked
