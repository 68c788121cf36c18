"""SchedulerCore: events in, actions out; the only writer of scheduling state.

Synchronous and pure: it imports neither Ray nor asyncio nor a clock, and `now` is an argument. The
scheduler actor, the simulator and the replay of recorded events drive this same class.

One event is handled in this order: lapses due by now, the event itself, then grants while the first
in order fits somewhere.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, Lag, Refusal
from justitia_ray.core.admission import ADMISSIONS, Admission
from justitia_ray.core.applications import Applications
from justitia_ray.core.deadlines import Lapse
from justitia_ray.core.entities import ApplicationState, Outcome
from justitia_ray.core.inferences import Inferences
from justitia_ray.core.ingresses import Ingresses
from justitia_ray.core.leases import Leases
from justitia_ray.core.limits import Census, Limits
from justitia_ray.core.order import Order, Place
from justitia_ray.core.recovery import Recovery
from justitia_ray.core.replicas import Replicas
from justitia_ray.core.state import State, Timeouts
from justitia_ray.errors import ConfigError
from justitia_ray.units import (
    ApplicationId,
    ReplicaId,
    RequestId,
    Seconds,
    Tokens,
    VirtualTime,
)


class SchedulerCore:
    """The queue, the accounts and the leases of one model's replicas."""

    def __init__(
        self,
        policy: str = "justitia",
        policy_options: Mapping[str, object] | None = None,
        admission: str = "peak",
        timeouts: Timeouts | None = None,
        lease_prefix: str = "",
        *,
        measure_lag: bool = True,
        limits: Limits | None = None,
    ) -> None:
        """Start with an empty queue.

        Args:
            policy: A name from `justitia_ray.core.policies.POLICIES`.
            policy_options: Its options.
            admission: `peak` (no recomputation) or `prompt` (vLLM's rule).
            timeouts: When silence is taken for absence.
            lease_prefix: Put before lease ids, so that no two schedulers give out the same.
            measure_lag: Tell of each application how far behind GPS it was, and may have been.
            limits: How much is taken at most; as much as comes by default.

        Raises:
            ConfigError: If a name or an option is not one of those allowed.
        """
        fits = _admission(admission)
        self.admission_name = admission
        limits = limits if limits is not None else Limits()
        self.state = State(
            timeouts if timeouts is not None else Timeouts(),
            lease_prefix,
            open_applications=Census(limits.open_applications),
            known_inferences=Census(limits.waiting_inferences),
        )
        self.order = Order(self.state, policy, policy_options or {}, measure_lag=measure_lag)
        self.recovery = Recovery()
        self.applications = Applications(self.state, self.order)
        self.ingresses = Ingresses(self.state, self.order)
        self._leases = Leases(self.state, self.order, fits)
        self._inferences = Inferences(
            self.state,
            self.order,
            self.applications,
            self._leases,
            self.ingresses,
            self.recovery,
        )
        self._replicas = Replicas(
            self.state, self.order, self._leases, self._inferences, self.recovery
        )
        self._handlers: dict[type, Callable[[Any], None]] = {
            ev.ApplicationArrived: self._application_arrived,
            ev.ApplicationClosed: self.applications.close,
            ev.ApplicationCancelled: self._application_cancelled,
            ev.WeightChanged: self.applications.reweigh,
            ev.InferenceSubmitted: self._inference_submitted,
            ev.InferenceCancelled: self._inferences.cancel,
            ev.LeaseRefused: self._lease_refused,
            ev.ReplicaPulled: self._replica_pulled,
            ev.ReplicaReported: self._replica_reported,
            ev.PullAnswered: self._replicas.answered,
            ev.ReplicaLost: lambda event: self._replicas.lost(event.replica_id),
            ev.IngressHeard: lambda event: self.ingresses.hear(event.ingress_id),
            ev.PolicyChanged: self._policy_changed,
            ev.DeadlinePassed: lambda event: None,
        }
        self._lapses: dict[Lapse, Callable[[str], None]] = {
            Lapse.LEASE: self._lease_lapsed,
            Lapse.REPLICA: self._replicas.lapsed,
            Lapse.INGRESS: self._ingress_lapsed,
            Lapse.APPLICATION: self._application_lapsed,
            Lapse.RECOVERY: lambda name: None,  # looked at before every grant
            Lapse.CLAIM: self._replicas.unclaimed,
            Lapse.RETURN: self.applications.not_returned,
        }

    def handle(self, event: ev.Event, now: Seconds) -> list[Action]:
        """Take in what happened and return what is to be done, in order.

        Args:
            event: One of `justitia_ray.core.events`.
            now: The driver's clock, in seconds; an instant before the last one counts as the last.

        Raises:
            ConfigError: If a `PolicyChanged` names what does not exist; the order stays as it was.
        """
        state = self.state
        state.now = now = max(now, state.now)
        self.order.fair_share.advance(now)
        self.order.queue.unpark(now)
        for lapse, name in state.deadlines.due(now):
            self._lapses[lapse](name)
        self._handlers[type(event)](event)
        self.order.refresh()
        self._grant()
        # Taken at the end: what lapsed before an event that was refused is told with the next.
        actions, state.actions = state.actions, []
        return actions

    def next_deadline(self) -> Seconds | None:
        """Return the instant by which to call with `DeadlinePassed`, or None."""
        lapses_at, eligible_at = self.state.deadlines.next(), self.order.queue.next_eligible()
        if lapses_at is None or eligible_at is None:
            return eligible_at if lapses_at is None else lapses_at
        return min(lapses_at, eligible_at)

    def take_changed(self) -> list[ApplicationId]:
        """Return the applications whose durable record changed since the last call."""
        for application_id in self.order.fair_share.take_changed():
            self.state.changed[application_id] = None
        changed, self.state.changed = list(self.state.changed), {}
        return changed

    def tag(self, application_id: ApplicationId) -> VirtualTime:
        """Return F of a live application.

        Raises:
            KeyError: If no such application is live.
        """
        return self.order.fair_share.tag(application_id)

    def lag(self, application_id: ApplicationId) -> Lag | None:
        """Return how far behind GPS a live application is: as if what waits of it started now.

        None if nothing of it has started or waits, or lags are not measured.

        Raises:
            KeyError: If no such application is live.
        """
        application = self.state.applications[application_id]
        return None if self.order.lag is None else self.order.lag.lag(application)

    def place(self, request_id: RequestId) -> Place:
        """Return where an inference stands in the order: as if it waited, if it runs.

        Raises:
            KeyError: If no such inference is known.
        """
        return self.order.place(self.state.inferences[request_id])

    def iterations_until_room(
        self, request_id: RequestId, replica_id: ReplicaId, reserved_kv_tokens: Tokens = 0
    ) -> Tokens:
        """Return after how many iterations an inference fits a replica that runs something.

        By the predictions, from the last report on, and if nothing else is admitted. O(n).

        Args:
            request_id: The inference.
            replica_id: The replica.
            reserved_kv_tokens: KV that it would keep free of leases, as in `ReplicaReported`.

        Raises:
            KeyError: If there is no such inference or replica.
        """
        replica, inference = self.state.replicas[replica_id], self.state.inferences[request_id]
        told, replica.unaccounted_tokens = replica.unaccounted_tokens, reserved_kv_tokens
        try:
            if self._leases.placement.fits(replica, inference):
                return 0
            forecast = replica.leases.forecast(replica.capacity.block_size)
            return self._leases.placement.admission.start(replica, inference, forecast)
        finally:
            replica.unaccounted_tokens = told

    def recover(self, replicas: Iterable[ReplicaId], now: Seconds) -> None:
        """Take office after another scheduler: hold grants until these replicas have reported."""
        self.state.now = now
        until = now + self.state.timeouts.recovery_s
        self.recovery.hold(replicas, until)
        self.state.deadlines.set(until, Lapse.RECOVERY, "")

    def backlog_kv_tokens(self) -> int:
        """Return the KV that all waiting inferences would need at once.

        What is kept out counts not: more replicas would not serve it.
        """
        return self.state.tally.waiting_kv_tokens

    def _grant(self) -> None:
        if self.recovery.complete(self.state.now):
            for request_id in self.recovery.finish():
                self._inferences.wait(self.state.inferences[request_id])
        if not self.recovery.holding:
            self._leases.grant_all()

    def _application_arrived(self, event: ev.ApplicationArrived) -> None:
        self.ingresses.hear(event.ingress_id)
        self.applications.arrive(event)

    def _application_cancelled(self, event: ev.ApplicationCancelled) -> None:
        application = self.state.applications.get(event.application_id)
        if application is not None:
            self._inferences.stop_application(
                application, Outcome.CANCELLED, Refusal.APPLICATION_CANCELLED
            )

    def _replica_pulled(self, event: ev.ReplicaPulled) -> None:
        self._replicas.pulled(event)
        # V moves with reports only, so an application that fell idle between two of them (opened
        # and not yet used, say) loses nothing by staying in GPS until the next.
        self.applications.withdraw_idle()

    def _replica_reported(self, event: ev.ReplicaReported) -> None:
        self._replicas.reported(event)
        if event.withdraws:
            self.applications.withdraw_idle()

    def _lease_refused(self, event: ev.LeaseRefused) -> None:
        lease = self.state.leases.get(event.lease_id)
        if lease is not None:
            self.ingresses.hear(self.state.inferences[lease.request_id].ingress_id)
        self._replicas.refused(event)

    def _inference_submitted(self, event: ev.InferenceSubmitted) -> None:
        self.ingresses.hear(event.ingress_id)
        claimant = self._inferences.submit(event)
        if claimant is not None and event.lease_id is not None:
            self._replicas.claim(claimant, event.lease_id)

    def _policy_changed(self, event: ev.PolicyChanged) -> None:
        fits = _admission(event.admission)
        self.order.change(event.policy, dict(event.options))
        self.admission_name = event.admission
        self._leases.placement.admission = fits
        self.state.room_changes += 1

    def _lease_lapsed(self, lease_id: str) -> None:
        inference = self._leases.lapsed(lease_id)
        if inference is not None:
            self.state.tally.leases_expired += 1
            self.ingresses.left_unused(inference)
            self._inferences.requeue(inference)

    def _ingress_lapsed(self, ingress_id: str) -> None:
        for inference in self.ingresses.lapsed(ingress_id):
            self._inferences.end(inference, Outcome.EXPIRED)

    def _application_lapsed(self, application_id: str) -> None:
        application = self.state.applications.get(application_id)
        if application is None or not self.applications.is_overdue(application):
            return
        closing = application.state is ApplicationState.CLOSING
        outcome = Outcome.FINISHED if closing else Outcome.EXPIRED
        self._inferences.stop_application(application, outcome, Refusal.APPLICATION_EXPIRED)


def _admission(name: str) -> Admission:
    if name not in ADMISSIONS:
        raise ConfigError(f"admission: {name!r} is not one of {', '.join(ADMISSIONS)}")
    return ADMISSIONS[name]
