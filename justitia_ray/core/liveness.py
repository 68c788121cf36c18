"""Liveness of ingresses by their heartbeats, and recovery of leases of an earlier scheduler."""

from collections.abc import Iterable
from dataclasses import dataclass

from justitia_ray.core.entities import Application, Inference, move
from justitia_ray.core.events import LeaseFinished, LeaseProgress
from justitia_ray.core.ledger import Ledger
from justitia_ray.core.state import DeadlineKind, State
from justitia_ray.core.states import InferenceState
from justitia_ray.units import ApplicationId, IngressId, LeaseId, ReplicaId, RequestId, Seconds


class Ingresses:
    """Heartbeats of ingresses (alive, suspect or dead), and the inferences of each ingress.

    An ingress that dies leaves inferences behind, which are ended when it has been silent for
    `Timeouts.ingress_s`. Until then they must not delay others: each leased inference would hold
    its seat until the lease expires, wait again at the head of its application, and be leased
    again. So an ingress is *suspect* once one of its leases has expired unused without a heartbeat
    since the grant: a live ingress fetches each grant at once. The waiting inferences of a suspect
    ingress are suspended until its next heartbeat, and then wait again at their former positions.
    They are not ended, because the ingress may only have been paused, and its running inferences
    continue.

    An application with suspended inferences is not idle, and keeps its account and its tag. GPS
    serves it in advance for `ingress_s` at most; this service is settled when the application ends,
    or used when the ingress is back. Every method is O(k log n) for an ingress of k inferences.
    """

    def __init__(self, state: State, ledger: Ledger) -> None:
        self._state = state
        self._ledger = ledger
        self._inferences: dict[IngressId, dict[RequestId, Inference]] = {}
        """Inferences of each ingress that have not ended, in the order of their submission."""
        self.suspect: set[IngressId] = set()
        """Ingresses that may be lost; their waiting inferences are suspended."""
        self.suspended = 0
        """The number of suspended inferences."""

    def inferences_of(self, ingress_id: IngressId) -> list[Inference]:
        return list(self._inferences.get(ingress_id, {}).values())

    def add_inference(self, inference: Inference) -> None:
        owned = self._inferences.setdefault(inference.ingress_id, {})
        owned[inference.request_id] = inference

    def remove_inference(self, inference: Inference) -> None:
        owned = self._inferences[inference.ingress_id]
        del owned[inference.request_id]
        if not owned:
            del self._inferences[inference.ingress_id]

    def heartbeat(self, ingress_id: IngressId) -> None:
        """Record a heartbeat of an ingress, and queue its suspended inferences again."""
        state = self._state
        if ingress_id not in state.ingresses:
            due = state.now + state.timeouts.ingress_s
            state.deadlines.set(due, DeadlineKind.INGRESS, ingress_id)
        state.ingresses[ingress_id] = state.now
        if ingress_id in self.suspect:
            self.suspect.discard(ingress_id)
            self._readmit_inferences(ingress_id)

    def lease_expired(self, inference: Inference) -> None:
        """Suspect an ingress that sent nothing between the grant and the expiry of a lease.

        An ingress is not suspected for a lease of an earlier scheduler, whose grant this scheduler
        did not send.
        """
        assert inference.lease_id is not None
        lease, ingress_id = self._state.leases[inference.lease_id], inference.ingress_id
        is_own = lease.lease_id.startswith(self._state.lease_prefix)
        was_silent = self._state.ingresses[ingress_id] < lease.granted_at
        if is_own and was_silent and ingress_id not in self.suspect:
            self.suspect.add(ingress_id)
            for other in self.inferences_of(ingress_id):
                application = self._state.applications[other.application_id]
                if other in application.waiting:
                    self._ledger.leave(application, other)
                    self.suspend(application, other)

    def suspend(self, application: Application, inference: Inference) -> None:
        """Suspend an inference of a suspect ingress; it must not be in the queue."""
        move(inference, InferenceState.SUSPENDED)
        application.held_back[inference.request_id] = inference
        self.suspended += 1
        if self._ledger.observer is not None:
            self._ledger.observer.leave_flight(inference)

    def remove_suspended(self, application: Application, inference: Inference) -> bool:
        """Remove an inference if it is suspended; return whether it was."""
        if inference.state is not InferenceState.SUSPENDED:
            return False
        del application.held_back[inference.request_id]
        self.suspended -= 1
        return True

    def expire(self, ingress_id: IngressId) -> list[Inference]:
        """Return the inferences to end if an ingress is dead; none if it is alive."""
        due = self._state.ingresses[ingress_id] + self._state.timeouts.ingress_s
        if due > self._state.now:
            self._state.deadlines.set(due, DeadlineKind.INGRESS, ingress_id)
            return []
        del self._state.ingresses[ingress_id]
        self.suspect.discard(ingress_id)
        return self.inferences_of(ingress_id)

    def _readmit_inferences(self, ingress_id: IngressId) -> None:
        back: dict[ApplicationId, list[Inference]] = {}
        for inference in self.inferences_of(ingress_id):
            application = self._state.applications[inference.application_id]
            if self.remove_suspended(application, inference):
                move(inference, InferenceState.WAITING)
                back.setdefault(inference.application_id, []).append(inference)
        for application_id, inferences in back.items():
            self._ledger.readmit(self._state.applications[application_id], inferences)


@dataclass(frozen=True, slots=True)
class ReportedLease:
    """A lease of an earlier scheduler that a replica reports as running or finished."""

    replica_id: ReplicaId
    last: LeaseProgress | LeaseFinished


class Recovery:
    """Leases of an earlier scheduler that not both their replica and ingress have reported.

    An ingress *claims* a lease by resubmitting the inference that holds it.

    After a restart the ingresses resubmit their outstanding inferences, with the leases that they
    hold, and the replicas report running and recently finished leases. Both arrive in any order;
    this class matches them. No lease is granted before every known replica has reported, or a few
    seconds have passed.
    """

    def __init__(self) -> None:
        self._expected: set[ReplicaId] = set()
        self._until: Seconds = 0.0
        self.holding = False
        """Whether no leases are granted until the replicas have reported."""
        self.reported: dict[LeaseId, ReportedLease] = {}
        """Leases reported by a replica, without an inference from an ingress so far."""
        self.claims: dict[LeaseId, RequestId] = {}
        """Leases named by the ingresses of running inferences, without a replica's report so far.
        """

    def hold_grants(self, expected: Iterable[ReplicaId], until: Seconds) -> None:
        """Grant no leases until these replicas have reported, at the latest at `until`."""
        self._expected = set(expected)
        self._until = until
        self.holding = True

    def replica_reported(self, replica_id: ReplicaId) -> None:
        """Stop waiting for a replica that has reported, or is lost."""
        self._expected.discard(replica_id)

    def is_complete(self, now: Seconds) -> bool:
        """Return whether the scheduler may grant leases after a restart."""
        return not self._expected or now >= self._until

    def release_grants(self) -> list[RequestId]:
        """Grant leases again after a restart; return the leases that no replica confirmed."""
        self.holding = False
        lost = list(self.claims.values())
        self.claims.clear()
        return lost

    def report_lease(
        self, replica_id: ReplicaId, last: LeaseProgress | LeaseFinished
    ) -> RequestId | None:
        """Record a lease that a replica has reported.

        Return the id of the inference that claimed the lease, if any.
        """
        request_id = self.claims.pop(last.lease_id, None)
        if request_id is None:
            self.reported[last.lease_id] = ReportedLease(replica_id, last)
        return request_id

    def claim(self, lease_id: LeaseId, request_id: RequestId) -> ReportedLease | None:
        """Record that an inference runs under a lease, as its ingress says.

        Return the replica's report of the lease, if any.
        """
        reported = self.reported.pop(lease_id, None)
        if reported is None and self.holding:
            self.claims[lease_id] = request_id
        return reported

    def withdraw_claims(self, request_id: RequestId) -> None:
        for lease_id, claimant in list(self.claims.items()):
            if claimant == request_id:
                del self.claims[lease_id]
