"""Applications from arrival to end. `states` has their states and transitions."""

from justitia_ray.core import events as ev
from justitia_ray.core.actions import EndApplication, ForgetApplication
from justitia_ray.core.caps import caps_of, has_caps
from justitia_ray.core.entities import Application, Outcome
from justitia_ray.core.ledger import Ledger
from justitia_ray.core.locality import end_contexts
from justitia_ray.core.prefill_account import PrefillAccount
from justitia_ray.core.rejections import Rejections
from justitia_ray.core.resubmissions import Resubmissions
from justitia_ray.core.stages import MAXIMUM_STAGES
from justitia_ray.core.state import DeadlineKind, State
from justitia_ray.core.states import BUSY, SETTLED, ApplicationState
from justitia_ray.units import ApplicationId, IngressId, Seconds

_OUTCOMES = {
    ApplicationState.CLOSING: Outcome.FINISHED,
    ApplicationState.CLOSED: Outcome.FINISHED,
    ApplicationState.STOPPING: Outcome.CANCELLED,
    ApplicationState.STOPPED: Outcome.CANCELLED,
}
"""Outcome of an ended application, by the state before its end; applications in other states
expire.
"""


class Applications:
    """Opens, settles and ends applications."""

    def __init__(self, state: State, ledger: Ledger) -> None:
        self._state = state
        self._ledger = ledger
        self.rejections = Rejections(state)
        self.resubmissions = Resubmissions(state)
        self.settled_since_report: dict[ApplicationId, None] = {}
        """Applications whose last inference has ended since the last report of a replica. Rule 4
        refunds their unserved charges at the next report.
        """

    def arrive(self, event: ev.ApplicationArrived) -> None:
        """Open an application; if it is known, only record its ingress.

        A new one beyond the tenant's quota is rejected, unless it was open under an earlier
        scheduler.
        """
        state, application_id = self._state, event.application_id
        known = state.applications.get(application_id)
        if known is not None:
            known.ingress_id = event.ingress_id
            _record_opening_ingress(known, event)
            state.changed[application_id] = None
            return
        if not self.rejections.admits(event):
            return
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
            prefill=None if state.prefill_cost is None else PrefillAccount(state.prefill_cost),
        )
        _record_opening_ingress(application, event)
        state.applications[application_id] = application
        state.open_applications.arrive(event.tenant)
        is_counted = self.resubmissions.is_counted(event)
        openers, unfinished = state.ends.reopen(application_id)
        for ingress_id in openers:
            application.opener(ingress_id).keeps_ends = True
        if is_counted:
            application.booked_before = application.unfinished_kv_token_time = unfinished
            self.resubmissions.expect(application, openers)
        else:
            state.usage.of(event.tenant, state.now).applications += 1
        if event.resubmitted:
            self.resubmissions.note(application_id)
        self._set_cap_deadline(application)
        self._ledger.arrive(application, event.charge_kv_token_time)
        self._settle_idle_application(application)

    def adopt(self, application: Application, *, is_closed: bool) -> None:
        """Restore an application from a snapshot; the caller restores the application's account."""
        state = self._state
        application.stages.mark_incomplete()
        state.applications[application.application_id] = application
        state.open_applications.arrive(application.tenant)
        state.sequence = max(state.sequence, application.sequence)
        self.resubmissions.expect(application, application.keepers)
        self._set_cap_deadline(application)
        self._move_to_state(application, ApplicationState.RECOVERING)
        if is_closed:
            self._move_to_state(application, ApplicationState.CLOSING)
        state.deadlines.set(
            state.now + state.timeouts.ingress_s, DeadlineKind.RETURN, application.application_id
        )
        self._set_idle_deadline(application)

    def expire_restored(self, application_id: ApplicationId) -> None:
        """Settle or end a restored application whose inferences were not resubmitted in time."""
        application = self._state.applications.get(application_id)
        if application is None or not application.is_idle or application.state.is_settled:
            return
        if not self.end_if_over(application):
            self._move_to_state(application, SETTLED[application.state])

    def close(self, event: ev.ApplicationClosed) -> None:
        """Close an application to new inferences; end it once it has no inferences left."""
        application = self._state.applications.get(event.application_id)
        if application is None:
            return
        if application.state.takes_inferences:
            is_idle = application.state is ApplicationState.IDLE
            finish = ApplicationState.CLOSED if is_idle else ApplicationState.CLOSING
            self._move_to_state(application, finish)
        self._state.changed[event.application_id] = None
        self.end_if_over(application)

    def cancel(self, application: Application) -> None:
        """Stop accepting inferences of an application; the caller also ends its inferences."""
        if not application.state.is_cancelled:
            is_settled = application.state.is_settled
            finish = ApplicationState.STOPPED if is_settled else ApplicationState.STOPPING
            self._move_to_state(application, finish)
        self._state.changed[application.application_id] = None

    def reopen(self, application: Application) -> None:
        """Let a closed application that has not ended accept inferences again."""
        state = application.state
        if state is ApplicationState.CLOSED:
            self._move_to_state(application, ApplicationState.IDLE)
        elif state is ApplicationState.CLOSING:
            is_recovering = application.is_idle
            finish = ApplicationState.RECOVERING if is_recovering else ApplicationState.OPEN
            self._move_to_state(application, finish)
        else:
            return
        self._state.changed[application.application_id] = None

    def resubmitted(self, ingress_id: IngressId) -> None:
        """Stop waiting for the resubmissions of an ingress that is complete or lost."""
        for application in self.resubmissions.complete(ingress_id):
            self.end_if_over(application)

    def reweigh(self, event: ev.WeightChanged) -> None:
        application = self._state.applications.get(event.application_id)
        if application is None:
            return
        weight = self._state.effective_weight(application.tenant, event.weight, application.tier)
        if application.weight != weight:
            application.weight = weight
            self._ledger.reweigh(application)

    def deprioritise(self, event: ev.ApplicationDeprioritised) -> None:
        """Move an application behind all applications within quota, or undo this."""
        application = self._state.applications.get(event.application_id)
        if application is not None and application.is_deprioritised != event.is_deprioritised:
            self._ledger.deprioritise(application, is_so=event.is_deprioritised)

    def reapply_caps(self) -> None:
        """Apply changed limits (caps) of tenants, also to applications that are already open."""
        state = self._state
        state.caps = has_caps(state.tenants)
        if state.caps:
            for application in state.applications.values():
                self._set_cap_deadline(application)
                state.served[application.application_id] = None

    def become_busy(self, application: Application) -> None:
        """Charge an application again (rule 5) when a new inference ends its tool gap."""
        if application.idle_since is not None:
            if self._ledger.gate is not None:
                self._ledger.gate.returned(application, self._state.now - application.idle_since)
            application.idle_since = None
            if application.state in BUSY:
                self._move_to_state(application, BUSY[application.state])
        self._ledger.resume(application.application_id)

    def inference_ended(self, application: Application) -> None:
        """Settle an application that has no inferences left, or end it if it is closed."""
        self._state.changed[application.application_id] = None
        if application.is_idle and not self.end_if_over(application):
            self._settle_idle_application(application)

    def withdraw_idle(self) -> None:
        """Refund the unserved charges of idle applications (rule 4).

        Called after the service of a report was booked.
        """
        for application_id in self.settled_since_report:
            self._ledger.withdraw(application_id)
        self.settled_since_report.clear()

    def expire(self, application_id: ApplicationId) -> None:
        """End an application that has reached its idle limit."""
        application = self._state.applications.get(application_id)
        if application is None or application.idle_since is None:
            return
        if application.idle_since + self._idle_limit(application) <= self._state.now:
            self._end_application(application)

    def end_if_over(self, application: Application) -> bool:
        """End a closed or cancelled application without inferences; return whether it ended."""
        is_over = (
            application.state in _OUTCOMES and application.is_idle and not application.is_awaited
        )
        if is_over:
            self._end_application(application)
        return is_over

    def _end_application(self, application: Application) -> None:
        """Settle the account of an application and report the tokens that it used."""
        outcome = _OUTCOMES.get(application.state, Outcome.EXPIRED)
        state, ledger, application_id = self._state, self._ledger, application.application_id
        end_contexts(state.replicas.values(), application_id)
        state.memory_releases += 1
        ledger.application_ended(application)
        if application.prefill is not None and outcome is Outcome.FINISHED:
            state.prefill_ratios.observe(
                application.application_class,
                application.kv_token_time,
                application.prefill.paid,
            )
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
        for ingress_id, opener in application.ingresses.items():
            if opener.hears_end and ingress_id != application.ingress_id:
                state.actions.append(ForgetApplication(application_id, ingress_id))
        state.ends.add_application(application_id, application.keepers, application.booked_before)
        del state.applications[application_id]
        state.open_applications.depart(application.tenant, state.now)
        self._move_to_state(application, ApplicationState.ENDED)
        state.changed[application_id] = None

    def _move_to_state(self, application: Application, finish: ApplicationState) -> None:
        was_settled = application.state.is_settled
        application.move(finish, self._state.now)
        if finish.is_settled and not was_settled:
            self.settled_since_report[application.application_id] = None
        elif was_settled and not finish.is_settled:
            self.settled_since_report.pop(application.application_id, None)

    def _settle_idle_application(self, application: Application) -> None:
        self._move_to_state(application, SETTLED[application.state])
        self._state.changed[application.application_id] = None
        self._set_idle_deadline(application)

    def _set_cap_deadline(self, application: Application) -> None:
        state = self._state
        if state.caps:
            seconds = caps_of(state.tenants, application.tenant).seconds
            if seconds is not None:
                at = application.arrived_at + seconds
                state.deadlines.set(at, DeadlineKind.CAP, application.application_id)

    def _set_idle_deadline(self, application: Application) -> None:
        state = self._state
        application.idle_since = state.now
        state.deadlines.set(
            state.now + self._idle_limit(application),
            DeadlineKind.APPLICATION,
            application.application_id,
        )

    def _idle_limit(self, application: Application) -> Seconds:
        own = application.idle_s
        return self._state.timeouts.application_s if own is None else own


def _record_opening_ingress(application: Application, event: ev.ApplicationArrived) -> None:
    opener = application.opener(event.ingress_id)
    opener.hears_end = True
    opener.keeps_ends |= event.keeps_ends
