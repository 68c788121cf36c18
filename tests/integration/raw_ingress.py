"""Minimal ingress that calls scheduler and replicas over real connections."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

from justitia_ray.core.actions import Grant
from justitia_ray.core.events import (
    ApplicationArrived,
    InferenceCancelled,
    InferenceSubmitted,
    NackReason,
)
from justitia_ray.protocol.messages import IngressMail, Submission
from justitia_ray.serve.transport.dialer import Dialer
from justitia_ray.serve.transport.handshake import Keyring, Offer, Peer
from justitia_ray.serve.transport.link import SocketLink
from justitia_ray.serve.transport.methods import REPLICA_METHODS, SCHEDULER_METHODS
from justitia_ray.units import ReplicaId
from tests.harness.service import Service


@dataclass
class RawIngress:
    """Client of the scheduler's ingress protocol, with one application for all its inferences."""

    scheduler: SocketLink
    replicas: Dialer
    epoch: int
    name: str = field(default_factory=lambda: f"raw-{uuid4().hex[:8]}")
    """Id of the ingress, of its application, and of its first request."""
    addresses: dict[ReplicaId, str] = field(default_factory=dict)
    """Replica addresses in the grants that the ingress has received."""
    requests: list[str] = field(default_factory=list)
    """Ids of the submitted requests."""
    links: list[SocketLink] = field(default_factory=list)
    """Connections that the ingress has opened to replicas."""

    async def submit(self, output_tokens: int = 4) -> Grant:
        request = self.name if not self.requests else f"{self.name}-{len(self.requests)}"
        self.requests.append(request)
        mail = await self.send_batch(
            ApplicationArrived(self.name, "raw", "t", 1.0, 10.0, self.name),
            InferenceSubmitted(request, self.name, "0", self.name, 3, output_tokens, output_tokens),
        )
        return await self.next_grant(request, mail)

    async def next_grant(
        self, request: str, mail: IngressMail | None = None, *, after: Grant | None = None
    ) -> Grant:
        """Return the first grant of a request, and keep the others for later.

        Args:
            request: The request.
            mail: Mail that was read, if it may have the grant.
            after: A grant that is not meant: every mail has all messages.
        """
        while True:
            for grant in () if mail is None else grants_in(mail):
                if grant.request_id == request and grant != after:
                    return grant
            mail = await self.poll_mail()

    async def send_batch(self, *items: Submission) -> IngressMail:
        """Send a batch of messages, and return the scheduler's messages in answer."""
        mail: IngressMail = await self.scheduler.call(
            "submit_many", self.name, self.epoch, 0, items
        )
        self.addresses |= mail.addresses
        return mail

    async def poll_mail(self) -> IngressMail:
        """Return the scheduler's messages in answer to a long-poll."""
        mail: IngressMail = await self.scheduler.call("poll_grants", self.name, self.epoch, 0)
        self.addresses |= mail.addresses
        return mail

    async def nack_lease(self, grant: Grant, reason: NackReason) -> bool:
        """Give a lease back; return whether its inference waits again."""
        still_waits: bool = await self.scheduler.call(
            "refuse_lease", grant.request_id, grant.lease_id, reason
        )
        return still_waits

    async def link_to_replica(self, grant: Grant) -> SocketLink:
        address = self.addresses[grant.replica_id]
        self.links.append(await self.replicas.dial(address, grant.replica_id))
        return self.links[-1]


async def wait_for_open_pull(service: Service) -> None:
    """Wait until a replica has an open pull.

    An idle replica's pull stays open for a second; between two pulls nothing is leased to it.
    """
    before = (await service.until_idle())["replicas"]
    await service.until(
        lambda s: any(
            replica["silent_s"] < before[name]["silent_s"]
            for name, replica in s["replicas"].items()
        ),
        "a replica has just pulled",
    )


@asynccontextmanager
async def raw_ingress(service: Service) -> AsyncIterator[RawIngress]:
    """Yield an ingress connected to a service's scheduler; remove its application at the end."""
    actor = service.scheduler()
    offer: Offer = await actor.link.remote()
    keyring, me = Keyring(), Peer("ingress", "raw")
    keyring.add(offer.key)
    dialer, replicas = (Dialer(me, keyring, m) for m in (SCHEDULER_METHODS, REPLICA_METHODS))
    scheduler = await dialer.dial(offer.address, offer.target)
    raw = RawIngress(scheduler, replicas, (await service.status())["epoch"])
    try:
        yield raw
        await raw.send_batch(*(InferenceCancelled(request) for request in raw.requests * 2))
        await actor.cancel_application.remote(raw.name)
    finally:
        for link in (scheduler, *raw.links):
            await link.close()


def grants_in(mail: IngressMail) -> list[Grant]:
    return [message for _, message in mail.messages if isinstance(message, Grant)]
