"""Leases that clients' calls could not use, and whether the replica could be reached."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from justitia_ray.core.actions import Grant
from justitia_ray.core.events import NackReason
from justitia_ray.serve.ingress.pending_inferences import PendingInference
from justitia_ray.serve.ingress.queue_client import QueueClient
from justitia_ray.serve.ingress.replica_links import LONGEST_PAUSE_S
from justitia_ray.units import ReplicaId, Seconds
from tests.harness.simulation.connections import Connections
from tests.harness.simulation.network import current_process
from tests.harness.simulation.virtual_loop import Process

NOTE_UNUSABLE: ContextVar[Callable[[ReplicaId], None]] = ContextVar("NOTE_UNUSABLE")
"""Function that receives the replica of each lease that the current call could not use."""


class WatchedQueueClient(QueueClient):
    """Queue client that reports each lease that a call could not use."""

    async def nack_lease(
        self, inference: PendingInference, grant: Grant, reason: NackReason
    ) -> None:
        NOTE_UNUSABLE.get()(grant.replica_id)
        await super().nack_lease(inference, grant, reason)


@dataclass(frozen=True, slots=True)
class UnusableLease:
    """Lease that a call could not use, because its replica was gone or unreachable."""

    replica_id: ReplicaId
    is_cut_off: bool
    """Whether the ingress could not reach the replica, then or just before."""


class CutOffs:
    """Times at which ingresses were last unable to reach replicas."""

    def __init__(
        self, connections: Connections, process_of: Callable[[ReplicaId], Process]
    ) -> None:
        self._connections = connections
        self._process_of = process_of
        self._seen_at: dict[tuple[str, ReplicaId], Seconds] = {}

    def unusable_lease(self, replica_id: ReplicaId, now: Seconds) -> UnusableLease:
        """Return the record of a lease that this ingress could not use just now.

        After the connection is possible again, an ingress does not try it before its pause is over.
        """
        ingress, link = current_process(), (current_process().name, replica_id)
        if not self._connections.may_connect(ingress, self._process_of(replica_id)):
            self._seen_at[link] = now
        seen_at = self._seen_at.get(link)
        return UnusableLease(replica_id, seen_at is not None and now - seen_at <= LONGEST_PAUSE_S)
