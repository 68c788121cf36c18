"""Inferences from submission to end."""

import math
from dataclasses import replace

from justitia_ray.core import events as ev
from justitia_ray.core.actions import Refusal, Refuse
from justitia_ray.core.applications import Applications
from justitia_ray.core.caps import caps_of, reached_cap
from justitia_ray.core.dispatch import Leases
from justitia_ray.core.entities import Application, Departure, Inference, Lease, Outcome, move
from justitia_ray.core.ledger import Ledger
from justitia_ray.core.limits import LimitStanding
from justitia_ray.core.liveness import Ingresses, Recovery
from justitia_ray.core.prefill import Prefill, expect_prefill, leave_answer
from justitia_ray.core.prefill_account import PrefillAccount
from justitia_ray.core.prefixes import read_prefixes
from justitia_ray.core.stages import MAXIMUM_STAGES, replace_expected
from justitia_ray.core.state import DeadlineKind, State
from justitia_ray.core.states import ApplicationState, InferenceState
from justitia_ray.core.suspects import Suspects
from justitia_ray.units import ApplicationId, LeaseId, ReplicaId, RequestId


class Inferences:
    """Admits and ends inferences, each of them exactly once."""

    def __init__(
        self,
        state: State,
        ledger: Ledger,
        applications: Applications,
        leases: Leases,
        ingresses: Ingresses,
        recovery: Recovery,
        suspects: Suspects,
    ) -> None:
        self._state = state
        self._suspects = suspects
        self._ledger = ledger
        self._applications = applications
        self._leases = leases
        self._ingresses = ingresses
        self._recovery = recovery

    def submit(self, event: ev.InferenceSubmitted) -> Inference | None:
        """Queue a new inference; if it already runs under a lease, return the inference.

        A known inference, and an ended inference that was counted, change nothing.
        """
        state = self._state
        if event.request_id in state.inferences:
            return None
        leaving = state.leaving_requests.get(event.request_id)
        if leaving is not None:
            if event.outcome is not None:
                return None
            self.count_departure(leaving)
        if event.outcome is not None and (
            event.is_counted or state.ends.is_counted(event.application_id, event.request_id)
        ):
            return None
        application = state.applications.get(event.application_id)
        if application is None:
            state.actions.append(self._refuse_unopened(event))
            return None
        if application.state.is_cancelled and event.outcome is None:
            refuse = Refuse(event.request_id, event.ingress_id, Refusal.APPLICATION_CANCELLED)
            state.actions.append(refuse)
            if event.lease_id is None:
                return None
            event = replace(event, outcome=Outcome.CANCELLED)
        refusal = self._refusal_reason(application, event)
        if refusal is not None:
            slot_s = None
            if refusal is Refusal.QUEUE_FULL:
                is_again = event.is_retry is True
                slot_s = state.known_inferences.next_slot(
                    application.tenant, state.now, is_again=is_again
                )
            state.actions.append(
                Refuse(event.request_id, event.ingress_id, refusal, retry_after_s=slot_s)
            )
            return None
        if state.caps and not event.resubmitted:
            caps = caps_of(state.tenants, application.tenant)
            cap = reached_cap(application, caps, state.now)
            if cap is not None:
                self._refuse_capped(event, cap)
                return None
        copies = _choices_per_prompt(event) if event.copies > 1 else 1
        prefixes = read_prefixes(event.prefixes, event.prompt_tokens) if event.prefixes else ()
        inference = Inference(
            request_id=event.request_id,
            application_id=event.application_id,
            inference_id=event.inference_id,
            ingress_id=event.ingress_id,
            prompt_tokens=event.prompt_tokens,
            predicted_output_tokens=min(event.predicted_output_tokens, event.max_output_tokens),
            max_output_tokens=event.max_output_tokens,
            choices=event.choices,
            submitted_at=state.now - event.age_s,
            sequence=state.next_sequence(),
            resubmitted=event.resubmitted,
            true_output_tokens=event.true_output_tokens,
            is_counted=event.is_counted,
            outcome=event.outcome,
            copies=copies,
            prefixes=prefixes,
            shares=copies > 1 or bool(prefixes),
        )
        limit_s = application.deadline_s if event.deadline_s is None else event.deadline_s
        if event.lease_id is None and limit_s is not None and limit_s < math.inf:
            inference.starts_by = inference.submitted_at + limit_s
            state.deadlines.set(inference.starts_by, DeadlineKind.WAIT, inference.request_id)
        state.inferences[event.request_id] = inference
        if self._suspects.known:
            self._suspects.resume(inference)
        self._ingresses.add_inference(inference)
        state.known_inferences.arrive(application.tenant)
        if event.resubmitted:
            application.stages.mark_incomplete()
        inference.stage = application.stages.submit(event.stage or 0, state.now)
        self._applications.become_busy(application)
        # A resubmission, or an ingress at an earlier stage, does not change the expected service.
        is_current = event.stage in (None, inference.stage) and not event.resubmitted
        if event.remaining_kv_token_time is not None and is_current:
            self._ledger.expect(event.application_id, event.remaining_kv_token_time)
        if (account := application.prefill) is not None:
            expect_prefill(account, application, inference)
            self._ledger.charge_prefill(application, account)
        if event.expected_stages and is_current:
            stages = replace_expected(
                application.expected_stages, inference.stage, event.expected_stages
            )
            application.expected_stages = stages[:MAXIMUM_STAGES]
        if event.lease_id is not None:
            return inference
        self.wait(inference)
        return None

    def wait(self, inference: Inference) -> None:
        """Put an inference into the queue, or suspend it while its ingress may be lost.

        An inference that has ended according to its ingress ends now, because no replica has it.
        """
        application = self._state.applications[inference.application_id]
        if inference.state is InferenceState.CLAIMED:
            del application.held_back[inference.request_id]
            move(inference, InferenceState.WAITING)
        if inference.outcome is not None:
            self._ledger.enqueue(application, inference)
            self.end(inference, inference.outcome)
        elif inference.ingress_id in self._ingresses.suspect:
            self._ingresses.suspend(application, inference)
        else:
            self._ledger.enqueue(application, inference)

    def claim(self, inference: Inference) -> None:
        """Keep an inference out of the queue until a replica confirms its earlier lease."""
        move(inference, InferenceState.CLAIMED)
        application = self._state.applications[inference.application_id]
        application.held_back[inference.request_id] = inference

    def requeue(self, inference: Inference) -> None:
        """Put an inference that ran on a replica back into the queue."""
        self._leases.release(inference)
        move(inference, InferenceState.WAITING)
        self.wait(inference)

    def cancel(self, event: ev.InferenceCancelled) -> None:
        inference = self._state.inferences.get(event.request_id)
        if inference is not None:
            self._stop_inference(inference, Outcome.CANCELLED)

    def _stop_inference(self, inference: Inference, outcome: Outcome) -> None:
        if inference.state is InferenceState.CLAIMED and inference.is_counted is not None:
            inference.outcome = outcome
        else:
            self.end(inference, outcome)

    def expire_wait(self, request_id: RequestId) -> None:
        """Refuse an inference that has not started before its deadline."""
        inference = self._state.inferences.get(request_id)
        if inference is None or inference.attempts or inference.starts_by is None:
            return
        if inference.starts_by <= self._state.now:
            self.refuse_deadline(inference)

    def refuse_deadline(self, inference: Inference) -> None:
        """Refuse a waiting inference that cannot meet its deadline, and refund its charge.

        The inference counts as failed, so that predictors do not learn from the application's cost.
        """
        self._state.applications[inference.application_id].failed += 1
        self._state.actions.append(
            Refuse(inference.request_id, inference.ingress_id, Refusal.DEADLINE)
        )
        self.end(inference, Outcome.EXPIRED)

    def end(
        self,
        inference: Inference,
        outcome: Outcome,
        *,
        is_counted: bool = False,
        is_reported: bool = False,
    ) -> None:
        """End an inference, whether it waits, runs or is suspended.

        If the inference is stopped while leased, it is counted with the last report of the lease.

        Args:
            inference: The inference.
            outcome: The outcome of the inference.
            is_counted: Whether an earlier scheduler has counted the ended inference.
            is_reported: Whether the replica has sent its last report on the inference.
        """
        state, request_id = self._state, inference.request_id
        application = state.applications[inference.application_id]
        if inference.lease_id is not None:
            lease = self._leases.release(inference)
            if outcome in (Outcome.CANCELLED, Outcome.EXPIRED):
                self._leases.abort(lease)
                if not (is_reported or is_counted):
                    self._await_last_report(application, inference, lease, outcome)
            elif outcome is Outcome.FINISHED:
                self._note_serving_replica(application, lease.replica_id)
        elif inference.state is InferenceState.CLAIMED:
            del application.held_back[request_id]
            self._recovery.withdraw_claims(request_id)
        elif not self._ingresses.remove_suspended(application, inference):
            self._ledger.leave(application, inference)
        move(inference, InferenceState.ENDED)
        del state.inferences[request_id]
        self._ingresses.remove_inference(inference)
        if self._suspects.known:
            self._suspects.forget(inference, is_finished=outcome is Outcome.FINISHED)
        state.known_inferences.depart(application.tenant, state.now)
        if request_id not in state.leaving_requests:
            self._count_ended(application, inference, outcome, is_counted=is_counted)

    def count_departure(self, lease_id: LeaseId, *, is_counted: bool = False) -> None:
        """Count a stopped inference once, with the tokens that its replica has reported.

        Args:
            lease_id: The lease that was aborted.
            is_counted: As for `end`.
        """
        state = self._state
        departure = state.leaving.pop(lease_id, None)
        if departure is None:
            return
        inference = departure.inference
        del state.leaving_requests[inference.request_id]
        application = state.applications[inference.application_id]
        del application.leaving[lease_id]
        self._count_ended(application, inference, departure.outcome, is_counted=is_counted)

    def _note_serving_replica(self, application: Application, replica_id: ReplicaId) -> None:
        """Record which replica served an application last."""
        if next(reversed(application.replicas), None) != replica_id:
            known = self._state.replicas.keys() - {replica_id}
            others = [name for name in application.replicas if name in known]
            application.replicas = dict.fromkeys([*others, replica_id])

    def _await_last_report(
        self, application: Application, inference: Inference, lease: Lease, outcome: Outcome
    ) -> None:
        """Wait for a replica's last report of an inference, at most for `Timeouts.replica_s`."""
        state, lease_id = self._state, lease.lease_id
        state.leaving[lease_id] = Departure(inference, lease.replica_id, outcome)
        state.leaving_requests[inference.request_id] = lease_id
        application.leaving[lease_id] = None
        if self._ledger.observer is not None:
            self._ledger.observer.leave_flight(inference)
        due = state.now + state.timeouts.replica_s
        state.deadlines.set(due, DeadlineKind.DEPARTURE, lease_id)

    def _count_ended(
        self, application: Application, inference: Inference, outcome: Outcome, *, is_counted: bool
    ) -> None:
        state, request_id = self._state, inference.request_id
        if not is_counted:
            application.inferences += 1
            application.output_tokens += inference.output_tokens
            is_finished = outcome is Outcome.FINISHED
            prompt = inference.prompt_tokens if is_finished else inference.begun_prompt_tokens
            if inference.output_tokens or is_finished or prompt:
                cached = min(prompt, inference.cached_tokens or 0)
                application.prompt_tokens += prompt
                application.cached_tokens += cached
                usage = state.usage.of(application.tenant, state.now)
                usage.inferences += 1
                usage.prompt_tokens += prompt
                usage.cached_prompt_tokens += cached
                usage.output_tokens += inference.output_tokens
                state.counters.count_tokens(
                    application.tenant, prompt, inference.output_tokens, cached
                )
            application.failed += outcome is Outcome.FAILED
            state.counters.ended[outcome] += 1
        if state.ended is not None:
            state.ended[request_id] = inference
        if inference.is_counted is not None and (inference.attempts or inference.outcome):
            state.ends.add_inference(application.application_id, request_id, inference.ingress_id)
        application.unfinished_kv_token_time -= inference.attained
        if application.prefill is not None and inference.prefill is not None:
            self._refund_uncomputed_prompt(
                application, application.prefill, inference, inference.prefill
            )
        application.stages.add_ended_inference(
            inference, state.now, is_finished=outcome is Outcome.FINISHED
        )
        if self._ledger.notifies:
            self._ledger.inference_ended(application, inference)
        self._applications.inference_ended(application)

    def _refund_uncomputed_prompt(
        self,
        application: Application,
        account: PrefillAccount,
        inference: Inference,
        prefill: Prefill,
    ) -> None:
        """Refund the charge for a prompt that was not computed.

        Otherwise keep the prompt's context.
        """
        account.unfinished -= prefill.paid
        account.forgiven -= prefill.forgiven
        if prefill.charged:
            account.pending -= prefill.charged
            prefill.charged = 0
            self._ledger.charge_prefill(application, account)
        leave_answer(inference)

    def enforce_caps(self) -> None:
        """Refuse waiting inferences of applications that have reached a limit of their own (cap).

        Running inferences go on.
        """
        state = self._state
        names, state.served = state.served, {}
        for name in names:
            application = state.applications.get(name)
            if application is None:
                continue
            caps = caps_of(state.tenants, application.tenant)
            # Waiting inferences were within the limit on their number when they were submitted.
            cap = reached_cap(application, replace(caps, inferences=None), state.now)
            if cap is not None:
                for inference in [*application.waiting, *application.suspended]:
                    self._refuse_capped(inference, cap)
                    self.end(inference, Outcome.CANCELLED)

    def expire_cap(self, application_id: ApplicationId) -> None:
        self._state.served[application_id] = None

    def _refuse_capped(
        self, refused: ev.InferenceSubmitted | Inference, cap: LimitStanding
    ) -> None:
        self._state.actions.append(
            Refuse(refused.request_id, refused.ingress_id, Refusal.CAP_REACHED, cap)
        )

    def cancel_application(self, event: ev.ApplicationCancelled) -> None:
        """Cancel an application and end all its inferences.

        The application ends when replicas have sent their last reports on its inferences, and
        inferences that ended under earlier schedulers are counted.
        """
        application = self._state.applications.get(event.application_id)
        if application is None:
            return
        self._applications.cancel(application)
        held = [self._state.inferences[name] for name in application.in_flight]
        held += application.held_back.values()
        held.sort(key=lambda inference: inference.order)
        for inference in [*application.waiting, *held]:
            if inference.outcome is None:
                refuse = Refuse(
                    inference.request_id, inference.ingress_id, Refusal.APPLICATION_CANCELLED
                )
                self._state.actions.append(refuse)
                self._stop_inference(inference, Outcome.CANCELLED)
        self._applications.end_if_over(application)

    def reopen_application(self, event: ev.ApplicationReopened) -> None:
        """Let a closed application accept inferences again.

        End a cancelled application if possible.
        """
        application = self._state.applications.get(event.application_id)
        if application is None:
            return
        if application.state is ApplicationState.STOPPING:
            # A cancelled application ends when its last lease has ended.
            for lease_id in list(application.leaving):
                self.count_departure(lease_id)
        else:
            self._applications.reopen(application)

    def _refuse_unopened(self, event: ev.InferenceSubmitted) -> Refuse:
        """Refuse an inference of an application that is not open, with the reason."""
        rejection = self._applications.rejections.get(event.application_id)
        if rejection is None:
            return Refuse(event.request_id, event.ingress_id, Refusal.UNKNOWN_APPLICATION)
        return Refuse(
            event.request_id,
            event.ingress_id,
            rejection.reason,
            rejection.limit,
            rejection.retry_after_s,
        )

    def _refusal_reason(
        self, application: Application, event: ev.InferenceSubmitted
    ) -> Refusal | None:
        if event.resubmitted:  # an earlier scheduler admitted the inference
            return None
        if not application.state.takes_inferences:
            # Inferences that this scheduler does not know may still be submitted again.
            is_over = application.is_idle and application.is_awaited
            return Refusal.APPLICATION_ENDING if is_over else Refusal.APPLICATION_CLOSED
        state, is_retry = self._state, event.is_retry
        if not state.known_inferences.admits(application.tenant, state.now, is_retry=is_retry):
            return Refusal.QUEUE_FULL
        return None


def _choices_per_prompt(event: ev.InferenceSubmitted) -> int:
    """Return the number of choices of each prompt; 1 if prompts have different numbers."""
    return event.copies if event.choices % event.copies == 0 else 1
