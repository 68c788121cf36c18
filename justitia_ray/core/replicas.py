"""Replicas: what their pulls report, what is metered from it, and what happens when one is lost."""

from collections.abc import Iterable

from justitia_ray.core import events as ev
from justitia_ray.core.actions import Abort
from justitia_ray.core.admission import expected_footprint
from justitia_ray.core.deadlines import Lapse
from justitia_ray.core.entities import (
    Application,
    Inference,
    InferenceState,
    Lease,
    LeaseState,
    Replica,
)
from justitia_ray.core.inferences import Inferences
from justitia_ray.core.leases import Leases
from justitia_ray.core.order import Order
from justitia_ray.core.policies import Delivery
from justitia_ray.core.recovery import Recovery
from justitia_ray.core.state import State
from justitia_ray.core.transitions import move
from justitia_ray.cost import choices_kv_token_time
from justitia_ray.units import LeaseId, ReplicaId

Report = ev.LeaseProgress | ev.LeaseFinished


class Replicas:
    """Takes in pulls."""

    def __init__(
        self,
        state: State,
        order: Order,
        leases: Leases,
        inferences: Inferences,
        recovery: Recovery,
    ) -> None:
        self._state = state
        self._order = order
        self._leases = leases
        self._inferences = inferences
        self._recovery = recovery

    def pulled(self, event: ev.ReplicaPulled) -> None:
        """Book the service, end what finished, and note that the replica asks for work."""
        replica = self._hear(event)
        ends = self._not_told_before(replica, event.finished)
        reports: list[Report] = [*event.progress, *ends]
        for report in reports:
            if report.lease_id not in self._state.leases:
                self._unknown(replica, report)
        self.book(reports)
        for end in ends:
            self._finish_told(end)
        self._requeue_forgotten(replica, {progress.lease_id for progress in event.progress})
        used = replica.capacity.kv_tokens - event.free_kv_tokens
        replica.unaccounted_tokens = max(0, used - replica.context_tokens)
        self._recovery.heard(event.replica_id)

    def reported(self, event: ev.ReplicaReported) -> None:
        """Book the service and end what finished; all else about the replica stays.

        Raises:
            KeyError: If the replica has never pulled.
        """
        replica = self._state.replicas[event.replica_id]
        self.book([*event.progress, *event.finished])
        for finished in event.finished:
            self.finish(finished)
        replica.heard_at = self._state.now
        if event.asks:
            self._state.asking[replica.replica_id] = replica
            replica.prompt_budget = event.most_prompt_tokens
        replica.unaccounted_tokens = event.reserved_kv_tokens
        self._state.room_changes += 1

    def answered(self, event: ev.PullAnswered) -> None:
        """Grant nothing more to the replica until it pulls again."""
        self._state.asking.pop(event.replica_id, None)

    def claim(self, inference: Inference, lease_id: LeaseId) -> None:
        """Join a lease that an earlier scheduler granted with what a replica says of it."""
        reported = self._recovery.claim(lease_id, inference.request_id)
        if reported is not None and reported.replica_id in self._state.replicas:
            replica = self._state.replicas[reported.replica_id]
            self._leases.adopt(inference, lease_id, replica)
            self.book([reported.last])
            if isinstance(reported.last, ev.LeaseFinished):
                self._finish_told(reported.last)
        elif self._recovery.waits_for(lease_id):
            application = self._state.applications[inference.application_id]
            application.claimed.add(inference.request_id)
        else:
            self._inferences.wait(inference)

    def book(self, reports: Iterable[Report]) -> None:
        """Meter the leases named and book what they received."""
        metered = [
            self._meter(lease, report)
            for report in reports
            if (lease := self._state.leases.get(report.lease_id)) is not None
        ]
        self._order.book([delivery for delivery in metered if delivery.amount > 0])

    def finish(self, finished: ev.LeaseFinished) -> None:
        """Take the last word on a lease; the first final report of an inference wins."""
        lease = self._state.leases.get(finished.lease_id)
        if lease is None:
            return
        inference = self._state.inferences[lease.request_id]
        if finished.outcome is None:
            self._inferences.requeue(inference)
            return
        application = self._state.applications[inference.application_id]
        is_counted = _was_counted(finished, application)
        self._inferences.end(inference, finished.outcome, is_counted=is_counted)

    def refused(self, event: ev.LeaseRefused) -> None:
        """The ingress could not use a lease: its inference waits again."""
        replica = self._state.replicas.get(event.replica_id)
        if replica is not None and event.replica_gone:
            self._drain(replica)
        lease = self._state.leases.get(event.lease_id)
        if lease is None:
            self._state.late_reports += 1
            return
        self._state.tally.leases_refused += 1
        self._leases.abort(lease)
        self._inferences.requeue(self._state.inferences[lease.request_id])

    def lost(self, replica_id: ReplicaId) -> None:
        """Let everything that was leased to the replica wait again."""
        self._recovery.heard(replica_id)
        replica = self._state.replicas.get(replica_id)
        if replica is None:
            return
        for lease_id in list(replica.leases):
            lease = self._state.leases[lease_id]
            self._inferences.requeue(self._state.inferences[lease.request_id])
        del self._state.replicas[replica_id]
        self._state.asking.pop(replica_id, None)
        self._order.capacity_changed()

    def lapsed(self, replica_id: ReplicaId) -> None:
        """Take a silent replica for lost."""
        replica = self._state.replicas.get(replica_id)
        if replica is None:
            return
        due = replica.heard_at + self._state.timeouts.replica_s
        if due <= self._state.now:
            self.lost(replica_id)
        else:
            self._state.deadlines.set(due, Lapse.REPLICA, replica_id)

    def unclaimed(self, lease_id: LeaseId) -> None:
        """No ingress spoke for a lease of old in time: stop it."""
        reported = self._recovery.forget(lease_id)
        if reported is not None and isinstance(reported.last, ev.LeaseProgress):
            self._state.actions.append(Abort(reported.replica_id, lease_id))

    def _hear(self, event: ev.ReplicaPulled) -> Replica:
        state = self._state
        replica = state.replicas.get(event.replica_id)
        if replica is None:
            replica = Replica(event.replica_id, event.capacity, state.now)
            state.replicas[event.replica_id] = replica
            state.deadlines.set(
                state.now + state.timeouts.replica_s, Lapse.REPLICA, event.replica_id
            )
            self._order.capacity_changed()
        elif replica.capacity != event.capacity:
            replica.capacity = event.capacity
            self._order.capacity_changed()
        state.room_changes += 1
        replica.heard_at = state.now
        state.asking[event.replica_id] = replica
        if event.draining:
            self._drain(replica)
        return replica

    def _drain(self, replica: Replica) -> None:
        """Lease it nothing more."""
        if not replica.draining:
            replica.draining = True
            replica.drains_since = self._state.now

    def _not_told_before(
        self, replica: Replica, ends: Iterable[ev.LeaseFinished]
    ) -> list[ev.LeaseFinished]:
        """Return the ends that the last pull did not report.

        Of those that this one does not repeat the replica knows that they were heard.
        """
        before, replica.ended = replica.ended, {}
        new = []
        for end in ends:
            if end.lease_id not in before:
                new.append(end)
            replica.ended[end.lease_id] = before.pop(end.lease_id, None)
        for lease_id, application_id in before.items():
            if application_id in self._state.applications:
                self._state.applications[application_id].ended_leases.pop(lease_id, None)
                self._state.changed[application_id] = None
        return new

    def _finish_told(self, end: ev.LeaseFinished) -> None:
        """Take the last word of a replica, which may say it again to the next scheduler."""
        lease = self._state.leases.get(end.lease_id)
        if lease is None:
            return
        inference = self._state.inferences[lease.request_id]
        application = self._state.applications[inference.application_id]
        self.finish(end)
        if end.outcome is not None:
            application.ended_leases[end.lease_id] = None
            self._state.replicas[lease.replica_id].ended[end.lease_id] = inference.application_id

    def _unknown(self, replica: Replica, report: Report) -> None:
        """Sort out a lease that this scheduler did not grant, or no longer holds."""
        if report.lease_id.startswith(self._state.lease_prefix) and not self._recovery.holding:
            self._state.late_reports += 1
            if isinstance(report, ev.LeaseProgress):
                self._state.actions.append(Abort(replica.replica_id, report.lease_id))
            return
        first_seen = not self._recovery.knows(report.lease_id)
        claimant = self._recovery.report(replica.replica_id, report)
        if claimant is not None:
            inference = self._state.inferences[claimant]
            application = self._state.applications[inference.application_id]
            application.claimed.discard(claimant)
            self._leases.adopt(inference, report.lease_id, replica)
        elif first_seen:
            self._state.deadlines.set(
                self._state.now + self._state.timeouts.ingress_s, Lapse.CLAIM, report.lease_id
            )

    def _meter(self, lease: Lease, report: Report) -> Delivery:
        """Return the service since the last report.

        Tokens recomputed after a requeue are none, nor is what an earlier scheduler booked.
        """
        inference = self._state.inferences[lease.request_id]
        if report.prompt_tokens:
            inference.prompt_tokens = report.prompt_tokens
        before = inference.output_tokens
        inference.output_tokens = max(before, report.output_tokens)
        received = choices_kv_token_time(
            inference.prompt_tokens, inference.output_tokens, inference.choices
        )
        amount = max(0, received - inference.attained)
        application = self._state.applications[inference.application_id]
        if isinstance(report, ev.LeaseFinished) and _was_counted(report, application):
            amount = 0
        inference.attained += amount
        unbooked = 1.0
        if inference.again and amount:
            booked = min(amount, application.booked_before)
            application.booked_before -= booked
            unbooked = 1 - booked / amount
            amount -= booked
        self._state.tally.serve(application.tenant, amount)
        application.kv_token_time += amount
        application.unfinished_kv_token_time += amount
        if isinstance(report, ev.LeaseProgress) and report.running:
            self._note_running(lease, inference, report)
        return Delivery(
            inference.application_id,
            inference.request_id,
            inference.prompt_tokens,
            before,
            inference.output_tokens,
            amount,
            inference.choices,
            unbooked,
        )

    def _note_running(self, lease: Lease, inference: Inference, report: ev.LeaseProgress) -> None:
        if lease.state is LeaseState.GRANTED:
            lease.state = LeaseState.RUNNING
            move(inference, InferenceState.RUNNING)
        leases = self._state.replicas[lease.replica_id].leases
        leases[lease.lease_id] = expected_footprint(inference, report.output_tokens)

    def _requeue_forgotten(self, replica: Replica, held: set[LeaseId]) -> None:
        """A replica that ran a lease and no longer names it has lost it."""
        for lease_id in list(replica.leases):
            lease = self._state.leases[lease_id]
            if lease.state is LeaseState.RUNNING and lease_id not in held:
                self._inferences.requeue(self._state.inferences[lease.request_id])


def _was_counted(end: ev.LeaseFinished, application: Application) -> bool:
    """Return whether an earlier scheduler has booked an end, by its replica or by what it left."""
    return end.booked or end.lease_id in application.ended_leases
