"""A full scheduler and the ingress before it: who is refused hears so, and leaves nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from justitia_ray.core.events import ApplicationArrived, InferenceSubmitted
from justitia_ray.errors import ConnectionLost, QueueFull, TooManyApplications
from justitia_ray.serve.ingress.pending_inferences import PendingInference
from justitia_ray.serve.ingress.queue_client import QueueClient
from justitia_ray.serve.scheduler.actor import SchedulerService
from justitia_ray.serve.scheduler.clock import SteadyClock
from tests.eventually import eventually
from tests.unit.serve.scheduler.services import Services

_MOST = 10
"""Applications, and inferences: eight of a tenant that is alone."""


class Handle(Services):
    """A service as a client calls it; another one may take its place."""

    def __init__(self) -> None:
        super().__init__(clock=SteadyClock, save_interval_s=0.01)
        self.leader: SchedulerService | None = None

    async def call(self, method: str, *arguments: Any) -> Any:
        """Return its answer, as to another process: a caller that leaves does not end the call."""
        await asyncio.sleep(0)
        if self.leader is None:
            raise ConnectionLost("away")
        return await asyncio.shield(getattr(self.leader, method)(*arguments))

    async def replace(self, most: int = _MOST) -> None:
        """Let a scheduler with such limits lead."""
        self.leader = None
        await self.close()
        limits = {"max_open_applications": most, "max_waiting_inferences": most}
        self.leader = await self.start(recovery_s=0.05, **limits)


async def _nothing() -> None:
    """There is nothing to configure."""


@pytest.fixture
async def handle() -> AsyncIterator[Handle]:
    """A scheduler that leads."""
    handle = Handle()
    await handle.replace()
    yield handle
    await handle.close()


@pytest.fixture
async def client(handle: Handle) -> AsyncIterator[QueueClient]:
    """An ingress that knows it."""
    client = QueueClient(handle, lambda ended: None, _nothing, 1_000, 0.0)
    client.session.start()
    await eventually(lambda: client.session.epoch == 1, "it knows the epoch")
    yield client
    await client.session.stop()


def opening(client: QueueClient, name: str) -> ApplicationArrived:
    """Return the opening of an application."""
    return ApplicationArrived(name, "c", "t", 1.0, 100.0, client.session.ingress_id)


def inference(client: QueueClient, request_id: str, application_id: str) -> InferenceSubmitted:
    """Return an inference of an application."""
    ingress_id = client.session.ingress_id
    return InferenceSubmitted(request_id, application_id, "0", ingress_id, 10, 5, 5)


async def until_waiting(handle: Handle, count: int) -> None:
    """Return once so many inferences wait at the scheduler."""

    async def they_wait() -> bool:
        return bool((await handle.call("status"))["waiting"] == count)

    await eventually(they_wait, f"{count} wait")


def call(client: QueueClient, name: str) -> PendingInference:
    """Submit an inference that is an application of its own."""
    item = inference(client, f"q-{name}", name)
    return client.submit_inference(item, opening(client, name), is_last=True)


async def test_each_refused_call_hears_so_and_is_forgotten_on_both_sides(
    client: QueueClient, handle: Handle
) -> None:
    """Of twelve applications of one inference the last four are too many."""
    tickets = [call(client, f"a{i:02}") for i in range(12)]
    for ticket in tickets[8:]:
        with pytest.raises(TooManyApplications):
            await client.next_grant(ticket)
        client.cancel_inference(ticket)
    status = await handle.call("status")

    assert (8, 8) == (status["applications"], status["waiting"])
    assert (8, 8) == (len(client.pending.inferences), len(client.pending.applications))
    assert not any(ticket.answers for ticket in tickets[:8])


async def test_full_queue_leaves_the_application_open_for_later(
    client: QueueClient, handle: Handle
) -> None:
    """An agent whose ninth call is refused goes on with it when the others are done."""
    await client.open_application(opening(client, "a"))
    tickets = [client.submit_inference(inference(client, f"q{i}", "a")) for i in range(9)]
    with pytest.raises(QueueFull, match=r"scheduler\.max_waiting_inferences"):
        await client.next_grant(tickets[8])
    client.cancel_inference(tickets[8])
    client.cancel_inference(tickets[0])
    await until_waiting(handle, 7)
    client.submit_inference(inference(client, "q9", "a"))
    await until_waiting(handle, 8)

    assert "a" in client.pending.applications


async def test_lower_limit_of_the_next_scheduler_loses_nothing_that_waits(
    client: QueueClient, handle: Handle
) -> None:
    """An operator lowers a limit and restarts: what was taken is kept, what is new is refused."""
    tickets = [call(client, f"a{i}") for i in range(8)]
    await until_waiting(handle, 8)
    await handle.replace(most=2)
    await until_waiting(handle, 8)
    with pytest.raises(TooManyApplications):
        await client.open_application(opening(client, "late"))

    assert not any(ticket.answers for ticket in tickets)
    assert 8 == len(client.pending.applications)


async def test_each_refused_caller_hears_of_a_slot_of_its_own(client: QueueClient) -> None:
    """Over the wire to the error: those that come back at once would all but one be refused.

    By itself an opening is refused in the answer, with its first inference in the mail.
    """
    await client.open_application(opening(client, "a"))
    tickets = [client.submit_inference(inference(client, f"q{i}", "a")) for i in range(12)]
    waits = []
    for ticket in tickets[8:]:
        with pytest.raises(QueueFull) as full:
            await client.next_grant(ticket)
        waits.append(full.value.retry_after_s or 0.0)
        client.cancel_inference(ticket)
    for i in range(7):
        await client.open_application(opening(client, f"b{i}"))
    slots = []
    for name in ("c", "d"):
        with pytest.raises(TooManyApplications) as many:
            await client.open_application(opening(client, name))
        slots.append(many.value.retry_after_s or 0.0)
    ticket = call(client, "e")
    with pytest.raises(TooManyApplications) as many:
        await client.next_grant(ticket)
    slots.append(many.value.retry_after_s or 0.0)

    assert waits == sorted(set(waits))
    assert slots == sorted(set(slots))
    assert min(*waits, *slots) > 1.0
