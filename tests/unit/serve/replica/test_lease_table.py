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


class ConstantMeters:
    """Fake engine meter that reports equal usage for every lease."""

    def __init__(self) -> None:
        self.released: list[str] = []

    def progress(self, lease_id: str) -> Progress:
        return Progress(_PROMPT, _OUTPUT)

    def release(self, lease_id: str) -> Progress:
        self.released.append(lease_id)
        return self.progress(lease_id)


@pytest.fixture
def meters() -> ConstantMeters:
    return ConstantMeters()


@pytest.fixture
def table(meters: ConstantMeters, request: pytest.FixtureRequest) -> LeaseTable:
    """Lease table that waits only briefly for leases, unless a test sets the time."""
    return LeaseTable("r", cast(Engine, meters), grace_s=getattr(request, "param", 0.01))


patient = pytest.mark.parametrize("table", [60.0], indirect=True)
"""Fixture parameter with which the lease table waits up to 60 s for a lease."""


def grant_of(lease_id: str = "1-1", priority: int = 7) -> Grant:
    return Grant("q", "i", lease_id, "r", priority, 10, 0.0)


def end_of(lease_id: str = "1-1", outcome: Outcome | None = Outcome.FINISHED) -> LeaseFinished:
    return LeaseFinished(lease_id, _PROMPT, _OUTPUT, outcome)


async def run_payload(
    table: LeaseTable, lease_id: str = "1-1", error: Exception | None = None
) -> int:
    """Run an inference under its lease to its end, and return its priority."""
    async with table.hold_lease(lease_id) as lease:
        if error is not None:
            raise error
        lease.outcome = Outcome.FINISHED
        return lease.priority


def start_payload(table: LeaseTable, lease_id: str = "1-1") -> "asyncio.Task[Any]":
    """Start an inference that runs until it is cancelled."""

    async def hold_forever() -> None:
        async with table.hold_lease(lease_id):
            await asyncio.Event().wait()

    return asyncio.create_task(hold_forever())


async def started_payload(table: LeaseTable, lease_id: str = "1-1") -> "asyncio.Task[Any]":
    """Start an inference and return once it runs."""
    task = start_payload(table, lease_id)
    running = LeaseProgress(lease_id, _PROMPT, _OUTPUT, running=True)
    await eventually(lambda: running in table.report_progress(), "it runs")
    return task


async def cancel_and_wait(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_message_to_hold_a_context_aborts_no_lease(table: LeaseTable) -> None:
    """A scheduler may send hold messages to a replica whose engine holds no contexts."""
    table.read_messages([grant_of(), HoldContext("1-1", "a", 2.0), ReleaseContexts("a")])

    assert ["1-1"] == list(table.held_leases)
    assert not table.held_leases["1-1"].aborted


async def test_replica_reports_the_end_of_a_granted_lease(
    table: LeaseTable, meters: ConstantMeters
) -> None:
    """The scheduler would wait forever for an end that is not reported."""
    table.read_messages([grant_of()])
    priority = await run_payload(table)

    assert 7 == priority
    assert ((), (end_of(),)) == (table.report_progress(), table.report_ends())
    assert ["1-1"] == meters.released


@patient
async def test_inference_that_arrives_before_its_lease_waits(table: LeaseTable) -> None:
    """The ingress may receive a grant before the replica's pull is answered."""
    running = asyncio.create_task(run_payload(table))
    await asyncio.sleep(0)  # The payload waits for its lease.
    table.read_messages([grant_of()])

    assert 7 == await running
    assert ((), (end_of(),)) == (table.report_progress(), table.report_ends())


async def test_inference_whose_lease_does_not_arrive_is_refused(table: LeaseTable) -> None:
    """A lease that is late has expired, so the inference may already run elsewhere."""
    with pytest.raises(UnknownLease, match="replica r does not hold lease 1-1"):
        await run_payload(table)

    assert ((), ()) == (table.report_progress(), table.report_ends())


async def test_second_inference_under_a_running_lease_is_refused(table: LeaseTable) -> None:
    """An ingress that repeats a call must not run the inference twice."""
    table.read_messages([grant_of()])
    running = await started_payload(table)
    with pytest.raises(UnknownLease):
        await run_payload(table)

    assert not running.done()
    await cancel_and_wait(running)


async def test_repeated_grant_adds_no_lease(table: LeaseTable) -> None:
    table.read_messages([grant_of(), grant_of(priority=8)])

    assert 7 == await run_payload(table)
    assert [end_of()] == list(table.report_ends())


async def test_progress_report_lists_running_leases(table: LeaseTable) -> None:
    """A lease without a payload expires, a running one does not."""
    table.read_messages([grant_of("1-1"), grant_of("1-2")])
    running = await started_payload(table, "1-2")

    assert (
        LeaseProgress("1-1", _PROMPT, _OUTPUT, False),
        LeaseProgress("1-2", _PROMPT, _OUTPUT, True),
    ) == table.report_progress()
    await cancel_and_wait(running)


async def test_replica_reports_a_lease_aborted_before_its_inference_as_unused(
    table: LeaseTable, meters: ConstantMeters
) -> None:
    """The payload may still arrive and must not run."""
    table.read_messages([grant_of(), Abort("r", "1-1")])
    with pytest.raises(UnknownLease):
        await run_payload(table)

    assert ((), (end_of(outcome=None),)) == (table.report_progress(), table.report_ends())
    assert ["1-1"] == meters.released


async def test_replica_stops_and_reports_an_aborted_running_lease(
    table: LeaseTable, meters: ConstantMeters
) -> None:
    """The tokens used so far are charged.

    A scheduler without a record of the abort counts it as cut short.
    """
    table.read_messages([grant_of()])
    running = await started_payload(table)
    table.read_messages([Abort("r", "1-1")])
    with pytest.raises(UnknownLease):
        await running

    assert ((), (end_of(outcome=None),)) == (table.report_progress(), table.report_ends())
    assert ["1-1"] == meters.released


async def test_disconnected_callers_lease_is_reported_as_cancelled(table: LeaseTable) -> None:
    """The tokens used so far are charged, and the inference does not run again."""
    table.read_messages([grant_of()])
    await cancel_and_wait(await started_payload(table))

    assert (end_of(outcome=Outcome.CANCELLED),) == table.report_ends()


async def test_leases_of_a_dead_engine_are_not_reported_as_ended(table: LeaseTable) -> None:
    """The inference returns to the queue instead of failing."""
    table.read_messages([grant_of()])
    with pytest.raises(EngineError):
        await run_payload(table, error=EngineError("dead"))

    assert (end_of(outcome=None),) == table.report_ends()


async def test_ended_lease_is_in_every_report_until_the_scheduler_confirms(
    table: LeaseTable,
) -> None:
    """A newer report may overtake an older one, which is then dropped."""
    table.read_messages([grant_of("1-1"), grant_of("1-2")])
    await run_payload(table, "1-1")
    overtaken = table.report_ends()
    await run_payload(table, "1-2")
    both = table.report_ends()
    table.confirm_ends(overtaken)

    assert (end_of("1-1"), end_of("1-2")) == both
    assert (end_of("1-2"),) == table.report_ends()


async def test_new_scheduler_receives_recently_ended_leases(table: LeaseTable) -> None:
    """The old scheduler may have died before it reported these leases to the ingress."""
    table.read_messages([grant_of("1-1"), grant_of("1-2")])
    await run_payload(table, "1-1")
    ends = table.report_ends()
    table.confirm_ends(ends)
    await run_payload(table, "1-2")
    table.report_ends_again()

    assert (end_of("1-1")._replace(booked=True), end_of("1-2")) == table.report_ends()


@patient
async def test_cancelled_inference_without_a_lease_leaves_no_entry(table: LeaseTable) -> None:
    """The caller disconnected before the lease arrived."""
    parked = start_payload(table)
    await asyncio.sleep(0)
    await cancel_and_wait(parked)

    assert {} == table.parked


async def test_failure_report_names_the_ended_and_the_running_leases(
    table: LeaseTable,
) -> None:
    """The first failing call also reports the calls that are about to fail."""
    table.read_messages([grant_of("1-1"), grant_of("1-2"), grant_of("1-3")])
    running = await started_payload(table, "1-2")
    with pytest.raises(EngineError):
        await run_payload(table, "1-1", EngineError("dead"))
    table.note_engine_failed(FailureCause.KILL)

    failure = table.failure
    assert failure is not None
    assert (FailureCause.KILL, ["1-1", "1-2"]) == (
        failure.cause,
        [run.lease_id for run in failure.ran],
    )
    await cancel_and_wait(running)
