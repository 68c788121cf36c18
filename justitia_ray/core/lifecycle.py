"""The lives of applications and of their inferences, from arrival to end."""

import math
from collections.abc import Iterable
from dataclasses import replace

from justitia_ray.core import events as ev
from justitia_ray.core.actions import (
    EndApplication,
    ForgetApplication,
    Refusal,
    Refuse,
    RefuseApplication,
)
from justitia_ray.core.caps import caps_of, has_caps, reached_cap
from justitia_ray.core.dispatch import Leases
from justitia_ray.core.entities import (
    Application,
    ApplicationState,
    Departure,
    Inference,
    InferenceState,
    Lease,
    Outcome,
    move,
)
from justitia_ray.core.ledger import Ledger
from justitia_ray.core.limits import LimitStanding
from justitia_ray.core.liveness import Ingresses, Recovery
from justitia_ray.core.locality import end_contexts
from justitia_ray.core.prefixes import read_prefixes
from justitia_ray.core.stages import MAXIMUM_STAGES, expected_from
from justitia_ray.core.state import DeadlineKind, State
from justitia_ray.core.suspects import Suspects
from justitia_ray.units import ApplicationId, IngressId, LeaseId, ReplicaId, RequestId, Seconds

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
        self._rejected: dict[ApplicationId, RefuseApplication] = {}
        """The last that were rejected, in order."""
        self._awaiting: dict[IngressId, dict[ApplicationId, None]] = {}
        """Applications that await an ingress."""
        self._resubmitted: set[IngressId] = set()
        """Ingresses that have submitted again what they have of earlier schedulers."""
        self._opened_before: set[ApplicationId] = set()
        """Applications that were submitted again to this scheduler, ended ones too."""

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
            if event.keeps_ends:
                known.keepers[event.ingress_id] = None
            state.changed[application_id] = None
            return
        is_retry = True if application_id in self._rejected else event.is_retry
        if not (event.resubmitted or state.admits_application(event.tenant, is_retry=is_retry)):
            self._reject(event, is_again=is_retry is True)
            return
        self._rejected.pop(application_id, None)
        application = Application(
            application_id,
            event.application_class,
            event.tenant,
            state.effective_weight(event.tenant, event.weight, event.tier),
            event.predicted_kv_token_time,
            event.ingress_id,
            state.now,
            state.next_sequence(),
            predicted_cost=event.predicted_cost,
            true_kv_token_time=event.true_kv_token_time,
            recognized_by=event.recognized_by,
            idle_s=event.idle_s,
            expected_stages=event.expected_stages[:MAXIMUM_STAGES],
            deadline_s=event.deadline_s,
            tier=event.tier,
        )
        application.openers[event.ingress_id] = None
        if event.keeps_ends:
            application.keepers[event.ingress_id] = None
        state.applications[application_id] = application
        state.application_arrived(event.tenant)
        is_counted = self.is_counted(event)
        openers, unfinished = state.ends.reopen(application_id)
        application.keepers.update(dict.fromkeys(openers))
        if is_counted:
            application.booked_before = application.unfinished_kv_token_time = unfinished
            self._await(application, openers)
        else:
            state.usage.of(event.tenant, state.now).applications += 1
        if event.resubmitted:
            self._opened_before.add(application_id)
        self._watch_cap(application)
        self._ledger.arrive(application, event.charge_kv_token_time)
        self._fall_idle(application)

    def is_counted(self, event: ev.ApplicationArrived) -> bool:
        """Return whether an application that is not live was opened before, and is counted.

        Its ingress does not know that it is over, or brings what may be missing of its end: under
        an earlier scheduler it was, or under this one, before that ingress came. An ingress that
        has submitted again what it had brings another application of that name.
        """
        if event.is_counted:
            return True
        if not event.resubmitted or not event.keeps_ends or event.ingress_id in self._resubmitted:
            return False
        name = event.application_id
        return name in self._opened_before or self._state.ends.is_inherited(name)

    def adopt(self, application: Application) -> None:
        """Put back an application from a snapshot, idle; its account is put back by the caller."""
        state = self._state
        application.stages.miss_some()
        state.applications[application.application_id] = application
        state.application_arrived(application.tenant)
        state.sequence = max(state.sequence, application.sequence)
        self._await(application, application.keepers)
        self._watch_cap(application)
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

    def rejection(self, application_id: ApplicationId) -> RefuseApplication | None:
        """Return how an application was rejected lately, None if it was not."""
        return self._rejected.get(application_id)

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
        self._end_if_over(application)

    def reopen(self, application: Application) -> None:
        """Let an application that is closed, and not over, take inferences again."""
        if application.state is ApplicationState.CLOSING:
            application.state = ApplicationState.OPEN
            self._state.changed[application.application_id] = None

    def resubmitted(self, ingress_id: IngressId) -> None:
        """Await an ingress no more: it has submitted again all that it has, or is lost."""
        self._resubmitted.add(ingress_id)
        for application_id in self._awaiting.pop(ingress_id, ()):
            application = self._state.applications.get(application_id)
            if application is not None:
                application.awaited.pop(ingress_id, None)
                self._end_if_over(application)

    def reweigh(self, event: ev.WeightChanged) -> None:
        """Change the weight of a live application."""
        application = self._state.applications.get(event.application_id)
        if application is None:
            return
        weight = self._state.effective_weight(application.tenant, event.weight, application.tier)
        if application.weight != weight:
            application.weight = weight
            self._ledger.reweigh(application)

    def deprioritise(self, event: ev.ApplicationDeprioritised) -> None:
        """Let an application run when nobody else wants to, or in its turn again."""
        application = self._state.applications.get(event.application_id)
        if application is not None and application.is_deprioritised != event.is_deprioritised:
            self._ledger.deprioritise(application, is_so=event.is_deprioritised)

    def cap_anew(self) -> None:
        """Hold the caps of the tenants as they are described now; for what is open, too."""
        state = self._state
        state.caps = has_caps(state.tenants)
        if state.caps:
            for application in state.applications.values():
                self._watch_cap(application)
                state.served[application.application_id] = None

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
        if not self._end_if_over(application):
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
        end_contexts(state.replicas, application)
        state.memory_releases += 1
        ledger.application_ended(application)
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
                prompt_tokens=application.prompt_tokens,
                cached_tokens=application.cached_tokens,
                settlements=settlements,
                lag=lag,
                stages=application.stages.served(),
                recognized_by=application.recognized_by,
            )
        )
        for ingress_id in application.openers:
            if ingress_id != application.ingress_id:
                state.actions.append(ForgetApplication(application_id, ingress_id))
        state.ends.add_application(application_id, application.keepers, application.booked_before)
        del state.applications[application_id]
        state.application_departed(application.tenant)
        self._fell_idle.pop(application_id, None)
        self._returning.pop(application_id, None)
        state.changed[application_id] = None

    def _end_if_over(self, application: Application) -> bool:
        """End an application that is closed, with nothing left; return whether it is."""
        is_closing = application.state is ApplicationState.CLOSING
        is_over = is_closing and application.is_idle and not application.awaited
        if is_over:
            outcome = Outcome.CANCELLED if application.is_stopped else Outcome.FINISHED
            self.end(application, outcome)
        return is_over

    def _await(self, application: Application, ingress_ids: Iterable[IngressId]) -> None:
        """Await ingresses that had an application open, and have not come again."""
        for ingress_id in ingress_ids:
            if ingress_id not in self._resubmitted:
                application.awaited[ingress_id] = None
                awaiting = self._awaiting.setdefault(ingress_id, {})
                awaiting[application.application_id] = None

    def _reject(self, event: ev.ApplicationArrived, *, is_again: bool) -> None:
        self._state.counters.rejected_applications += event.application_id not in self._rejected
        self._rejected.pop(event.application_id, None)
        refusal = RefuseApplication(
            event.application_id,
            event.ingress_id,
            retry_after_s=self._state.application_slot(event.tenant, is_again=is_again),
        )
        self._rejected[event.application_id] = refusal
        if len(self._rejected) > _MAXIMUM_REJECTED:
            del self._rejected[next(iter(self._rejected))]
        self._state.actions.append(refusal)

    def _fall_idle(self, application: Application) -> None:
        self._fell_idle[application.application_id] = None
        self._state.changed[application.application_id] = None
        self._watch_idle(application)

    def _watch_cap(self, application: Application) -> None:
        """Look at an application again when its time is up, if that is capped."""
        state = self._state
        if state.caps:
            seconds = caps_of(state.tenants, application.tenant).seconds
            if seconds is not None:
                at = application.arrived_at + seconds
                state.deadlines.set(at, DeadlineKind.CAP, application.application_id)

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
        """Let a new inference wait; return it instead if it claims a lease of old.

        Submitting one that is known changes nothing, nor does one that has ended and is counted.
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
        if application.is_stopped and event.outcome is None:
            refuse = Refuse(event.request_id, event.ingress_id, Refusal.APPLICATION_CANCELLED)
            state.actions.append(refuse)
            if event.lease_id is None:
                return None
            event = replace(event, outcome=Outcome.CANCELLED)
        refusal = self._refusal(application, event)
        if refusal is not None:
            slot_s = None
            if refusal is Refusal.QUEUE_FULL:
                slot_s = state.inference_slot(application.tenant, is_again=event.is_retry is True)
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
        copies = _copies(event)
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
        if event.lease_id is None:
            self._set_deadline(inference, event.deadline_s, application.deadline_s)
        state.inferences[event.request_id] = inference
        if self._suspects.known:
            self._suspects.resume(inference)
        self._ingresses.add_inference(inference)
        state.inference_arrived(application.tenant)
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
        """Put an inference into the queue; suspend it while its ingress is suspect.

        One that has ended for its ingress ends here, too: no replica knows what became of it.
        """
        application = self._state.applications[inference.application_id]
        application.claimed.discard(inference.request_id)
        if inference.outcome is not None:
            self._ledger.enqueue(application, inference)
            self.end(inference, inference.outcome)
        elif self._ingresses.is_suspect(inference.ingress_id):
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
            self._stop(inference, Outcome.CANCELLED)

    def _stop(self, inference: Inference, outcome: Outcome) -> None:
        """End an inference that is not wanted any more.

        One whose lease no replica has confirmed may have run: it ends once that is known.
        """
        application = self._state.applications[inference.application_id]
        if inference.request_id in application.claimed and inference.is_counted is not None:
            inference.outcome = outcome
        else:
            self.end(inference, outcome)

    def expire_wait(self, request_id: RequestId) -> None:
        """Refuse an inference that has missed the deadline of its first lease."""
        inference = self._state.inferences.get(request_id)
        if inference is None or inference.attempts or inference.starts_by is None:
            return
        if inference.starts_by <= self._state.now:
            self.refuse_deadline(inference)

    def refuse_deadline(self, inference: Inference) -> None:
        """Refuse an inference that waits and cannot make its deadline; its account is refunded.

        Its application counts it as failed: what it took says less than it would have taken.
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
        """End an inference from whatever state it is in.

        One that is stopped under its lease is counted with the last report of that.

        Args:
            inference: The inference.
            outcome: How it ended.
            is_counted: Whether an earlier scheduler has counted it among the ended ones.
            is_reported: Whether its replica has said its last word of it.
        """
        state, request_id = self._state, inference.request_id
        application = state.applications[inference.application_id]
        if inference.lease_id is not None:
            lease = self._leases.release(inference)
            if outcome in (Outcome.CANCELLED, Outcome.EXPIRED):
                self._leases.abort(lease)
                if not (is_reported or is_counted):
                    self._depart(application, inference, lease, outcome)
            elif outcome is Outcome.FINISHED:
                self._note_served(application, lease.replica_id)
        elif request_id in application.claimed:
            application.claimed.discard(request_id)
            self._recovery.unclaim(request_id)
        elif not self._ingresses.remove_suspended(application, inference):
            self._ledger.leave(application, inference)
        move(inference, InferenceState.ENDED)
        del state.inferences[request_id]
        self._ingresses.remove_inference(inference)
        if self._suspects.known:
            self._suspects.forget(inference, is_finished=outcome is Outcome.FINISHED)
        state.inference_departed(application.tenant)
        if request_id not in state.leaving_requests:
            self._count(application, inference, outcome, is_counted=is_counted)

    def count_departure(self, lease_id: LeaseId, *, is_counted: bool = False) -> None:
        """Count an inference that was stopped, with what was reported of it; once.

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
        self._count(application, inference, departure.outcome, is_counted=is_counted)

    def count_departures(self, application: Application) -> None:
        """Count what was stopped of an application without waiting for more reports of it."""
        for lease_id in list(application.leaving):
            self.count_departure(lease_id)

    def _note_served(self, application: Application, replica_id: ReplicaId) -> None:
        """Put a replica last among those that have served an application."""
        if next(reversed(application.replicas), None) != replica_id:
            known = self._state.replicas.keys() - {replica_id}
            others = [name for name in application.replicas if name in known]
            application.replicas = dict.fromkeys([*others, replica_id])

    def _depart(
        self, application: Application, inference: Inference, lease: Lease, outcome: Outcome
    ) -> None:
        """Await a replica's last report of an inference, for as long as it may be silent."""
        state, lease_id = self._state, lease.lease_id
        state.leaving[lease_id] = Departure(inference, lease.replica_id, outcome)
        state.leaving_requests[inference.request_id] = lease_id
        application.leaving[lease_id] = None
        if self._ledger.observer is not None:
            self._ledger.observer.leave_flight(inference)
        due = state.now + state.timeouts.replica_s
        state.deadlines.set(due, DeadlineKind.DEPARTURE, lease_id)

    def _count(
        self, application: Application, inference: Inference, outcome: Outcome, *, is_counted: bool
    ) -> None:
        """Count an inference among the ended ones of its application and its tenant."""
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
        application.stages.add_ended(inference, state.now, is_finished=outcome is Outcome.FINISHED)
        self._ledger.inference_ended(application, inference)
        self._applications.inference_ended(application)

    def enforce_caps(self) -> None:
        """Refuse what waits of applications that have used up what one may; what runs runs on."""
        state = self._state
        names, state.served = state.served, {}
        for name in names:
            application = state.applications.get(name)
            if application is None:
                continue
            caps = caps_of(state.tenants, application.tenant)
            # Inferences are capped as they are submitted: those that wait were within the cap.
            cap = reached_cap(application, replace(caps, inferences=None), state.now)
            if cap is not None:
                for inference in [*application.waiting, *application.suspended.values()]:
                    self._refuse_capped(inference, cap)
                    self.end(inference, Outcome.CANCELLED)

    def expire_cap(self, application_id: ApplicationId) -> None:
        """Look at an application whose time may be up."""
        self._state.served[application_id] = None

    def _refuse_capped(
        self, refused: ev.InferenceSubmitted | Inference, cap: LimitStanding
    ) -> None:
        self._state.actions.append(
            Refuse(refused.request_id, refused.ingress_id, Refusal.CAP_REACHED, cap)
        )

    def stop_application(self, application: Application, outcome: Outcome, reason: Refusal) -> None:
        """End an application with all its inferences: waiting, running or suspended.

        One of an earlier scheduler that is cancelled is over once what has ended of it is counted.
        """
        application.state = ApplicationState.OPEN  # so that its last inference does not end it
        held = [self._state.inferences[r] for r in application.in_flight | application.claimed]
        held += application.suspended.values()
        held.sort(key=lambda inference: inference.order)
        for inference in [*application.waiting, *held]:
            if inference.outcome is None:
                refuse = Refuse(inference.request_id, inference.ingress_id, reason)
                self._state.actions.append(refuse)
                self._stop(inference, outcome)
        if outcome is Outcome.CANCELLED and (application.awaited or not application.is_idle):
            application.is_stopped = True
            self._applications.close(ev.ApplicationClosed(application.application_id))
        else:
            self._applications.end(application, outcome)

    def _set_deadline(
        self, inference: Inference, own: Seconds | None, of_application: Seconds | None
    ) -> None:
        limit_s = of_application if own is None else own
        if limit_s is not None and limit_s < math.inf:
            inference.starts_by = inference.submitted_at + limit_s
            self._state.deadlines.set(inference.starts_by, DeadlineKind.WAIT, inference.request_id)

    def _refuse_unopened(self, event: ev.InferenceSubmitted) -> Refuse:
        """Refuse an inference of an application that is not open: for the reason for that."""
        rejection = self._applications.rejection(event.application_id)
        if rejection is None:
            return Refuse(event.request_id, event.ingress_id, Refusal.UNKNOWN_APPLICATION)
        return Refuse(
            event.request_id,
            event.ingress_id,
            rejection.reason,
            rejection.limit,
            rejection.retry_after_s,
        )

    def _refusal(self, application: Application, event: ev.InferenceSubmitted) -> Refusal | None:
        if event.resubmitted:  # an earlier scheduler had taken it
            return None
        if application.state is not ApplicationState.OPEN:
            is_over = application.is_idle and bool(application.awaited)  # as far as is known here
            return Refusal.APPLICATION_ENDING if is_over else Refusal.APPLICATION_CLOSED
        if not self._state.admits_inference(application.tenant, is_retry=event.is_retry):
            return Refusal.QUEUE_FULL
        return None


def _copies(event: ev.InferenceSubmitted) -> int:
    """Return the choices of each prompt; 1 unless all prompts have as many."""
    return event.copies if event.copies > 1 and event.choices % event.copies == 0 else 1
