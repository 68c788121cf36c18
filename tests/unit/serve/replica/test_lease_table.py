"""Leases of a replica: payloads run only under a lease, and every end is reported."""

import asyncio
from typing import Any, cast

import pytest

from justitia_ray.core.actions import Abort, Grant
from justitia_ray.core.entities import FailureCause, Outcome
from justitia_ray.core.events import LeaseFinished, LeaseProgress
from justitia_ray.errors import EngineError, UnknownLease
from justitia_ray.protocol.engine import Engine, Progress
from justitia_ray.protocol.messages import HoldContext, ReleaseContexts
from justitia_ray.serve.replica.lease_table import LeaseTable
from tests.eventually import eventually

_PROMPT, _OUTPUT = 5, 3


class Meters:
    """Engine meter that reports the same usage for every lease."""

    def __init__(self) -> None:
        self.released: list[str] = []

    def progress(self, lease_id: str) -> Progress:
        return Progress(_PROMPT, _OUTPUT)

    def release(self, lease_id: str) -> Progress:
        self.released.append(lease_id)
        return self.progress(lease_id)


@pytest.fixture
def meters() -> Meters:
    return Meters()


@pytest.fixture
def table(meters: Meters, request: pytest.FixtureRequest) -> LeaseTable:
    """Lease table with a minimal wait for leases unless the test sets one."""
    return LeaseTable("r", cast(Engine, meters), grace_s=getattr(request, "param", 0.01))


patient = pytest.mark.parametrize("table", [60.0], indirect=True)
"""Fixture parameter: the table waits up to 60 s for a lease."""


def grant(lease_id: str = "1-1", priority: int = 7) -> Grant:
    return Grant("q", "i", lease_id, "r", priority, 10, 0.0)


def finished(lease_id: str = "1-1", outcome: Outcome | None = Outcome.FINISHED) -> LeaseFinished:
    return LeaseFinished(lease_id, _PROMPT, _OUTPUT, outcome)


async def run(table: LeaseTable, lease_id: str = "1-1", error: Exception | None = None) -> int:
    """Run a payload to its end and return its priority."""
    async with table.hold_lease(lease_id) as lease:
        if error is not None:
            raise error
        lease.outcome = Outcome.FINISHED
        return lease.priority


def begin(table: LeaseTable, lease_id: str = "1-1") -> "asyncio.Task[Any]":
    """Start a payload that runs until it is stopped."""

    async def work() -> None:
        async with table.hold_lease(lease_id):
            await asyncio.Event().wait()

    return asyncio.create_task(work())


async def begun(table: LeaseTable, lease_id: str = "1-1") -> "asyncio.Task[Any]":
    """Start a payload and return once it runs."""
    task = begin(table, lease_id)
    running = LeaseProgress(lease_id, _PROMPT, _OUTPUT, running=True)
    await eventually(lambda: running in table.report_progress(), "it runs")
    return task


async def stop(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_hold_of_a_context_is_no_abort(table: LeaseTable) -> None:
    """A scheduler may send holds to a replica whose engine holds no contexts."""
    table.read_messages([grant(), HoldContext("1-1", "a", 2.0), ReleaseContexts("a")])

    assert ["1-1"] == list(table.held_leases)
    assert not table.held_leases["1-1"].aborted


async def test_armed_lease_runs_its_payload_and_its_end_is_reported(
    table: LeaseTable, meters: Meters
) -> None:
    """An unreported end would leave the inference running forever at the scheduler."""
    table.read_messages([grant()])
    priority = await run(table)

    assert 7 == priority
    assert ((), (finished(),)) == (table.report_progress(), table.report_ends())
    assert ["1-1"] == meters.released


@patient
async def test_payload_that_comes_before_its_lease_is_parked_and_runs(table: LeaseTable) -> None:
    """The ingress may receive a grant before the replica's pull is answered."""
    running = asyncio.create_task(run(table))
    await asyncio.sleep(0)  # the payload is parked
    table.read_messages([grant()])

    assert 7 == await running
    assert ((), (finished(),)) == (table.report_progress(), table.report_ends())


async def test_payload_whose_lease_does_not_come_is_refused(table: LeaseTable) -> None:
    """A lease that has not arrived in time has expired: the inference may already run elsewhere."""
    with pytest.raises(UnknownLease, match="replica r does not hold lease 1-1"):
        await run(table)

    assert ((), ()) == (table.report_progress(), table.report_ends())


async def test_second_payload_of_a_running_lease_is_refused(table: LeaseTable) -> None:
    """An ingress that repeats a call must not run the inference twice."""
    table.read_messages([grant()])
    running = await begun(table)
    with pytest.raises(UnknownLease):
        await run(table)

    assert not running.done()
    await stop(running)


async def test_grant_that_is_sent_again_arms_nothing_new(table: LeaseTable) -> None:
    table.read_messages([grant(), grant(priority=8)])

    assert 7 == await run(table)
    assert [finished()] == list(table.report_ends())


async def test_progress_says_which_leases_run(table: LeaseTable) -> None:
    """A lease without a payload lapses, and a running one does not."""
    table.read_messages([grant("1-1"), grant("1-2")])
    running = await begun(table, "1-2")

    assert (
        LeaseProgress("1-1", _PROMPT, _OUTPUT, False),
        LeaseProgress("1-2", _PROMPT, _OUTPUT, True),
    ) == table.report_progress()
    await stop(running)


async def test_aborted_lease_that_has_not_begun_does_not_run_and_is_reported(
    table: LeaseTable, meters: Meters
) -> None:
    """The payload may still arrive, and the scheduler waits for the report that nothing ran."""
    table.read_messages([grant(), Abort("r", "1-1")])
    with pytest.raises(UnknownLease):
        await run(table)

    assert ((), (finished(outcome=None),)) == (table.report_progress(), table.report_ends())
    assert ["1-1"] == meters.released


async def test_aborted_lease_that_runs_is_stopped_and_reported(
    table: LeaseTable, meters: Meters
) -> None:
    """The tokens used are charged.

    A scheduler without a record of the abort counts it as cut short.
    """
    table.read_messages([grant()])
    running = await begun(table)
    table.read_messages([Abort("r", "1-1")])
    with pytest.raises(UnknownLease):
        await running

    assert ((), (finished(outcome=None),)) == (table.report_progress(), table.report_ends())
    assert ["1-1"] == meters.released


async def test_caller_that_leaves_is_reported_as_cancelled(table: LeaseTable) -> None:
    """The tokens used are charged, and the inference does not run again."""
    table.read_messages([grant()])
    await stop(await begun(table))

    assert (finished(outcome=Outcome.CANCELLED),) == table.report_ends()


async def test_death_of_the_engine_reports_no_end(table: LeaseTable) -> None:
    """The inference returns to the queue instead of failing."""
    table.read_messages([grant()])
    with pytest.raises(EngineError):
        await run(table, error=EngineError("dead"))

    assert (finished(outcome=None),) == table.report_ends()


async def test_end_is_in_every_report_until_it_is_confirmed(table: LeaseTable) -> None:
    """Overtaken reports are dropped, so the next one must contain every unconfirmed end."""
    table.read_messages([grant("1-1"), grant("1-2")])
    await run(table, "1-1")
    overtaken = table.report_ends()
    await run(table, "1-2")
    both = table.report_ends()
    table.confirm_ends(overtaken)

    assert (finished("1-1"), finished("1-2")) == both
    assert (finished("1-2"),) == table.report_ends()


async def test_new_scheduler_receives_recent_lease_ends(table: LeaseTable) -> None:
    """The old scheduler may have died before it reported the ends to the ingress."""
    table.read_messages([grant("1-1"), grant("1-2")])
    await run(table, "1-1")
    ends = table.report_ends()
    table.confirm_ends(ends)
    await run(table, "1-2")
    table.report_ends_again()

    assert (finished("1-1")._replace(booked=True), finished("1-2")) == table.report_ends()


@patient
async def test_cancelled_parked_payload_leaves_no_entry(table: LeaseTable) -> None:
    """The caller left before the lease arrived, and a leftover entry would stay forever."""
    parked = begin(table)
    await asyncio.sleep(0)
    await stop(parked)

    assert {} == table.parked


async def test_failure_names_the_ended_and_the_running_leases(
    table: LeaseTable,
) -> None:
    """The first failing call reports the others, which are about to fail; armed leases are safe."""
    table.read_messages([grant("1-1"), grant("1-2"), grant("1-3")])
    running = await begun(table, "1-2")
    with pytest.raises(EngineError):
        await run(table, "1-1", EngineError("dead"))
    table.note_engine_failed(FailureCause.KILL)

    failure = table.failure
    assert failure is not None
    assert (FailureCause.KILL, ["1-1", "1-2"]) == (
        failure.cause,
        [run.lease_id for run in failure.ran],
    )
    await stop(running)
