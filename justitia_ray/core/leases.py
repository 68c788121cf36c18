"""Leases: grant, release, lapse; all by lease id, and at most one for each inference."""

from collections.abc import Iterator

from justitia_ray.core.actions import Abort, Grant
from justitia_ray.core.admission import Admission, expected_remaining, kv_need_tokens
from justitia_ray.core.deadlines import Lapse
from justitia_ray.core.entities import (
    Footprint,
    Inference,
    InferenceState,
    Lease,
    LeaseState,
    Replica,
)
from justitia_ray.core.order import Order
from justitia_ray.core.state import State
from justitia_ray.core.transitions import move
from justitia_ray.units import LeaseId


class Leases:
    """Gives the first in order to a replica with room, and takes leases back."""

    def __init__(self, state: State, order: Order, fits: Admission) -> None:
        self._state = state
        self._order = order
        self.fits = fits
        self._blocked: tuple[Inference, int] | None = None
        """What came first and fitted nowhere, and `State.room_changes` at that time."""

    def grant_all(self) -> None:
        """Lease while the first in order fits somewhere; it is never passed by a later one."""
        state = self._state
        while (application := self._order.queue.first()) is not None:
            inference = application.waiting[0]
            if self._blocked == (inference, state.room_changes):
                return  # a walk over all replicas would find nothing new
            replica = self._place(inference)
            if replica is None:
                self._blocked = (inference, state.room_changes)
                return
            application.waiting.popleft()
            state.grants += 1
            priority = self._order.policy.engine_priority(application, state.grants)
            lease_id = f"{state.lease_prefix}{state.grants}"
            self.lease(inference, replica, lease_id, priority)
            if application.first_dispatched_at is None:
                application.first_dispatched_at = state.now
                state.changed[application.application_id] = None
            self._order.queue.touch(application)
            self._order.rekey(self._order.policy.dispatched(application, inference))
            state.actions.append(
                Grant(
                    inference.request_id,
                    inference.ingress_id,
                    lease_id,
                    replica.replica_id,
                    priority,
                    kv_need_tokens(inference, replica.capacity.block_size),
                    state.now - inference.submitted_at,
                )
            )

    def adopt(self, inference: Inference, lease_id: LeaseId, replica: Replica) -> None:
        """Take over a lease that an earlier scheduler granted."""
        application = self._state.applications[inference.application_id]
        priority = self._order.policy.engine_priority(application, self._state.grants)
        self.lease(inference, replica, lease_id, priority)

    def lease(
        self, inference: Inference, replica: Replica, lease_id: LeaseId, priority: int
    ) -> None:
        """Bind a waiting inference to a replica."""
        state = self._state
        move(inference, InferenceState.LEASED)
        inference.lease_id = lease_id
        inference.attempts += 1
        state.leases[lease_id] = Lease(
            lease_id, inference.request_id, replica.replica_id, state.now, priority
        )
        replica.leases[lease_id] = Footprint(
            inference.prompt_tokens, expected_remaining(inference), inference.choices
        )
        state.applications[inference.application_id].in_flight.add(inference.request_id)
        state.deadlines.set(state.now + state.timeouts.lease_s, Lapse.LEASE, lease_id)

    def release(self, inference: Inference) -> Lease:
        """Unbind an inference that holds a lease, and return the lease."""
        assert inference.lease_id is not None
        self._state.room_changes += 1
        lease = self._state.leases.pop(inference.lease_id)
        self._state.replicas[lease.replica_id].leases.pop(lease.lease_id)
        self._state.applications[inference.application_id].in_flight.discard(inference.request_id)
        inference.lease_id = None
        return lease

    def abort(self, lease: Lease) -> None:
        """Tell the replica to stop what runs under a lease."""
        self._state.actions.append(Abort(lease.replica_id, lease.lease_id))

    def lapsed(self, lease_id: LeaseId) -> Inference | None:
        """Return the inference of a lease whose payload never came, having told the replica."""
        lease = self._state.leases.get(lease_id)
        if lease is None or lease.state is not LeaseState.GRANTED:
            return None
        self.abort(lease)
        return self._state.inferences[lease.request_id]

    def _place(self, inference: Inference) -> Replica | None:
        """Return the replica with most free KV of those that ask for work and have room."""
        return next((r for r in self._by_free_kv() if self.fits(r, inference)), None)

    def _by_free_kv(self) -> Iterator[Replica]:
        asking = (r for r in self._state.replicas.values() if r.pulling and not r.draining)
        yield from sorted(
            asking, key=lambda r: (r.context_tokens - r.capacity.kv_tokens, r.replica_id)
        )
