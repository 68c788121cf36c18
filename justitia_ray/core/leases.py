"""Leases: grant, release, lapse; all by lease id, and at most one for each inference."""

from justitia_ray.core.actions import Abort, Grant
from justitia_ray.core.admission import Admission, expected_footprint, kv_need_tokens
from justitia_ray.core.deadlines import Lapse
from justitia_ray.core.entities import (
    Application,
    Inference,
    InferenceState,
    Lease,
    LeaseState,
    Replica,
)
from justitia_ray.core.order import Order
from justitia_ray.core.placement import Placement
from justitia_ray.core.state import State
from justitia_ray.core.transitions import move
from justitia_ray.units import LeaseId, ReplicaId

_LOOKED_AT = 16
"""So many applications that cannot start are looked behind."""


class Leases:
    """Gives the first in order to a replica with room, and takes leases back."""

    def __init__(self, state: State, order: Order, admission: Admission) -> None:
        self._state = state
        self._order = order
        self.placement = Placement(state, admission)
        self._blocked: tuple[Inference, int] | None = None
        """What came first, fitted nowhere and let nobody pass; `State.room_changes` then.

        Every replica that asked could hold it, so that the loss of another changes nothing for it.
        """

    def grant_all(self) -> None:
        """Lease while the first in order fits somewhere, and whom it lets pass if it does not.

        What is at its share of the KV lets everybody pass. What waits for room lets pass as
        `placement` says.
        """
        if not self._state.asking:
            return
        queue, placement = self._order.queue, self.placement
        options = self._order.options
        aside: list[Application] = []
        line: list[Inference] = []
        while len(aside) <= _LOOKED_AT and (application := queue.first()) is not None:
            inference = application.waiting.first
            if self._blocked == (inference, self._state.room_changes):
                break  # a walk over all replicas would find nothing new
            others_wait = len(queue) + len(aside) > 1
            cap = options.kv_share_cap if others_wait else 1.0
            place = placement.find(application, inference, cap, line, options.backfill)
            if place is not None:
                for passed in place.passed:
                    passed.passes += 1
                self._grant(application, inference, place.replica)
                continue
            if not placement.is_capped(inference, cap):
                line.append(inference)
                if not placement.is_open(line, options.backfill):
                    if not aside:
                        self._blocked = (inference, self._state.room_changes)
                    break
            aside.append(application)
            queue.set_aside(application)
        for application in aside:
            queue.touch(application)
        if len(aside) > len(line) and len(queue) == 1:
            self.grant_all()  # all others have started, so it is capped no more

    def _grant(self, application: Application, inference: Inference, replica: Replica) -> None:
        state, order = self._state, self._order
        state.grants += 1
        priority = order.policy.engine_priority(application, inference, state.grants)
        lease_id = f"{state.lease_prefix}{state.grants}"
        order.take_out(application, inference)
        self.lease(inference, replica, lease_id, priority)
        if replica.prompt_budget is not None:
            replica.prompt_budget -= inference.prompt_tokens
        if application.first_dispatched_at is None:
            application.first_dispatched_at = state.now
            state.changed[application.application_id] = None
        order.queue.touch(application)
        order.dispatched(application, inference)
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
        grants = self._state.grants
        priority = self._order.policy.engine_priority(application, inference, grants)
        self.lease(inference, replica, lease_id, priority)
        self._order.adopted(inference)

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
        replica.leases[lease_id] = expected_footprint(inference)
        state.applications[inference.application_id].in_flight.add(inference.request_id)
        state.deadlines.set(state.now + state.timeouts.lease_s, Lapse.LEASE, lease_id)

    def note_served(self, application: Application, replica_id: ReplicaId) -> None:
        """Remember where prefixes of its prompts may be, of the replicas that there are."""
        if replica_id not in application.replicas:
            known = [name for name in application.replicas if name in self._state.replicas]
            application.replicas = dict.fromkeys([*known, replica_id])

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
