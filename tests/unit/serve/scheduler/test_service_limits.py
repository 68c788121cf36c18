"""A full scheduler and its ingress: refused callers get an error and leave no state behind."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from justitia_ray.core.events import ApplicationArrived, InferenceSubmitted
from justitia_ray.errors import ConnectionLost, QueueFull, TooManyApplications
from justitia_ray.serve.ingress.pending_inferences import PendingInference
from justitia_ray.serve.ingress.queue_client import QueueClient
from justitia_ray.serve.scheduler.clock import SteadyClock
from justitia_ray.serve.scheduler.service import SchedulerService
from tests.eventually import eventually
from tests.unit.serve.scheduler.services import Services

_MOST = 10
"""Limit of applications and of inferences; a single tenant may use eight."""


class ReplaceableScheduler(Services):
    """Scheduler service behind a client's handle; a test may replace it."""

    def __init__(self) -> None:
        super().__init__(clock=SteadyClock, save_interval_s=0.01)
        self.leader: SchedulerService | None = None

    async def call(self, method: str, *arguments: Any) -> Any:
        await asyncio.sleep(0)
        if self.leader is None:
            raise ConnectionLost("away")
        return await asyncio.shield(getattr(self.leader, method)(*arguments))

    async def start_with_limits(self, most: int = _MOST) -> None:
        """Let a scheduler with these limits lead."""
        self.leader = None
        await self.close()
        limits = {"max_open_applications": most, "max_waiting_inferences": most}
        self.leader = await self.start_leader(recovery_s=0.05, **limits)


async def _nothing() -> None:
    pass


@pytest.fixture
async def handle() -> AsyncIterator[ReplaceableScheduler]:
    handle = ReplaceableScheduler()
    await handle.start_with_limits()
    yield handle
    await handle.close()


@pytest.fixture
async def client(handle: ReplaceableScheduler) -> AsyncIterator[QueueClient]:
    """Ingress client that follows the scheduler's epoch."""
    client = QueueClient(handle, lambda ended: None, _nothing, 1_000, 0.0)
    client.start()
    await eventually(lambda: client.session.epoch == 1, "it knows the epoch")
    yield client
    await client.stop()


def opening_of(client: QueueClient, name: str) -> ApplicationArrived:
    return ApplicationArrived(name, "c", "t", 1.0, 100.0, client.session.ingress_id)


def inference_of(client: QueueClient, request_id: str, application_id: str) -> InferenceSubmitted:
    ingress_id = client.session.ingress_id
    return InferenceSubmitted(request_id, application_id, "0", ingress_id, 10, 5, 5)


async def wait_until_waiting(handle: ReplaceableScheduler, count: int) -> None:
    async def are_waiting() -> bool:
        return handle.leader is not None and handle.leader.inspector.status().waiting == count

    await eventually(are_waiting, f"{count} wait")


def submit_call(client: QueueClient, name: str) -> PendingInference:
    item = inference_of(client, f"q-{name}", name)
    return client.submit_inference(item, opening_of(client, name), is_last=True)


async def test_ingress_and_scheduler_forget_a_refused_call(
    client: QueueClient, handle: ReplaceableScheduler
) -> None:
    """Of twelve applications with one inference each, the last four exceed the limit."""
    tickets = [submit_call(client, f"a{i:02}") for i in range(12)]
    for ticket in tickets[8:]:
        with pytest.raises(TooManyApplications):
            await client.next_grant(ticket)
        client.cancel_inference(ticket)
    assert handle.leader is not None
    status = handle.leader.inspector.status()

    assert (8, 8) == (status.applications, status.waiting)
    assert (8, 8) == (len(client.pending.inferences), len(client.pending.applications))
    assert not any(ticket.answers for ticket in tickets[:8])


async def test_application_stays_open_when_its_call_meets_a_full_queue(
    client: QueueClient, handle: ReplaceableScheduler
) -> None:
    """An agent whose ninth call is refused continues when other calls are done."""
    await client.open_application(opening_of(client, "a"))
    tickets = [client.submit_inference(inference_of(client, f"q{i}", "a")) for i in range(9)]
    with pytest.raises(QueueFull, match=r"scheduler\.max_waiting_inferences"):
        await client.next_grant(tickets[8])
    client.cancel_inference(tickets[8])
    client.cancel_inference(tickets[0])
    await wait_until_waiting(handle, 7)
    client.submit_inference(inference_of(client, "q9", "a"))
    await wait_until_waiting(handle, 8)

    assert "a" in client.pending.applications


async def test_lower_queue_limit_after_a_restart_keeps_waiting_inferences(
    client: QueueClient, handle: ReplaceableScheduler
) -> None:
    """An operator lowers a limit and restarts: accepted inferences stay, new ones are refused."""
    tickets = [submit_call(client, f"a{i}") for i in range(8)]
    await wait_until_waiting(handle, 8)
    await handle.start_with_limits(most=2)
    await wait_until_waiting(handle, 8)
    with pytest.raises(TooManyApplications):
        await client.open_application(opening_of(client, "late"))

    assert not any(ticket.answers for ticket in tickets)
    assert 8 == len(client.pending.applications)


async def test_refused_callers_get_different_retry_times(client: QueueClient) -> None:
    """Of callers that all returned at the same time, all but one would be refused again.

    An opening by its own call is refused in the answer, one with an inference in the mail.
    """
    await client.open_application(opening_of(client, "a"))
    tickets = [client.submit_inference(inference_of(client, f"q{i}", "a")) for i in range(12)]
    waits = []
    for ticket in tickets[8:]:
        with pytest.raises(QueueFull) as full:
            await client.next_grant(ticket)
        waits.append(full.value.retry_after_s or 0.0)
        client.cancel_inference(ticket)
    for i in range(7):
        await client.open_application(opening_of(client, f"b{i}"))
    slots = []
    for name in ("c", "d"):
        with pytest.raises(TooManyApplications) as many:
            await client.open_application(opening_of(client, name))
        slots.append(many.value.retry_after_s or 0.0)
    ticket = submit_call(client, "e")
    with pytest.raises(TooManyApplications) as many:
        await client.next_grant(ticket)
    slots.append(many.value.retry_after_s or 0.0)

    assert waits == sorted(set(waits))
    assert slots == sorted(set(slots))
    assert min(*waits, *slots) > 1.0
