"""The life of applications: arrival, idleness, weight, end."""

from justitia_ray.core import events as ev
from justitia_ray.core.actions import EndApplication, ForgetApplication, RefuseApplication
from justitia_ray.core.deadlines import Lapse
from justitia_ray.core.entities import Application, ApplicationState, Outcome
from justitia_ray.core.order import Order
from justitia_ray.core.state import State
from justitia_ray.units import ApplicationId, KvTokenTime

_REMEMBERED = 10_000
"""Applications that were not opened; what is submitted of them later is refused for that reason."""


class Applications:
    """Opens applications, notices when they fall idle, and ends them."""

    def __init__(self, state: State, order: Order) -> None:
        self._state = state
        self._order = order
        self._fell_idle: dict[ApplicationId, None] = {}
        """Since the last report of a replica."""
        self._returning: dict[ApplicationId, None] = {}
        """Put back from a snapshot; their inferences may yet be submitted again."""
        self._turned_away: dict[ApplicationId, None] = {}
        """The last that were not opened, in order."""

    def arrive(self, event: ev.ApplicationArrived) -> None:
        """Tag a new application (rule 6); one that is known only learns who speaks for it.

        It is not opened if there is no room for it and nobody has said that it was open before.
        """
        known = self._state.applications.get(event.application_id)
        if known is not None:
            known.ingress_id = event.ingress_id
            known.openers[event.ingress_id] = None
            self._state.changed[event.application_id] = None
            return
        if not (event.again or self._state.open_applications.has_room(event.tenant)):
            self._turn_away(event)
            return
        self._turned_away.pop(event.application_id, None)
        application = Application(
            event.application_id,
            event.application_class,
            event.tenant,
            event.weight,
            event.predicted_kv_token_time,
            event.ingress_id,
            self._state.now,
            self._state.next_sequence(),
            predicted_cost=event.predicted_cost,
            true_kv_token_time=event.true_kv_token_time,
        )
        application.openers[event.ingress_id] = None
        self._state.applications[event.application_id] = application
        self._state.open_applications.add(event.tenant)
        self._order.arrive(application, event.charge_kv_token_time)
        self.fell_idle(application)

    def adopt(self, application: Application) -> None:
        """Put back an application from a snapshot, idle; its account is put back by the caller."""
        application.stages.miss()
        self._state.applications[application.application_id] = application
        self._state.open_applications.add(application.tenant)
        self._state.sequence = max(self._state.sequence, application.sequence)
        self._returning[application.application_id] = None
        self._state.deadlines.set(
            self._state.now + self._state.timeouts.ingress_s,
            Lapse.RETURN,
            application.application_id,
        )
        self._watch(application)

    def not_returned(self, application_id: ApplicationId) -> None:
        """Its ingress did not come back with its inferences: it is idle like any other."""
        if application_id in self._returning:
            del self._returning[application_id]
            self._fell_idle[application_id] = None

    def was_turned_away(self, application_id: ApplicationId) -> bool:
        """Return whether it was to be opened lately and there was no room for it."""
        return application_id in self._turned_away

    def awaits_withdrawal(self, application_id: ApplicationId) -> bool:
        """Return whether an idle application may still be in GPS: see the rules of `invariants`."""
        return application_id in self._fell_idle or application_id in self._returning

    def close(self, event: ev.ApplicationClosed) -> None:
        """Take no more inferences; end when nothing of it is left."""
        application = self._state.applications.get(event.application_id)
        if application is None:
            return
        application.state = ApplicationState.CLOSING
        self._state.changed[event.application_id] = None
        if application.is_idle:
            self.end(application, Outcome.FINISHED)

    def reweigh(self, event: ev.WeightChanged) -> None:
        """Refund, take the new weight, charge."""
        application = self._state.applications.get(event.application_id)
        if application is None or application.weight == event.weight:
            return
        application.weight = event.weight
        self._order.reweigh(event.application_id, event.weight)
        self._order.retag([event.application_id])

    def became_busy(self, application: Application) -> None:
        """It submits an inference: charge again what a tool gap had refunded (rule 5)."""
        application.idle_since = None
        self._fell_idle.pop(application.application_id, None)
        self._returning.pop(application.application_id, None)
        if self._order.resume(application.application_id):
            self._state.changed[application.application_id] = None

    def expect(self, application: Application, remaining: KvTokenTime) -> None:
        """Raise its charge if it is now expected to need more (rule 7)."""
        if self._order.expect(application.application_id, remaining):
            self._order.retag([application.application_id])

    def inference_ended(self, application: Application) -> None:
        """Look whether anything of it is left."""
        self._state.changed[application.application_id] = None
        if not application.is_idle:
            return
        if application.state is ApplicationState.CLOSING:
            self.end(application, Outcome.FINISHED)
        else:
            self.fell_idle(application)

    def fell_idle(self, application: Application) -> None:
        """Nothing of it waits, is leased or runs."""
        self._fell_idle[application.application_id] = None
        self._state.changed[application.application_id] = None
        self._watch(application)

    @property
    def any_fell_idle(self) -> bool:
        """Whether any is idle that has not been withdrawn."""
        return bool(self._fell_idle)

    def withdraw_idle(self) -> None:
        """Rule 4, when the service of the report has been booked."""
        for application_id in self._fell_idle:
            self._order.withdraw(application_id)
            self._state.changed[application_id] = None
        self._fell_idle.clear()

    def is_overdue(self, application: Application) -> bool:
        """Return whether it has been idle for as long as an application may be."""
        since = application.idle_since
        return since is not None and since + self._state.timeouts.application_s <= self._state.now

    def end(self, application: Application, outcome: Outcome) -> None:
        """Settle its account (rule 3) and report what it took."""
        application_id = application.application_id
        self._order.policy.application_ended(application)
        fair_share = self._order.fair_share
        account = fair_share.accounts[application_id]
        final_tag, lag = self._order.settle(application_id)
        self._state.actions.append(
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
                ended_at=self._state.now,
                inferences=application.inferences,
                failed=application.failed,
                output_tokens=application.output_tokens,
                settlements=account.settlements,
                lag=lag,
                stages=application.stages.served(),
            )
        )
        for ingress_id in application.openers:
            if ingress_id != application.ingress_id:
                self._state.actions.append(ForgetApplication(application_id, ingress_id))
        del self._state.applications[application_id]
        self._state.open_applications.remove(application.tenant)
        self._fell_idle.pop(application_id, None)
        self._returning.pop(application_id, None)
        self._state.changed[application_id] = None

    def _turn_away(self, event: ev.ApplicationArrived) -> None:
        self._state.tally.turned_away += event.application_id not in self._turned_away
        self._turned_away.pop(event.application_id, None)
        self._turned_away[event.application_id] = None
        if len(self._turned_away) > _REMEMBERED:
            del self._turned_away[next(iter(self._turned_away))]
        self._state.actions.append(RefuseApplication(event.application_id, event.ingress_id))

    def _watch(self, application: Application) -> None:
        application.idle_since = self._state.now
        self._state.deadlines.set(
            self._state.now + self._state.timeouts.application_s,
            Lapse.APPLICATION,
            application.application_id,
        )
