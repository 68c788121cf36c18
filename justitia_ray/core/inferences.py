"""The life of inferences: submitted, claimed, waiting again, ended."""

from justitia_ray.core import events as ev
from justitia_ray.core.actions import Refusal, Refuse
from justitia_ray.core.applications import Applications
from justitia_ray.core.entities import (
    Application,
    ApplicationState,
    Inference,
    InferenceState,
    Outcome,
)
from justitia_ray.core.ingresses import Ingresses
from justitia_ray.core.leases import Leases
from justitia_ray.core.order import Order
from justitia_ray.core.recovery import Recovery
from justitia_ray.core.state import State
from justitia_ray.core.transitions import move


class Inferences:
    """Every inference goes in here once and out here once."""

    def __init__(
        self,
        state: State,
        order: Order,
        applications: Applications,
        leases: Leases,
        ingresses: Ingresses,
        recovery: Recovery,
    ) -> None:
        self._state = state
        self._order = order
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
            again=event.again,
            true_output_tokens=event.true_output_tokens,
        )
        state.inferences[event.request_id] = inference
        self._ingresses.submitted(inference)
        state.known_inferences.add(application.tenant)
        if event.again:
            application.stages.miss()
        inference.stage = application.stages.position.submit(event.stage or 0)
        self._applications.became_busy(application)
        remaining = event.remaining_kv_token_time
        # Not from an ingress that takes the application to be at an earlier stage, nor of old.
        if remaining is not None and event.stage in (None, inference.stage) and not event.again:
            self._applications.expect(application, remaining)
        if event.lease_id is not None:
            return inference
        self.wait(inference)
        return None

    def wait(self, inference: Inference) -> None:
        """Put an inference into the queue, at its place in its application.

        It is kept out of it while its ingress is silent.
        """
        application = self._state.applications[inference.application_id]
        application.claimed.discard(inference.request_id)
        if self._ingresses.is_silent(inference.ingress_id):
            self._ingresses.keep_out(application, inference)
        else:
            self._order.enqueue(application, inference)

    def requeue(self, inference: Inference) -> None:
        """Take an inference from its replica and let it wait again."""
        self._leases.release(inference)
        move(inference, InferenceState.WAITING)
        self.wait(inference)

    def cancel(self, event: ev.InferenceCancelled) -> None:
        """Its caller is gone."""
        inference = self._state.inferences.get(event.request_id)
        if inference is not None:
            self.end(inference, Outcome.CANCELLED)

    def end(self, inference: Inference, outcome: Outcome, *, is_counted: bool = False) -> None:
        """Take an inference to its end from whatever state it is in.

        Args:
            inference: The inference.
            outcome: How it ended.
            is_counted: Whether an earlier scheduler has counted it among the ended ones.
        """
        state = self._state
        application = state.applications[inference.application_id]
        if inference.lease_id is not None:
            lease = self._leases.release(inference)
            if outcome in (Outcome.CANCELLED, Outcome.EXPIRED):
                self._leases.abort(lease)
            elif outcome is Outcome.FINISHED:
                self._leases.note_served(application, lease.replica_id)
        elif inference.request_id in application.claimed:
            application.claimed.discard(inference.request_id)
            self._recovery.unclaim(inference.request_id)
        elif not self._ingresses.take_out(application, inference):
            self._order.leave(application, inference)
        move(inference, InferenceState.ENDED)
        del state.inferences[inference.request_id]
        self._ingresses.ended(inference)
        state.known_inferences.remove(application.tenant)
        if not is_counted:
            application.inferences += 1
            application.output_tokens += inference.output_tokens
            application.failed += outcome is Outcome.FAILED
            state.tally.ended[outcome] += 1
        application.unfinished_kv_token_time -= inference.attained
        application.stages.add(
            inference.stage,
            inference.choices,
            inference.prompt_tokens,
            inference.output_tokens,
            inference.attained,
        )
        if outcome is Outcome.FINISHED:
            application.stages.position.finish(inference.stage)
        self._order.inference_ended(application, inference)
        self._applications.inference_ended(application)

    def stop_application(self, application: Application, outcome: Outcome, reason: Refusal) -> None:
        """End an application with all that waits, runs or is kept out of it."""
        application.state = ApplicationState.OPEN  # so that its last inference does not end it
        held = [self._state.inferences[r] for r in application.in_flight | application.claimed]
        held += application.kept_out.values()
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
            if self._applications.was_turned_away(event.application_id):
                return Refusal.TOO_MANY_APPLICATIONS
            return Refusal.UNKNOWN_APPLICATION
        if event.again:  # an earlier scheduler had taken it
            return None
        if application.state is not ApplicationState.OPEN:
            return Refusal.APPLICATION_CLOSED
        if not self._state.known_inferences.has_room(application.tenant):
            return Refusal.QUEUE_FULL
        return None
