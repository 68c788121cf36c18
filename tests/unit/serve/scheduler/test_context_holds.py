"""Leases are followed by the holds of their contexts, on replicas that hold contexts."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from justitia_ray.core.actions import Grant
from justitia_ray.core.entities import Outcome, ReplicaCapacity
from justitia_ray.core.events import ApplicationClosed, DeadlinePassed, LeaseFinished
from justitia_ray.protocol.engine import KeptKv
from justitia_ray.protocol.messages import HoldContext, ReleaseContexts, ReplicaMail
from justitia_ray.protocol.status import KeptKvView
from justitia_ray.serve.scheduler.service import SchedulerService
from tests.unit.serve.scheduler.services import Services, arrival_of, pull_of, submission_of

HOLDING = ReplicaCapacity(100, caches_prefixes=True, holds_contexts=True)
HELD = KeptKv(held_contexts=1, held_kv_tokens=30)
UNKNOWN_S = 3.0
"""Seconds for which a context is held while neither gaps nor prompt times are known."""


@pytest_asyncio.fixture
async def services() -> AsyncIterator[Services]:
    services = Services()
    yield services
    await services.close()


class PullingOnCall:
    """Fake replica that pulls when the test calls it."""

    def __init__(
        self, service: SchedulerService, capacity: ReplicaCapacity, replica_id: str = "r"
    ) -> None:
        self._service = service
        self._replica_id = replica_id
        self._capacity = capacity
        self._number = 0
        self._read = 0

    async def pull(self, **fields: Any) -> list[object]:
        self._number += 1
        epoch = self._service.term.epoch
        pull = pull_of(self._number, epoch, ack=self._read, capacity=self._capacity, **fields)
        mail: ReplicaMail = await self._service.pull(replace(pull, replica_id=self._replica_id))
        self._read = max((place for place, _ in mail.messages), default=self._read)
        return [message for _, message in mail.messages]


async def lease_one(
    service: SchedulerService, replica: PullingOnCall
) -> tuple[Grant, list[object]]:
    """Submit an inference; return its grant and all messages to the replica."""
    await replica.pull()
    await service.submit_many("i", 1, 0, (arrival_of(), submission_of()))
    messages = await replica.pull(progress=None)
    [grant] = [message for message in messages if isinstance(message, Grant)]
    return grant, messages


async def test_each_grant_is_followed_by_a_message_to_hold_the_context(services: Services) -> None:
    service = await services.start_leader()
    grant, messages = await lease_one(service, PullingOnCall(service, HOLDING))

    assert [grant, HoldContext(grant.lease_id, "a", UNKNOWN_S)] == messages


async def test_end_of_an_application_releases_its_contexts(services: Services) -> None:
    service = await services.start_leader()
    replica = PullingOnCall(service, HOLDING)
    grant, _ = await lease_one(service, replica)
    ended = LeaseFinished(grant.lease_id, 20, 10, Outcome.FINISHED)
    await replica.pull(progress=None, finished=(ended,))
    await service.submit_many("i", 1, 0, (ApplicationClosed("a"),))

    assert [ReleaseContexts("a")] == await replica.pull(progress=None)


async def test_last_inference_of_a_closed_application_is_not_held(services: Services) -> None:
    service = await services.start_leader()
    replica = PullingOnCall(service, HOLDING)
    await replica.pull()
    await service.submit_many("i", 1, 0, (arrival_of(), submission_of(prompt_tokens=80)))
    first, hold = await replica.pull(progress=None)
    await service.submit_many("i", 1, 0, (submission_of("q2"), ApplicationClosed("a")))
    assert isinstance(first, Grant)
    ended = LeaseFinished(first.lease_id, 80, 10, Outcome.FINISHED)
    messages = await replica.pull(progress=None, finished=(ended,))

    assert HoldContext(first.lease_id, "a", UNKNOWN_S) == hold
    assert [Grant] == [type(message) for message in messages]


@pytest.mark.parametrize("policy", ["fcfs", "justitia"])
async def test_contexts_are_held_only_if_the_option_working_set_is_on(
    policy: str, services: Services
) -> None:
    service = await services.start_leader()
    options = {"working_set": False} if policy == "justitia" else {}
    await service.configure({"policy": policy, "policy_options": options})
    grant, messages = await lease_one(service, PullingOnCall(service, HOLDING))

    assert [grant] == messages


async def test_replica_that_cannot_hold_contexts_gets_no_holds(services: Services) -> None:
    service = await services.start_leader()
    grant, messages = await lease_one(service, PullingOnCall(service, ReplicaCapacity(100)))

    assert [grant] == messages
    assert service.term.driver.holds is None


def kept_by_replica(service: SchedulerService) -> dict[str, KeptKvView | None]:
    return {name: one.kept for name, one in service.inspector.status().replicas.items()}


async def test_status_shows_the_contexts_that_each_replica_holds(services: Services) -> None:
    service = await services.start_leader()
    await PullingOnCall(service, ReplicaCapacity(100), "off").pull()
    await PullingOnCall(service, HOLDING, "held").pull(kept=HELD)
    host = replace(HOLDING, host_kv_tokens=500)
    await PullingOnCall(service, host, "host").pull(kept=KeptKv(host_kv_tokens=200))

    assert {
        "off": None,
        "held": KeptKvView(held_contexts=1, held_kv_tokens=30),
        "host": KeptKvView(host_kv_tokens=200, host_kv_capacity_tokens=500),
    } == kept_by_replica(service)


async def test_status_does_not_show_context_holds_of_a_lost_replica(services: Services) -> None:
    """The held memory is gone with the replica; the application goes on elsewhere."""
    service = await services.start_leader()
    lost, other = PullingOnCall(service, HOLDING), PullingOnCall(service, HOLDING, "other")
    await lost.pull()
    await service.submit_many("i", 1, 0, (arrival_of(), submission_of()))
    [grant] = [one for one in await lost.pull(progress=None) if isinstance(one, Grant)]
    ended = LeaseFinished(grant.lease_id, 20, 10, Outcome.FINISHED)
    await lost.pull(progress=None, finished=(ended,), kept=HELD)
    await service.leave("r")
    await other.pull()
    await service.submit_many("i", 1, 0, (submission_of("q2"),))
    second, hold = await other.pull(progress=None)
    await service.submit_many("i", 1, 0, (ApplicationClosed("a"),))
    assert isinstance(second, Grant)
    ended = LeaseFinished(second.lease_id, 20, 10, Outcome.FINISHED)
    none = KeptKv(held_contexts=0, held_kv_tokens=0)
    released = await other.pull(progress=None, finished=(ended,), kept=none)

    assert HoldContext(second.lease_id, "a", UNKNOWN_S) == hold
    assert [ReleaseContexts("a")] == released
    assert {"other": KeptKvView(held_contexts=0, held_kv_tokens=0)} == kept_by_replica(service)
    assert service.term.driver.holds is not None
    assert {} == service.term.driver.holds._replicas


async def test_context_holds_of_an_earlier_scheduler_end_by_their_expiry_time(
    services: Services,
) -> None:
    """A new scheduler knows earlier holds only from the engine's count and cannot release them."""
    first = await services.start_leader()
    replica = PullingOnCall(first, HOLDING)
    grant, _ = await lease_one(first, replica)
    ended = LeaseFinished(grant.lease_id, 20, 10, Outcome.FINISHED)
    await replica.pull(progress=None, finished=(ended,))
    await first.term.checkpointer.save_once()
    second = await services.start_leader()
    replica = PullingOnCall(second, HOLDING)
    await replica.pull(kept=HELD)
    shown = kept_by_replica(second)
    await second.submit_many("i", second.term.epoch, 0, (ApplicationClosed("a"),))

    assert {"r": KeptKvView(held_contexts=1, held_kv_tokens=30)} == shown
    assert [] == await replica.pull(progress=None, kept=KeptKv(held_contexts=0, held_kv_tokens=0))
    assert {"r": KeptKvView(held_contexts=0, held_kv_tokens=0)} == kept_by_replica(second)
    assert "a" not in second.term.driver.core.state.applications


@pytest.mark.parametrize("leaves", [True, False], ids=["leaves", "falls silent"])
async def test_kv_measurements_of_a_lost_replica_are_dropped(
    leaves: bool, services: Services
) -> None:
    """Otherwise a scheduler would keep data of all replicas that autoscaling ever stopped."""
    service = await services.start_leader(replica_timeout_s=0.5)
    meter = service.inspector.kv_meter
    for number in range(3):
        name = f"r{number}"
        await PullingOnCall(service, HOLDING, name).pull(kept=HELD)
        assert [name] == [*meter.kept] == [*meter._last]
        if leaves:
            await service.leave(name)
        else:
            service.term.clock.beat()
            services.hands.at += 1.0
            service.term.driver.apply(DeadlinePassed())
        assert (0, 0) == (len(meter.kept), len(meter._last))


async def test_preemptions_of_a_lost_replica_that_returns_are_counted_once(
    services: Services,
) -> None:
    service = await services.start_leader()
    replica = PullingOnCall(service, HOLDING)
    await replica.pull()
    await replica.pull(progress=None, preemptions=3)
    await service.leave("r")
    await replica.pull(preemptions=4)
    await replica.pull(progress=None, preemptions=6)

    assert 3 + 2 == service.inspector.status().kv.preemptions
