"""The rules between ingress, scheduler and replica, spoken to directly."""

import asyncio
import time
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
import pytest_asyncio
from ray.actor import ActorHandle

from justitia_ray.core.actions import Grant
from justitia_ray.core.events import ApplicationArrived, InferenceCancelled, InferenceSubmitted
from justitia_ray.errors import ReplicaGone, UnknownLease
from justitia_ray.protocol.messages import IngressMail
from tests.eventually import eventually
from tests.integration.bodies import COMPLETIONS, completion, encoded
from tests.integration.service import Service

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]


class RawIngress:
    """Calls the scheduler as an ingress does, and repeats what it likes."""

    def __init__(self, scheduler: ActorHandle, epoch: int) -> None:
        self.scheduler = scheduler
        self.epoch = epoch
        self.ingress_id = f"raw-{uuid4().hex[:8]}"
        self.request_id = uuid4().hex
        self.application_id = f"raw-{uuid4().hex[:8]}"

    def items(self) -> tuple[ApplicationArrived, InferenceSubmitted]:
        """Return an application and its one inference."""
        return (
            ApplicationArrived(self.application_id, "raw", "t", 1.0, 10.0, self.ingress_id),
            InferenceSubmitted(self.request_id, self.application_id, "0", self.ingress_id, 3, 4, 4),
        )

    async def submit(self, ack: int = 0, epoch: int | None = None) -> IngressMail:
        """Submit both."""
        mail: IngressMail = await self.scheduler.submit_many.remote(
            self.ingress_id, self.epoch if epoch is None else epoch, ack, self.items()
        )
        return mail

    async def refuse(self, grant: Grant) -> bool:
        """Give a lease back."""
        waits: bool = await self.scheduler.refuse_lease.remote(
            grant.request_id, grant.lease_id, grant.replica_id, False
        )
        return waits

    async def leave(self) -> None:
        """Cancel, twice, and end the application."""
        cancelled = (InferenceCancelled(self.request_id),) * 2
        await self.scheduler.submit_many.remote(self.ingress_id, self.epoch, 0, cancelled)
        await self.scheduler.cancel_application.remote(self.application_id)


@pytest_asyncio.fixture(loop_scope="session")
async def raw(service: Service) -> AsyncIterator[RawIngress]:
    """An ingress of the test's own, without an inference, while a replica asks for work."""
    before = (await service.until_idle())["replicas"]
    # A pull of an idle replica stays open for a second; between two of them it is leased nothing.
    status = await service.until(
        lambda s: any(
            replica["silent_s"] < before[name]["silent_s"]
            for name, replica in s["replicas"].items()
        ),
        "a replica has just pulled",
    )
    raw = RawIngress(service.scheduler(), status["epoch"])
    yield raw
    await raw.leave()
    await service.until_idle()


def grants(mail: IngressMail) -> list[Grant]:
    """Return the grants in a mail, without their numbers."""
    return [message for _, message in mail.messages if isinstance(message, Grant)]


async def test_idle_replica_is_leased_in_the_answer_to_the_submission(raw: RawIngress) -> None:
    """A second round trip would be felt by every short call."""
    assert 1 == len(grants(await raw.submit()))


async def test_repeated_submission_is_leased_once(raw: RawIngress, service: Service) -> None:
    """An ingress that got no answer submits again; the inference must not run twice."""
    before = (await service.status())["grants"]
    first, second = grants(await raw.submit()), grants(await raw.submit())

    assert first == second  # not acknowledged, so sent again
    assert 1 == (await service.status())["grants"] - before


async def test_acknowledged_grant_is_not_sent_again(raw: RawIngress) -> None:
    """The same grant read twice would be called twice."""
    ((number, _),) = (await raw.submit()).messages

    assert () == (await raw.submit(ack=number)).messages


async def test_lease_refused_twice_is_leased_anew_once(raw: RawIngress, service: Service) -> None:
    """The second refusal comes from a repeated call, and must not hit the new lease."""
    (first,) = grants(await raw.submit())
    before = (await service.status())["grants"]
    assert await raw.refuse(first)
    assert await raw.refuse(first)
    after = await service.until(lambda s: s["in_flight"] == 1, "it is leased again")

    assert 1 == after["grants"] - before


async def test_call_of_an_old_epoch_returns_at_once_and_changes_nothing(
    raw: RawIngress, service: Service
) -> None:
    """A long-poll that waited its 20 s would hold up the recovery from a restart for as long."""
    before = await service.status()
    began = time.monotonic()
    stale = raw.epoch - 1
    mail = await raw.submit(epoch=stale)
    polled = await raw.scheduler.poll_grants.remote(raw.ingress_id, stale, 0)
    after = await service.status()

    assert time.monotonic() - began < 5.0
    assert IngressMail(raw.epoch) == mail == polled
    names = ("ingresses", "applications", "waiting", "in_flight", "grants")
    assert [before[name] for name in names] == [after[name] for name in names]


async def test_abandoned_long_poll_does_not_eat_grants(raw: RawIngress) -> None:
    """The call of a caller that has gone still ends in the actor, with the messages in its hand."""
    abandoned = raw.scheduler.poll_grants.remote(raw.ingress_id, raw.epoch, 0)
    (granted,) = grants(await raw.submit())
    polled = await raw.scheduler.poll_grants.remote(raw.ingress_id, raw.epoch, 0)

    assert [granted] == grants(polled)
    await abandoned


async def test_replica_that_is_wrongly_reported_gone_is_leased_again(
    raw: RawIngress, service: Service
) -> None:
    """An ingress to which Serve has not yet told of a new replica does so; it would stay unused."""
    before = await service.pulling()
    (grant,) = grants(await raw.submit())
    await raw.scheduler.refuse_lease.remote(
        grant.request_id, grant.lease_id, grant.replica_id, True
    )
    assert grant.replica_id not in await service.pulling()

    async def is_back() -> bool:
        return before == await service.pulling()

    await eventually(is_back, "it is leased again", 60.0)


async def test_call_to_a_replica_that_is_gone_fails(service: Service) -> None:
    """With Serve's public routing alone such a call is tried again for ever."""
    handle = service.handle("Replica").options(session_id="nobody")
    with pytest.raises(ReplicaGone):
        await asyncio.wait_for(handle.unary.remote("1-1", 1, COMPLETIONS, {}, b""), 60.0)


async def test_payload_without_a_lease_is_refused_after_its_grace(service: Service) -> None:
    """A lease that expired runs elsewhere: running its payload here too would double it."""
    (replica_id, *_) = await service.pulling()
    handle = service.handle("Replica").options(session_id=replica_id)
    with pytest.raises(UnknownLease):
        await handle.unary.remote("1-0", 1, COMPLETIONS, {}, encoded(completion()))
