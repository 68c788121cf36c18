"""A full scheduler and the ingress before it: who is refused hears so, and leaves nothing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest
from ray.exceptions import RayActorError

from justitia_ray.config import parse_app_config
from justitia_ray.core.events import ApplicationArrived, InferenceSubmitted
from justitia_ray.errors import QueueFull, TooManyApplications
from justitia_ray.serve.dispatcher import Dispatcher
from justitia_ray.serve.outstanding import Ticket
from justitia_ray.serve.scheduler_service import SchedulerService
from justitia_ray.store.scheduler_store import SchedulerStore
from tests.eventually import eventually

from .memory_store import MemoryStore

_MOST = 10
"""Applications, and inferences: eight of a tenant that is alone."""


@dataclass
class Method:
    """One method of a handle."""

    remote: Callable[..., Awaitable[Any]]


class Handle:
    """A service as a dispatcher calls it; another one may take its place."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.service: SchedulerService | None = None

    def __getattr__(self, name: str) -> Method:
        async def call(*arguments: Any) -> Any:
            # As to another process: the caller is not the one that runs it, and may leave.
            await asyncio.sleep(0)
            if self.service is None:
                raise RayActorError
            return await asyncio.shield(
                asyncio.ensure_future(getattr(self.service, name)(*arguments))
            )

        return Method(call)

    async def replace(self, most: int = _MOST) -> None:
        """Let a scheduler with such limits take office."""
        config = parse_app_config(
            {
                "model": {"name": "m", "path": "none"},
                "scheduler": {
                    "recovery_s": 0.05,
                    "max_open_applications": most,
                    "max_waiting_inferences": most,
                },
                "store": {"save_interval_s": 0.01},
            }
        )
        await self.stop()
        service = SchedulerService(config, cast(SchedulerStore, self.store), lambda reason: None)
        await service.start()
        self.service = service

    async def stop(self) -> None:
        """Let the scheduler end."""
        old, self.service = self.service, None
        if old is not None:
            await old.stop()

    async def status(self) -> dict[str, Any]:
        """Return the scheduler's status."""
        assert self.service is not None
        return await self.service.status()


async def _nothing() -> None:
    """There is nothing to configure."""


@pytest.fixture
async def handle() -> AsyncIterator[Handle]:
    """A scheduler in office."""
    handle = Handle()
    await handle.replace()
    yield handle
    await handle.stop()


@pytest.fixture
async def dispatcher(handle: Handle) -> AsyncIterator[Dispatcher]:
    """An ingress that knows it."""
    dispatcher = Dispatcher(handle, lambda ended: None, _nothing, 1_000, 0.0)
    dispatcher.start()
    await eventually(lambda: dispatcher.epoch == 1, "it knows the epoch")
    yield dispatcher
    await dispatcher.stop()


def opening(dispatcher: Dispatcher, name: str) -> ApplicationArrived:
    """Return the opening of an application."""
    return ApplicationArrived(name, "c", "t", 1.0, 100.0, dispatcher.ingress_id)


def call(dispatcher: Dispatcher, name: str) -> Ticket:
    """Submit an inference that is an application of its own."""
    item = InferenceSubmitted(f"q-{name}", name, "0", dispatcher.ingress_id, 10, 5, 5)
    return dispatcher.submit(item, opening(dispatcher, name), is_last=True)


async def test_each_refused_call_hears_so_and_is_forgotten_on_both_sides(
    dispatcher: Dispatcher, handle: Handle
) -> None:
    """Of twelve applications of one inference the last four are too many."""
    tickets = [call(dispatcher, f"a{i:02}") for i in range(12)]
    for ticket in tickets[8:]:
        with pytest.raises(TooManyApplications):
            await dispatcher.next_grant(ticket)
        dispatcher.cancel(ticket)
    status = await handle.status()

    assert (8, 8) == (status["applications"], status["waiting"])
    assert (8, 8) == (dispatcher.outstanding, dispatcher.open_applications())
    assert not any(ticket.answers for ticket in tickets[:8])


async def test_full_queue_leaves_the_application_open_for_later(
    dispatcher: Dispatcher, handle: Handle
) -> None:
    """An agent whose ninth call is refused goes on with it when the others are done."""
    await dispatcher.open_application(opening(dispatcher, "a"))
    tickets = []
    for i in range(9):
        item = InferenceSubmitted(f"q{i}", "a", "0", dispatcher.ingress_id, 10, 5, 5)
        tickets.append(dispatcher.submit(item))
    with pytest.raises(QueueFull, match=r"scheduler\.max_waiting_inferences"):
        await dispatcher.next_grant(tickets[8])
    dispatcher.cancel(tickets[8])
    dispatcher.cancel(tickets[0])

    async def there_is_room() -> bool:
        return bool((await handle.status())["waiting"] == 7)

    await eventually(there_is_room, "one has left")
    again = InferenceSubmitted("q9", "a", "0", dispatcher.ingress_id, 10, 5, 5)
    dispatcher.submit(again)

    async def all_wait() -> bool:
        return bool((await handle.status())["waiting"] == 8)

    await eventually(all_wait, "the next one waits")
    assert dispatcher.opened_here("a") is not None


async def test_lower_limit_of_the_next_scheduler_loses_nothing_that_waits(
    dispatcher: Dispatcher, handle: Handle
) -> None:
    """An operator lowers a limit and restarts: what was taken is kept, what is new is refused."""
    tickets = [call(dispatcher, f"a{i}") for i in range(8)]

    async def all_wait() -> bool:
        return bool((await handle.status())["waiting"] == 8)

    await eventually(all_wait, "they wait")
    await handle.replace(most=2)
    await eventually(all_wait, "they wait again")
    with pytest.raises(TooManyApplications):
        await dispatcher.open_application(opening(dispatcher, "late"))

    assert not any(ticket.answers for ticket in tickets)
    assert 8 == dispatcher.open_applications()
