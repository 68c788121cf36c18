"""The lives of applications and of their inferences, from arrival to end."""

from justitia_ray.core import events as ev
from justitia_ray.core.actions import (
    EndApplication,
    ForgetApplication,
    Refusal,
    Refuse,
    RefuseApplication,
)
from justitia_ray.core.dispatch import Leases
from justitia_ray.core.entities import (
    Application,
    ApplicationState,
    Inference,
    InferenceState,
    Outcome,
    move,
)
from justitia_ray.core.ledger import Ledger
from justitia_ray.core.liveness import Ingresses, Recovery
from justitia_ray.core.stages import MAXIMUM_STAGES, expected_from
from justitia_ray.core.state import DeadlineKind, State
from justitia_ray.units import ApplicationId, Seconds

_MAXIMUM_REJECTED = 10_000
"""Rejected applications remembered; inferences of them are refused for that reason."""


class Applications:
    """Opens applications, notices when they fall idle, and ends them."""

    def __init__(self, state: State, ledger: Ledger) -> None:
        self._state = state
        self._ledger = ledger
        self._fell_idle: dict[ApplicationId, None] = {}
        """Applications that fell idle since the last report of a replica."""
        self._returning: dict[ApplicationId, None] = {}
        """Applications from a snapshot whose inferences may yet be submitted again."""
        self._rejected: dict[ApplicationId, None] = {}
        """The last that were rejected, in order."""

    def arrive(self, event: ev.ApplicationArrived) -> None:
        """Open a new application (rule 6); for a known one, note the ingress that speaks for it.

        A new one beyond the tenant's quota is rejected, unless it was open under an earlier
        scheduler.
        """
        state, application_id = self._state, event.application_id
        known = state.applications.get(application_id)
        if known is not None:
            known.ingress_id = event.ingress_id
            known.openers[event.ingress_id] = None
            state.changed[application_id] = None
            return
        if not (event.resubmitted or state.open_applications.admits(event.tenant)):
            self._reject(event)
            return
        self._rejected.pop(application_id, None)
        application = Application(
            application_id,
            event.application_class,
            event.tenant,
            event.weight,
            event.predicted_kv_token_time,
            event.ingress_id,
            state.now,
            state.next_sequence(),
            predicted_cost=event.predicted_cost,
            true_kv_token_time=event.true_kv_token_time,
            recognized_by=event.recognized_by,
            idle_s=event.idle_s,
            expected_stages=event.expected_stages[:MAXIMUM_STAGES],
        )
        application.openers[event.ingress_id] = None
        state.applications[application_id] = application
        state.open_applications.increment(event.tenant)
        self._ledger.arrive(application, event.charge_kv_token_time)
        self._fall_idle(application)

    def adopt(self, application: Application) -> None:
        """Put back an application from a snapshot, idle; its account is put back by the caller."""
        state = self._state
        application.stages.miss_some()
        state.applications[application.application_id] = application
        state.open_applications.increment(application.tenant)
        state.sequence = max(state.sequence, application.sequence)
        self._returning[application.application_id] = None
        state.deadlines.set(
            state.now + state.timeouts.ingress_s, DeadlineKind.RETURN, application.application_id
        )
        self._watch_idle(application)

    def expire_return(self, application_id: ApplicationId) -> None:
        """Treat a restored application like any other idle one: its ingress did not come back."""
        if application_id in self._returning:
            del self._returning[application_id]
            self._fell_idle[application_id] = None

    def was_rejected(self, application_id: ApplicationId) -> bool:
        """Return whether an application was rejected lately, beyond the quota."""
        return application_id in self._rejected

    def awaits_withdrawal(self, application_id: ApplicationId) -> bool:
        """Return whether an idle application may still be in GPS: see the rules of `invariants`."""
        return application_id in self._fell_idle or application_id in self._returning

    def close(self, event: ev.ApplicationClosed) -> None:
        """Close an application to new inferences; end it once nothing of it is left."""
        application = self._state.applications.get(event.application_id)
        if application is None:
            return
        application.state = ApplicationState.CLOSING
        self._state.changed[event.application_id] = None
        if application.is_idle:
            self.end(application, Outcome.FINISHED)

    def reweigh(self, event: ev.WeightChanged) -> None:
        """Change the weight of a live application."""
        application = self._state.applications.get(event.application_id)
        if application is not None and application.weight != event.weight:
            application.weight = event.weight
            self._ledger.reweigh(event.application_id, event.weight)

    def become_busy(self, application: Application) -> None:
        """End the tool gap of an application that submits: charge it again (rule 5)."""
        application.idle_since = None
        self._fell_idle.pop(application.application_id, None)
        self._returning.pop(application.application_id, None)
        self._ledger.resume(application.application_id)

    def inference_ended(self, application: Application) -> None:
        """Let an application fall idle, or end if it is closing, once nothing of it is left."""
        self._state.changed[application.application_id] = None
        if not application.is_idle:
            return
        if application.state is ApplicationState.CLOSING:
            self.end(application, Outcome.FINISHED)
        else:
            self._fall_idle(application)

    @property
    def any_fell_idle(self) -> bool:
        """Whether any is idle that has not been withdrawn."""
        return bool(self._fell_idle)

    def withdraw_idle(self) -> None:
        """Withdraw idle applications (rule 4). Call after booking the service of the report."""
        for application_id in self._fell_idle:
            self._ledger.withdraw(application_id)
        self._fell_idle.clear()

    def is_overdue(self, application: Application) -> bool:
        """Return whether it has been idle for as long as an application may be."""
        since = application.idle_since
        return since is not None and since + self._idle_limit(application) <= self._state.now

    def end(self, application: Application, outcome: Outcome) -> None:
        """Settle the account of an application (rule 3) and report what it took."""
        state, ledger, application_id = self._state, self._ledger, application.application_id
        ledger.policy.application_ended(application)
        settlements = ledger.fair_share.accounts[application_id].settlements
        final_tag, lag = ledger.settle(application_id)
        state.actions.append(
            EndApplication(
                application_id=application_id,
                application_class=application.application_class,
                tenant=application.tenant,
                ingress_id=application.ingress_id,
                outcome=outcome,
                predicted_kv_token_time=application.predicted_kv_token_time,
                kv_token_time=application.kv_token_time,
                virtual_finish_time=final_tag,
                arrived_at=application.arrived_at,
                first_dispatched_at=application.first_dispatched_at,
                ended_at=state.now,
                inferences=application.inferences,
                failed=application.failed,
                output_tokens=application.output_tokens,
                settlements=settlements,
                lag=lag,
                stages=application.stages.served(),
                recognized_by=application.recognized_by,
            )
        )
        for ingress_id in application.openers:
            if ingress_id != application.ingress_id:
                state.actions.append(ForgetApplication(application_id, ingress_id))
        del state.applications[application_id]
        state.open_applications.decrement(application.tenant)
        self._fell_idle.pop(application_id, None)
        self._returning.pop(application_id, None)
        state.changed[application_id] = None

    def _reject(self, event: ev.ApplicationArrived) -> None:
        self._state.counters.rejected_applications += event.application_id not in self._rejected
        self._rejected.pop(event.application_id, None)
        self._rejected[event.application_id] = None
        if len(self._rejected) > _MAXIMUM_REJECTED:
            del self._rejected[next(iter(self._rejected))]
        self._state.actions.append(RefuseApplication(event.application_id, event.ingress_id))

    def _fall_idle(self, application: Application) -> None:
        self._fell_idle[application.application_id] = None
        self._state.changed[application.application_id] = None
        self._watch_idle(application)

    def _watch_idle(self, application: Application) -> None:
        state = self._state
        application.idle_since = state.now
        state.deadlines.set(
            state.now + self._idle_limit(application),
            DeadlineKind.APPLICATION,
            application.application_id,
        )

    def _idle_limit(self, application: Application) -> Seconds:
        """Return how long an application may be idle before it ends."""
        own = application.idle_s
        return self._state.timeouts.application_s if own is None else own


class Inferences:
    """Takes every inference in once, and out once."""

    def __init__(
        self,
        state: State,
        ledger: Ledger,
        applications: Applications,
        leases: Leases,
        ingresses: Ingresses,
        recovery: Recovery,
    ) -> None:
        self._state = state
        self._ledger = ledger
        self._applications = applications
        self._leases = leases
        self._ingresses = ingresses
        self._recovery = recovery

    def submit(self, event: ev.InferenceSubmitted) -> Inference | None:
        """Let a new inference wait; return it instead if it claims a lease of old.

        Submitting one that is known changes nothing.
        """
        state = self._state
        if event.request_id in state.inferences:
            return None
        application = state.applications.get(event.application_id)
        refusal = self._refusal(application, event)
        if application is None or refusal is not None:
            reason = refusal if refusal is not None else Refusal.UNKNOWN_APPLICATION
            state.actions.append(Refuse(event.request_id, event.ingress_id, reason))
            return None
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
        )
        state.inferences[event.request_id] = inference
        self._ingresses.add_inference(inference)
        state.known_inferences.increment(application.tenant)
        if event.resubmitted:
            application.stages.miss_some()
        inference.stage = application.stages.submit(event.stage or 0, state.now)
        self._applications.become_busy(application)
        # Not from an ingress that takes the application to be at an earlier stage, nor of old.
        is_current = event.stage in (None, inference.stage) and not event.resubmitted
        if event.remaining_kv_token_time is not None and is_current:
            self._ledger.expect(event.application_id, event.remaining_kv_token_time)
        if event.expected_stages and is_current:
            stages = expected_from(
                application.expected_stages, inference.stage, event.expected_stages
            )
            application.expected_stages = stages[:MAXIMUM_STAGES]
        if event.lease_id is not None:
            return inference
        self.wait(inference)
        return None

    def wait(self, inference: Inference) -> None:
        """Put an inference into the queue; suspend it while its ingress is suspect."""
        application = self._state.applications[inference.application_id]
        application.claimed.discard(inference.request_id)
        if self._ingresses.is_suspect(inference.ingress_id):
            self._ingresses.suspend(application, inference)
        else:
            self._ledger.enqueue(application, inference)

    def requeue(self, inference: Inference) -> None:
        """Release an inference from its replica and let it wait again."""
        self._leases.release(inference)
        move(inference, InferenceState.WAITING)
        self.wait(inference)

    def cancel(self, event: ev.InferenceCancelled) -> None:
        """End an inference whose caller is gone."""
        inference = self._state.inferences.get(event.request_id)
        if inference is not None:
            self.end(inference, Outcome.CANCELLED)

    def end(self, inference: Inference, outcome: Outcome, *, is_counted: bool = False) -> None:
        """End an inference from whatever state it is in.

        Args:
            inference: The inference.
            outcome: How it ended.
            is_counted: Whether an earlier scheduler has counted it among the ended ones.
        """
        state, request_id = self._state, inference.request_id
        application = state.applications[inference.application_id]
        if inference.lease_id is not None:
            lease = self._leases.release(inference)
            if outcome in (Outcome.CANCELLED, Outcome.EXPIRED):
                self._leases.abort(lease)
            elif outcome is Outcome.FINISHED and lease.replica_id not in application.replicas:
                known = [name for name in application.replicas if name in state.replicas]
                application.replicas = dict.fromkeys([*known, lease.replica_id])
        elif request_id in application.claimed:
            application.claimed.discard(request_id)
            self._recovery.unclaim(request_id)
        elif not self._ingresses.remove_suspended(application, inference):
            self._ledger.leave(application, inference)
        move(inference, InferenceState.ENDED)
        del state.inferences[request_id]
        self._ingresses.remove_inference(inference)
        state.known_inferences.decrement(application.tenant)
        if not is_counted:
            application.inferences += 1
            application.output_tokens += inference.output_tokens
            application.failed += outcome is Outcome.FAILED
            state.counters.ended[outcome] += 1
        application.unfinished_kv_token_time -= inference.attained
        application.stages.add_ended(inference, state.now, is_finished=outcome is Outcome.FINISHED)
        self._ledger.inference_ended(application, inference)
        self._applications.inference_ended(application)

    def stop_application(self, application: Application, outcome: Outcome, reason: Refusal) -> None:
        """End an application with all its inferences: waiting, running or suspended."""
        application.state = ApplicationState.OPEN  # so that its last inference does not end it
        held = [self._state.inferences[r] for r in application.in_flight | application.claimed]
        held += application.suspended.values()
        held.sort(key=lambda inference: inference.order)
        for inference in [*application.waiting, *held]:
            refuse = Refuse(inference.request_id, inference.ingress_id, reason)
            self._state.actions.append(refuse)
            self.end(inference, outcome)
        self._applications.end(application, outcome)

    def _refusal(
        self, application: Application | None, event: ev.InferenceSubmitted
    ) -> Refusal | None:
        if application is None:
            if self._applications.was_rejected(event.application_id):
                return Refusal.TOO_MANY_APPLICATIONS
            return Refusal.UNKNOWN_APPLICATION
        if event.resubmitted:  # an earlier scheduler had taken it
            return None
        if application.state is not ApplicationState.OPEN:
            return Refusal.APPLICATION_CLOSED
        if not self._state.known_inferences.admits(application.tenant):
            return Refusal.QUEUE_FULL
        return None
