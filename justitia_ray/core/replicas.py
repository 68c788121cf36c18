"""Replicas: the reports in their pulls, the service metered from these, and lost replicas."""

from collections.abc import Iterable, Sequence

from justitia_ray.core import events as ev
from justitia_ray.core.actions import Abort, Refusal, Refuse
from justitia_ray.core.contexts import Contexts
from justitia_ray.core.dispatch import Leases
from justitia_ray.core.entities import (
    FailureCause,
    Inference,
    KnownReplica,
    Lease,
    Outcome,
    move,
)
from justitia_ray.core.inferences import Inferences
from justitia_ray.core.ledger import Ledger
from justitia_ray.core.liveness import Recovery
from justitia_ray.core.locality import note_first_token, recall_contexts
from justitia_ray.core.policies import Delivery
from justitia_ray.core.prefill import NOTHING_PAID, PrefillPaid, paid_before, pay_prefill
from justitia_ray.core.prefill_account import PrefillAccount
from justitia_ray.core.state import DeadlineKind, State
from justitia_ray.core.states import InferenceState, LeaseState
from justitia_ray.core.suspects import Suspects
from justitia_ray.cost import choices_kv_token_time
from justitia_ray.units import LeaseId, ReplicaId, Seconds

Report = ev.LeaseProgress | ev.LeaseFinished
_NEXT_PULL_S: Seconds = 0.25
"""Seconds after an answer to a replica within which its next report is expected; a stopped process
sends none.
"""


class Replicas:
    """Books the reports of replicas, and requeues the inferences of lost replicas."""

    def __init__(
        self,
        state: State,
        ledger: Ledger,
        leases: Leases,
        inferences: Inferences,
        recovery: Recovery,
        suspects: Suspects,
    ) -> None:
        self._state = state
        self._suspects = suspects
        self._ledger = ledger
        self._leases = leases
        self._inferences = inferences
        self._recovery = recovery

    def pull(self, event: ev.ReplicaPulled) -> None:
        """Book a replica's report, end finished inferences, and record that it asks for leases."""
        replica = self._update_from_pull(event)
        ends = self._take_new_ends(replica, event.finished)
        reports: list[Report] = [*(event.progress or ()), *ends]
        leases, leaving = self._state.leases, self._state.leaving
        adopted = []
        for report in reports:
            is_known = report.lease_id in leases or report.lease_id in leaving
            if not is_known and self._adopt_or_abort(replica, report):
                adopted.append(report.lease_id)
        if replica.capacity.caches_prefixes:
            self._learn_engine_times(replica, event.progress or (), ends)
        self._count_reported_progress(reports)
        for end in ends:
            self._finish_lease(end, repeats=True)
        if adopted:
            self._stop_cancelled(adopted)
        if event.hangs and not replica.stall_id:
            self._suspect_all_running(replica)
        if replica.stalled_since is not None:
            self._abort_all_leases(replica)
        if event.progress is not None:
            self._requeue_lost(replica, event.progress)
            if self._recovery.holding:
                self._recovery.replica_reported(event.replica_id)
        used = replica.capacity.kv_tokens - event.free_kv_tokens
        beyond = max(0, used - replica.context_tokens)
        known = beyond if event.progress is not None else replica.unaccounted_tokens
        replica.unaccounted_tokens = min(known, beyond)
        replica.grown_tokens = beyond - replica.unaccounted_tokens

    def report(self, event: ev.ReplicaReported) -> None:
        """Book a replica's report, end finished inferences, and record whether it wants leases.

        Capacity, connection, drain and stall of the replica stay as its last pull reported them.

        Raises:
            KeyError: If the replica has never pulled.
        """
        replica = self._state.replicas[event.replica_id]
        if replica.capacity.caches_prefixes:
            self._learn_engine_times(replica, event.progress, event.finished)
        self._count_reported_progress([*event.progress, *event.finished])
        for finished in event.finished:
            self._finish_lease(finished, repeats=False)
        replica.last_seen_at = self._state.now
        if event.asks:
            self._state.asking[replica.replica_id] = replica
            replica.pulls_again_by = 0.0
            replica.prompt_budget = event.most_prompt_tokens
        replica.unaccounted_tokens = event.reserved_kv_tokens
        self._state.headroom_changes += 1

    def pull_answered(self, event: ev.PullAnswered) -> None:
        """Grant a replica no lease until it asks again, except for contexts that it has cached."""
        replica = self._state.asking.pop(event.replica_id, None)
        if replica is not None and event.pulls_again:
            replica.pulls_again_by = self._state.now + _NEXT_PULL_S

    def requeue_after_engine_failure(self, event: ev.EngineFailed) -> None:
        """Requeue the inferences of a replica whose engine failed.

        Refuse the inference that is found to have killed it, if any.
        """
        state = self._state
        state.counters.engine_failures[event.cause] += 1
        ran: list[tuple[Inference, Seconds]] = []
        for lease_id, ran_s in event.ran:
            lease = state.leases.get(lease_id)
            if lease is not None:
                ran.append((state.inferences[lease.request_id], ran_s))
            elif event.cause is FailureCause.CRASH and not self._is_own_lease(lease_id):
                self._suspects.await_claim(event.failure_id, lease_id, ran_s)
        if event.cause is FailureCause.CRASH:
            self._refuse_killer(self._suspects.note_death(event.failure_id, ran))
        replica = state.replicas.get(event.replica_id)
        if replica is not None:
            self._stop_granting(replica)

    def crash(self, replica_id: ReplicaId) -> None:
        """Requeue the inferences of a crashed replica.

        Refuse the inference that is found to have crashed it, if any.

        The crash is reported by another process than the lost connections, so some of its
        inferences may run on other replicas by now: no two of them stay on the same replica.
        """
        state = self._state
        replica = state.replicas.get(replica_id)
        if replica is None:
            return
        state.counters.engine_failures[FailureCause.CRASH] += 1
        leases = [state.leases[lease_id] for lease_id in replica.leases]
        granted = {lease.request_id: lease.granted_at for lease in leases}
        elsewhere = [name for name in replica.unreached if name in state.inferences]
        granted |= {name: replica.unreached[name] for name in elsewhere}
        ran = [(state.inferences[name], state.now - at) for name, at in granted.items()]
        self._refuse_killer(self._suspects.note_death(replica_id, ran))
        self._stop_granting(replica)
        replica.unreached.clear()
        for name in elsewhere:
            if name in state.inferences:  # inferences that kill engines have ended
                self._remove_from_other_suspect(state.inferences[name])

    def claim_lease(self, inference: Inference, lease_id: LeaseId) -> None:
        """Match a replica's report of a lease with the lease of an earlier scheduler."""
        reported = self._recovery.claim(lease_id, inference.request_id)
        if reported is not None and reported.replica_id in self._state.replicas:
            replica = self._state.replicas[reported.replica_id]
            self._leases.adopt(inference, lease_id, replica)
            self._count_reported_progress([reported.last])
            if isinstance(reported.last, ev.LeaseFinished):
                self._finish_lease(reported.last, repeats=True)
            else:
                self._stop_cancelled([lease_id])
                if replica.stalled_since is not None:
                    self._abort_all_leases(replica)
        elif lease_id in self._recovery.claims:
            self._inferences.claim(inference)
        else:
            self._inferences.wait(inference)

    def nack_lease(self, event: ev.LeaseNacked) -> None:
        """Requeue the inference of a lease that its ingress could not use."""
        lease = self._state.leases.get(event.lease_id)
        if lease is None:
            self._state.late_reports += 1
            return
        self._state.counters.leases_nacked += 1
        self._leases.abort(lease)
        inference = self._state.inferences[lease.request_id]
        if event.reason is ev.NackReason.CONNECTION:
            replica = self._state.replicas[lease.replica_id]
            replica.unreached[inference.request_id] = lease.granted_at
            self._leases.avoid(inference, lease.replica_id)
        self._inferences.requeue(inference)

    def lose(self, replica_id: ReplicaId) -> None:
        """Requeue all leases of a replica, and remove the replica."""
        self._recovery.replica_reported(replica_id)
        replica = self._state.replicas.get(replica_id)
        if replica is None:
            return
        self._requeue_all(replica)
        for lease_id, departure in list(self._state.leaving.items()):
            if departure.replica_id == replica_id:
                self._inferences.count_departure(lease_id)
        del self._state.replicas[replica_id]
        self._state.asking.pop(replica_id, None)
        self._ledger.capacity_changed()

    def expire(self, replica_id: ReplicaId) -> None:
        """Remove a replica that is silent beyond its timeout, unless its process is known to live.

        A live replica keeps its running inferences, and gets no more leases.
        """
        replica = self._state.replicas.get(replica_id)
        if replica is None:
            return
        silent_s = self._state.timeouts.replica_s
        due = replica.last_seen_at + silent_s
        if due > self._state.now:
            self._state.deadlines.set(due, DeadlineKind.REPLICA, replica_id)
        elif replica.connected:
            replica.is_silent, replica.takes_leases = True, False
            due = self._state.now + silent_s
            self._state.deadlines.set(due, DeadlineKind.REPLICA, replica_id)
        else:
            self.lose(replica_id)

    def disconnect(self, replica_id: ReplicaId) -> None:
        """Count a replica as lost when it stays silent, from now on."""
        replica = self._state.replicas.get(replica_id)
        if replica is not None:
            replica.connected = False
            due = max(self._state.now, replica.last_seen_at + self._state.timeouts.replica_s)
            self._state.deadlines.set(due, DeadlineKind.REPLICA, replica_id)

    def expire_claim(self, lease_id: LeaseId) -> None:
        """Stop a lease of an earlier scheduler that no ingress claimed in time."""
        reported = self._recovery.reported.pop(lease_id, None)
        if reported is not None and isinstance(reported.last, ev.LeaseProgress):
            self._state.actions.append(Abort(reported.replica_id, lease_id))

    def _update_from_pull(self, event: ev.ReplicaPulled) -> KnownReplica:
        state = self._state
        replica = state.replicas.get(event.replica_id)
        if replica is None:
            replica = KnownReplica(event.replica_id, event.capacity, state.now)
            state.replicas[event.replica_id] = replica
            if event.capacity.holds_contexts:
                replica.contexts = _new_kept_contexts()
            if event.capacity.caches_prefixes:
                recall_contexts(replica, state.applications.values())
            due = state.now + state.timeouts.replica_s
            state.deadlines.set(due, DeadlineKind.REPLICA, event.replica_id)
            self._ledger.capacity_changed()
        elif replica.capacity != event.capacity:
            if replica.capacity.caches_prefixes != event.capacity.caches_prefixes:
                replica.contexts = Contexts()
            replica.capacity = event.capacity
            self._ledger.capacity_changed()
        state.headroom_changes += 1
        replica.unreached.clear()
        replica.last_seen_at = state.now
        state.asking[event.replica_id] = replica
        replica.pulls_again_by = 0.0
        if event.draining and not replica.draining:
            replica.draining = True
            replica.drains_since = state.now
        if not event.stalled:
            replica.stalled_since = None
            if replica.stall_id:  # a long step, not a hang
                self._suspects.withdraw(replica.stall_id)
                replica.stall_id = ""
        elif replica.stalled_since is None:
            replica.stalled_since = state.now
        replica.connected, replica.is_silent = event.connected, False
        replica.takes_leases = not (replica.draining or event.stalled)
        return replica

    def _stop_granting(self, replica: KnownReplica) -> None:
        """Requeue the leases of a replica, and grant it no more leases."""
        self._requeue_all(replica)
        replica.takes_leases = False
        if not replica.draining:
            replica.draining = True
            replica.drains_since = self._state.now

    def _requeue_all(self, replica: KnownReplica) -> None:
        for lease_id in list(replica.leases):
            lease = self._state.leases[lease_id]
            self._inferences.requeue(self._state.inferences[lease.request_id])

    def _remove_from_other_suspect(self, inference: Inference) -> None:
        """Move a suspected engine killer away from a replica that runs another suspect."""
        state = self._state
        lease = state.leases.get(inference.lease_id or "")
        if lease is None:
            return
        beside = (
            state.inferences[state.leases[lease_id].request_id]
            for lease_id in state.replicas[lease.replica_id].leases
            if lease_id != lease.lease_id
        )
        if any(self._suspects.is_open(other) for other in beside):
            self._leases.abort(lease)
            self._inferences.requeue(inference)
        elif lease.state is LeaseState.RUNNING:
            self._suspects.note_running(inference)

    def _suspect_all_running(self, replica: KnownReplica) -> None:
        """Suspect the inferences of an engine that hangs, as if the engine had crashed."""
        state = self._state
        replica.stall_id = f"{replica.replica_id} stalled at {state.now}"
        leases = [state.leases[lease_id] for lease_id in replica.leases]
        ran = [
            (state.inferences[lease.request_id], state.now - lease.granted_at)
            for lease in leases
            if lease.state is LeaseState.RUNNING
        ]
        self._refuse_killer(self._suspects.note_death(replica.stall_id, ran))

    def _abort_all_leases(self, replica: KnownReplica) -> None:
        """Abort and requeue all leases of a replica whose engine is stalled."""
        for lease_id in list(replica.leases):
            lease = self._state.leases[lease_id]
            self._leases.abort(lease)
            self._inferences.requeue(self._state.inferences[lease.request_id])

    def _requeue_lost(self, replica: KnownReplica, progress: Iterable[ev.LeaseProgress]) -> None:
        """Requeue the inferences of a replica that its complete report does not name."""
        held = {report.lease_id for report in progress}
        for lease_id in list(replica.leases):
            lease = self._state.leases[lease_id]
            if lease.state is LeaseState.RUNNING and lease_id not in held:
                self._inferences.requeue(self._state.inferences[lease.request_id])

    def _take_new_ends(
        self, replica: KnownReplica, ends: Iterable[ev.LeaseFinished]
    ) -> list[ev.LeaseFinished]:
        """Return the ends of leases that the replica's last report did not contain.

        A replica stops repeating an ended lease when it has confirmation that the lease is booked.
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

    def _learn_engine_times(
        self,
        replica: KnownReplica,
        progress: Sequence[ev.LeaseProgress],
        ends: Sequence[ev.LeaseFinished],
    ) -> None:
        """Learn the times of an engine's steps from a report before the report is booked."""
        state, iterations, output, computed = self._state, 0, 0, 0
        reports: tuple[Report, ...] = (*progress, *ends)
        for report in reports:
            lease = state.leases.get(report.lease_id)
            if lease is None:
                continue
            inference = state.inferences[lease.request_id]
            made = max(0, report.output_tokens - inference.output_tokens)
            output += made
            if made and not inference.output_tokens:
                computed += inference.prompt_tokens - (report.cached_tokens or 0)
            if isinstance(report, ev.LeaseProgress):
                iterations = max(iterations, made // inference.choices)
        state.engine_times.report(
            replica.replica_id,
            iterations,
            output,
            computed,
            state.now,
            is_busy=len(replica.leases) > len(ends),
        )

    def _count_reported_progress(self, reports: Iterable[Report]) -> None:
        """Count the progress of these leases, and book the service."""
        leases, leaving = self._state.leases, self._state.leaving
        deliveries = []
        for report in reports:
            lease = leases.get(report.lease_id)
            if lease is not None:
                deliveries.append(
                    self._meter_service(self._state.inferences[lease.request_id], lease, report)
                )
            elif leaving and (departure := leaving.get(report.lease_id)) is not None:
                if isinstance(report, ev.LeaseProgress):
                    self._state.actions.append(Abort(departure.replica_id, report.lease_id))
                deliveries.append(self._meter_service(departure.inference, None, report))
        self._ledger.book(deliveries)

    def _meter_service(self, inference: Inference, lease: Lease | None, report: Report) -> Delivery:
        """Return the service of a lease since the last report.

        Tokens recomputed after a requeue are not service, nor is service booked by an earlier
        scheduler. An inference stopped before its first token has received the service of its
        prompt, as far as it was read.

        Args:
            inference: The inference that is reported.
            lease: Its lease; None: it was stopped under it.
            report: The report.
        """
        is_cut = is_stopped = False
        if isinstance(report, ev.LeaseFinished):
            is_cut = report.outcome in (None, Outcome.CANCELLED)
            is_stopped = lease is None or report.outcome is Outcome.CANCELLED
            if not is_cut:
                inference.read_tokens = None
            elif is_stopped and (report.prompt_tokens or not report.output_tokens):
                inference.read_tokens = max(inference.read_tokens or 0, report.prompt_tokens)
        elif report.output_tokens > inference.output_tokens:
            inference.read_tokens = None  # the whole prompt is computed
        is_whole = not is_cut or (report.output_tokens and inference.choices == 1)
        if report.prompt_tokens and is_whole:
            inference.prompt_tokens = report.prompt_tokens
        if (found := report.cached_tokens) is not None:
            least = inference.cached_tokens
            inference.found_tokens = found
            inference.cached_tokens = found if least is None else min(least, found)
        before = inference.output_tokens
        inference.output_tokens = max(before, report.output_tokens)
        received = choices_kv_token_time(
            inference.prompt_tokens, inference.output_tokens, inference.choices
        )
        if is_cut and is_stopped and not received:
            received = inference.begun_prompt_tokens
        application = self._state.applications[inference.application_id]
        prefill = NOTHING_PAID
        if application.prefill is not None and inference.prefill is not None:
            prefill = self._meter_prefill(application.prefill, inference, lease, report)
        amount = max(0, received - inference.attained)
        if lease is not None and lease.uncomputed_tokens and report.output_tokens:
            replica = self._state.replicas[lease.replica_id]
            note_first_token(replica, application, inference, lease)
        if isinstance(report, ev.LeaseFinished):
            if self._was_counted_by_predecessor(report, inference):
                amount = 0
        elif report.running and lease is not None:
            self._record_running(lease, inference, report)
        inference.attained += amount
        unbooked = 1.0
        if inference.resubmitted and amount:
            booked = min(amount, application.booked_before)
            application.booked_before -= booked
            unbooked = 1 - booked / amount
            amount -= booked
        return Delivery(
            inference.application_id,
            inference.request_id,
            inference.prompt_tokens,
            before,
            inference.output_tokens,
            amount,
            inference.choices,
            unbooked,
            prefill,
        )

    def _meter_prefill(
        self, account: PrefillAccount, inference: Inference, lease: Lease | None, report: Report
    ) -> PrefillPaid:
        """Return the cost of newly computed prompts that no earlier scheduler has counted."""
        if isinstance(report, ev.LeaseFinished) and self._was_counted_by_predecessor(
            report, inference
        ):
            return NOTHING_PAID
        is_cached = (
            lease is not None and self._state.replicas[lease.replica_id].capacity.caches_prefixes
        )
        new = pay_prefill(
            account,
            inference,
            is_cached=is_cached,
            recomputed_tokens=report.recomputed_tokens,
        )
        account.pending -= new.was_expected
        return paid_before(account, inference, new) if inference.resubmitted else new

    def _record_running(self, lease: Lease, inference: Inference, report: ev.LeaseProgress) -> None:
        if lease.state is LeaseState.GRANTED:
            lease.state = LeaseState.RUNNING
            move(inference, InferenceState.RUNNING)
            if self._suspects.known:
                self._suspects.note_running(inference)
        replica = self._state.replicas[lease.replica_id]
        if inference.found_tokens is not None and inference.shares:
            replica.note_found(lease.lease_id, inference)
        if inference.copies == 1:
            footprint = inference.expected_footprint(report.output_tokens)
        else:
            footprint = replica.footprint_alone(inference, report.output_tokens)
        replica.leases[lease.lease_id] = footprint

    def _finish_lease(self, end: ev.LeaseFinished, *, repeats: bool) -> None:
        """End or requeue the inference of a lease; the first final report of a lease counts.

        Args:
            end: The final report.
            repeats: Whether its replica may report it to the next scheduler, too.
        """
        lease = self._state.leases.get(end.lease_id)
        if lease is None:
            self._finish_departure(end, repeats=repeats)
            return
        inference = self._state.inferences[lease.request_id]
        if end.outcome is None:
            if not self._refuse_killer(self._suspects.claim(end.lease_id, inference)):
                self._inferences.requeue(inference)
            return
        is_whole = end.outcome is Outcome.FINISHED and inference.attempts == 1
        if is_whole and not inference.resubmitted:
            counters = self._state.counters
            counters.iterations += inference.output_tokens // inference.choices
            counters.iterating_s += self._state.now - lease.granted_at
        application = self._state.applications[inference.application_id]
        is_counted = self._was_counted_by_predecessor(end, inference)
        self._inferences.end(inference, end.outcome, is_counted=is_counted, is_reported=True)
        if repeats:
            application.ended_leases[end.lease_id] = None
            self._state.replicas[lease.replica_id].ended[end.lease_id] = inference.application_id

    def _finish_departure(self, end: ev.LeaseFinished, *, repeats: bool) -> None:
        """Count an inference that was stopped under a lease; an unknown lease is ignored."""
        departure = self._state.leaving.get(end.lease_id)
        if departure is None:
            return
        inference, replica_id = departure.inference, departure.replica_id
        application = self._state.applications[inference.application_id]
        is_counted = self._was_counted_by_predecessor(end, inference)
        self._inferences.count_departure(end.lease_id, is_counted=is_counted)
        if repeats:
            application.ended_leases[end.lease_id] = None
            self._state.replicas[replica_id].ended[end.lease_id] = inference.application_id

    def _stop_cancelled(self, adopted: Iterable[LeaseId]) -> None:
        """Stop leases of an earlier scheduler whose inferences have been cancelled."""
        for lease_id in adopted:
            lease = self._state.leases.get(lease_id)
            if lease is not None:
                inference = self._state.inferences[lease.request_id]
                if inference.outcome is Outcome.CANCELLED:
                    self._inferences.end(inference, inference.outcome)

    def _adopt_or_abort(self, replica: KnownReplica, report: Report) -> bool:
        """Record or abort a lease that has ended or was granted by an earlier scheduler.

        Return whether the lease was adopted.
        """
        if self._is_own_lease(report.lease_id) and not self._recovery.holding:
            self._state.late_reports += 1
            if isinstance(report, ev.LeaseProgress):
                self._state.actions.append(Abort(replica.replica_id, report.lease_id))
            return False
        first_seen = report.lease_id not in self._recovery.reported
        claimant = self._recovery.report_lease(replica.replica_id, report)
        if claimant is not None:
            inference = self._state.inferences[claimant]
            application = self._state.applications[inference.application_id]
            del application.held_back[claimant]
            self._leases.adopt(inference, report.lease_id, replica)
        elif first_seen:
            due = self._state.now + self._state.timeouts.ingress_s
            self._state.deadlines.set(due, DeadlineKind.CLAIM, report.lease_id)
        return claimant is not None

    def _is_own_lease(self, lease_id: LeaseId) -> bool:
        return lease_id.startswith(self._state.lease_prefix)

    def _refuse_killer(self, inference: Inference | None) -> bool:
        """Refuse the inference found to kill engines, if any; return whether there is one."""
        if inference is None:
            return False
        self._state.actions.append(
            Refuse(inference.request_id, inference.ingress_id, Refusal.ENGINE_KILLER)
        )
        if inference.lease_id is not None:  # the inference has started on another replica meanwhile
            self._leases.abort(self._state.leases[inference.lease_id])
        self._inferences.end(inference, Outcome.FAILED)
        return True

    def _was_counted_by_predecessor(self, end: ev.LeaseFinished, inference: Inference) -> bool:
        """Return whether an earlier scheduler has counted and stored an ended inference.

        Either the restored state contains its record, or its ingress reports that it is counted. If
        the ingress keeps no such records (in a simulation, for instance), the replica's report
        decides, although the replica has confirmation only that its report was received.
        """
        application = self._state.applications[inference.application_id]
        if end.lease_id in application.ended_leases:
            return True
        if inference.is_counted is None:
            return end.booked
        name = inference.application_id
        return inference.is_counted or self._state.ends.is_counted(name, inference.request_id)


def _new_kept_contexts() -> Contexts:
    """Return an empty table of contexts for an engine that evicts live applications' last."""
    from justitia_ray.core.kept_contexts import KeptContexts

    return KeptContexts()
