"""SchedulerCore: events in, actions out; the only writer of scheduling state.

Synchronous and pure: it imports neither Ray nor asyncio nor a clock, and `now` is an argument. The
scheduler actor, the simulator and the replay of recorded events drive this same class.

One event is handled in this order: deadlines due by now, the event itself, then grants while any
replica has room for the first inference in order.
"""

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any

from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, Lag
from justitia_ray.core.admission import find_admission
from justitia_ray.core.applications import Applications
from justitia_ray.core.dispatch import Leases
from justitia_ray.core.drain import TenantQuota
from justitia_ray.core.entities import Application, Inference, Outcome
from justitia_ray.core.inferences import Inferences
from justitia_ray.core.kv_shares import KvShares
from justitia_ray.core.lags import CurrentLags, Lags, Meter
from justitia_ray.core.ledger import Ledger, Place
from justitia_ray.core.liveness import Ingresses, Recovery
from justitia_ray.core.outlook import Outlooks
from justitia_ray.core.placement import Placement
from justitia_ray.core.prefill_costs import MeasuredPrefill, accept_measured
from justitia_ray.core.replicas import Replicas
from justitia_ray.core.state import DeadlineKind, SchedulerLimits, State, Timeouts
from justitia_ray.core.suspects import Suspects
from justitia_ray.core.tenants import TIERS, TenantTree, Tier
from justitia_ray.cost import PrefillCost
from justitia_ray.units import ApplicationId, ReplicaId, RequestId, Seconds, Tokens, VirtualTime

_STARTS_NOTHING = frozenset(
    {
        ev.ApplicationArrived,
        ev.ApplicationReopened,
        ev.DeadlinePassed,
        ev.EndsAcknowledged,
        ev.IngressHeartbeat,
        ev.PrefillMeasured,
        ev.PullAnswered,
        ev.ReplicaDisconnected,
        ev.StateStored,
    }
)
"""Events that neither free memory nor add waiting inferences, unlike deadlines that may expire at
the same time.
"""


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
        limits: SchedulerLimits | None = None,
        tenants: TenantTree | None = None,
        tiers: Mapping[str, Tier] = TIERS,
        deaths_allowed: int = 2,
        meter: Callable[[State], Meter] | None = None,
        prefill_cost: PrefillCost | None = None,
        measures_prefill: bool = False,
    ) -> None:
        """Create a core with an empty queue.

        Args:
            policy: A name from `justitia_ray.core.policies.POLICIES`, or an import path.
            policy_options: Options of the policy.
            admission: `peak` (no recomputation) or `prompt` (vLLM's rule).
            timeouts: Times of silence after which a lease, a replica or an ingress counts as lost.
            lease_prefix: Prefix of lease ids, so that no two schedulers create the same id.
            limits: Limits of the scheduler; none by default.
            tenants: The tree of tenants; without descriptions by default.
            tiers: Service tiers by name.
            deaths_allowed: Engine deaths that one inference may have caused before it is refused
                (`suspects`).
            meter: Measures the lag of every application, and the bound on it (`lag.meter`); None:
                lags are computed on request.
            prefill_cost: Cost of computing prompts; None: computing a prompt costs nothing, as in
                the paper.
            measures_prefill: Whether the first measurement by a replica (`PrefillMeasured`)
                replaces `prefill_cost`.

        Raises:
            ConfigError: If a name or an option is not one of those allowed.
        """
        rule = find_admission(admission)
        self.admission_name = admission
        limits = limits if limits is not None else SchedulerLimits()
        self.state = State(
            timeouts if timeouts is not None else Timeouts(),
            lease_prefix,
            open_applications=TenantQuota(limits.open_applications),
            known_inferences=TenantQuota(limits.waiting_inferences),
            tenants=TenantTree() if tenants is None else tenants,
            tiers=tiers,
            prefill_cost=prefill_cost,
            measures_prefill=measures_prefill,
        )
        measured = None if meter is None else meter(self.state)
        self.ledger = Ledger(self.state, policy, policy_options or {}, measured)
        self.recovery = Recovery()
        self.applications = Applications(self.state, self.ledger)
        self.ingresses = Ingresses(self.state, self.ledger)
        self.suspects = Suspects(self.state, deaths_allowed)
        self._leases = Leases(self.state, self.ledger, rule, self.suspects)
        self._inferences = Inferences(
            self.state,
            self.ledger,
            self.applications,
            self._leases,
            self.ingresses,
            self.recovery,
            self.suspects,
        )
        self._replicas = Replicas(
            self.state,
            self.ledger,
            self._leases,
            self._inferences,
            self.recovery,
            self.suspects,
        )
        self.outlooks = Outlooks(self)
        self.lags: Lags = measured or CurrentLags(
            self.state, self.ledger, self.outlooks.seconds_for
        )
        self._handlers: dict[type, Callable[[Any], None]] = {
            ev.ApplicationArrived: self._application_arrived,
            ev.ApplicationClosed: self.applications.close,
            ev.ApplicationCancelled: self._inferences.cancel_application,
            ev.ApplicationReopened: self._inferences.reopen_application,
            ev.WeightChanged: self.applications.reweigh,
            ev.ApplicationDeprioritised: self.applications.deprioritise,
            ev.InferenceSubmitted: self._inference_submitted,
            ev.InferenceCancelled: self._inferences.cancel,
            ev.LeaseNacked: self._lease_nacked,
            ev.EngineFailed: self._replicas.requeue_after_engine_failure,
            ev.ReplicaCrashed: lambda event: self._replicas.crash(event.replica_id),
            ev.ReplicaPulled: self._replica_pulled,
            ev.ReplicaReported: self._replica_reported,
            ev.PullAnswered: self._replicas.pull_answered,
            ev.ReplicaLost: lambda event: self._replicas.lose(event.replica_id),
            ev.ReplicaDisconnected: lambda event: self._replicas.disconnect(event.replica_id),
            ev.IngressHeartbeat: lambda event: self.ingresses.heartbeat(event.ingress_id),
            ev.Resubmitted: lambda event: self.applications.resubmitted(event.ingress_id),
            ev.StateStored: lambda event: self.state.actions.extend(self.state.ends.take_stored()),
            ev.EndsAcknowledged: lambda event: self.state.ends.acknowledge(event.told),
            ev.PolicyChanged: self._policy_changed,
            ev.TenantsChanged: self._tenants_changed,
            ev.PrefillMeasured: self._prefill_measured,
            ev.DeadlinePassed: lambda event: None,
        }
        self._expire: dict[DeadlineKind, Callable[[str], None]] = {
            DeadlineKind.LEASE: self._expire_lease,
            # an inference that waits for its context's replica is checked by the next dispatch
            DeadlineKind.HOLDER: lambda name: None,
            DeadlineKind.REPLICA: self._replicas.expire,
            DeadlineKind.INGRESS: self._expire_ingress,
            DeadlineKind.APPLICATION: self.applications.expire,
            DeadlineKind.RECOVERY: lambda name: None,  # checked before every grant
            DeadlineKind.CLAIM: self._replicas.expire_claim,
            DeadlineKind.RECONNECT: self._leases.retry_connections,
            DeadlineKind.RETURN: self.applications.expire_restored,
            DeadlineKind.WAIT: self._inferences.expire_wait,
            DeadlineKind.CAP: self._inferences.expire_cap,
            DeadlineKind.DEPARTURE: self._inferences.count_departure,
            DeadlineKind.SUSPECT: self.suspects.expire,
        }

    def handle(self, event: ev.Event, now: Seconds) -> list[Action]:
        """Handle an event, and return the actions to carry out, in order.

        Args:
            event: One of `justitia_ray.core.events`.
            now: The driver's clock, in seconds. A time before the last event's counts as the last
                event's.

        Raises:
            ConfigError: If a `PolicyChanged` names an unknown policy or option; the order stays as
                it was.
        """
        state, ledger = self.state, self.ledger
        state.now = now = max(now, state.now)
        if ledger.fair_share.moves_with_time:
            ledger.fair_share.advance(now)
        ledger.queue.now, suspended = now, self.ingresses.suspended
        may_grant = ledger.policy.holds_back and ledger.queue.unpark()
        for kind, name in state.deadlines.due(now):
            self._expire[kind](name)
            may_grant = True
        self._handlers[type(event)](event)
        if state.served:
            self._inferences.enforce_caps()
        if ledger.fair_share.sets_apart:
            ledger.refresh()
        may_grant |= self.ingresses.suspended < suspended
        if may_grant or self._may_start_inferences(event):
            self._grant_leases()
        # If an event is refused, the actions of expired deadlines are returned with the next event.
        actions, state.actions = state.actions, []
        self.outlooks.observe(actions)
        return actions

    @property
    def kv_shares(self) -> KvShares:
        """Return the KV memory used by each tenant and each service tier, for reading."""
        return self._leases.shares

    def is_held_by_tier(self, application: Application) -> bool:
        """Return whether only the service tier's memory share keeps an application from starting.

        The free memory is reserved for other tiers, or would exceed the maximum of its own tier.
        """
        shares, inference = self.kv_shares, application.waiting.first
        if not shares.limits_tiers:
            return False
        tokens = inference.expected_footprint().full_tokens
        is_free = shares.held("") + tokens <= self.state.kv_tokens()
        return is_free and self._leases.tier_refuses(application, inference)

    def next_deadline(self) -> Seconds | None:
        """Return the time by which the caller has to send `DeadlinePassed`, or None."""
        due_at = self.state.deadlines.next()
        if not self.ledger.policy.holds_back:
            return due_at
        eligible_at = self.ledger.queue.next_eligible()
        if due_at is None or eligible_at is None:
            return eligible_at if due_at is None else due_at
        return min(due_at, eligible_at)

    def take_changed(self) -> list[ApplicationId]:
        """Return the applications whose stored record changed since the last call."""
        for application_id in self.ledger.fair_share.take_changed():
            self.state.changed[application_id] = None
        self.state.changed.update(dict.fromkeys(self.state.ends.take_changed()))
        changed, self.state.changed = list(self.state.changed), {}
        return changed

    def tag(self, application_id: ApplicationId) -> VirtualTime:
        """Return the tag F of a live application.

        Raises:
            KeyError: If no such application is live.
        """
        return self.ledger.fair_share.tag(application_id)

    def lag(self, application_id: ApplicationId) -> Lag | None:
        """Return the lag of a live application, as if its waiting inferences started now.

        None if no inference of it has started or waits, or if it was late before this scheduler
        began.

        Raises:
            KeyError: If no such application is live.
        """
        return self.lags.lag(self.state.applications[application_id])

    def place(self, request_id: RequestId) -> Place:
        """Return the position of an inference in the order.

        Of a running inference, as if it waited.

        Raises:
            KeyError: If no such inference is known.
        """
        return self.ledger.place(self.state.inferences[request_id])

    def context_kept_s(self, request_id: RequestId, replica_id: ReplicaId) -> Seconds:
        """Return the seconds for which an inference's context on a replica should be kept.

        The time begins when the inference ends, and is decided by the working set. 0 without a
        working set, if no prompt will continue the context, and if the inference or the replica is
        unknown.
        """
        state, gate = self.state, self.ledger.gate
        inference, replica = state.inferences.get(request_id), state.replicas.get(replica_id)
        if gate is None or inference is None or replica is None:
            return 0.0
        return gate.kept_s(state.applications[inference.application_id], replica)

    @property
    def placement(self) -> Placement:
        """Return the rule that selects replicas for inferences."""
        return self._leases.placement

    def iterations_until_fit(
        self, request_id: RequestId, replica_id: ReplicaId, reserved_kv_tokens: Tokens = 0
    ) -> Tokens:
        """Return the iterations until an inference fits on a replica that runs other inferences.

        Computed from predictions, from the last report on, if no other inference is admitted. O(n).

        Args:
            request_id: The inference.
            replica_id: The replica.
            reserved_kv_tokens: KV tokens that the replica would keep free of leases, as in
                `ReplicaReported`.

        Raises:
            KeyError: If there is no such inference or replica.
        """
        replica, inference = self.state.replicas[replica_id], self.state.inferences[request_id]
        kv_tokens, placement = (
            replica.capacity.kv_tokens - reserved_kv_tokens,
            self._leases.placement,
        )
        if placement.fits(replica, inference, kv_tokens):
            return 0
        forecast = replica.leases.forecast(replica.capacity.block_size)
        return placement.admission.start(replica, inference, forecast, kv_tokens)

    def recover(self, replicas: Iterable[ReplicaId], now: Seconds) -> None:
        """Become leader after another scheduler; grant nothing until these replicas reported."""
        self.state.now = now
        until = now + self.state.timeouts.recovery_s
        self.recovery.hold_grants(replicas, until)
        self.state.deadlines.set(until, DeadlineKind.RECOVERY, "")

    def _may_start_inferences(self, event: ev.Event) -> bool:
        """Return whether an event may allow any inference to start.

        An event that frees no memory and adds no waiting inference does not. Under an order with
        overtaking, where a dispatch is costly, neither does a submission that fits on no replica
        now, or that is behind a first inference that fitted on none. The submission may at most let
        another application overtake, and the dispatch after the next report does that.
        """
        if type(event) in _STARTS_NOTHING:
            return False
        if type(event) is not ev.InferenceSubmitted or not self.ledger.policy.moves_with_service:
            return True
        inference = self.state.inferences.get(event.request_id)
        if inference is None or inference.lease_id is not None:
            return True
        leases = self._leases
        return leases.placement.fits_anywhere(inference) and not leases.stays_blocked(inference)

    def _grant_leases(self) -> None:
        recovery = self.recovery
        if recovery.holding and recovery.is_complete(self.state.now):
            for request_id in recovery.release_grants():
                self._inferences.wait(self.state.inferences[request_id])
        if not recovery.holding:
            self._leases.grant_all()

    def _application_arrived(self, event: ev.ApplicationArrived) -> None:
        self.ingresses.heartbeat(event.ingress_id)
        self.applications.arrive(event)

    def _inference_submitted(self, event: ev.InferenceSubmitted) -> None:
        self.ingresses.heartbeat(event.ingress_id)
        claimant = self._inferences.submit(event)
        if claimant is not None and event.lease_id is not None:
            self._replicas.claim_lease(claimant, event.lease_id)
        inference = self.state.inferences.get(event.request_id)
        if inference is not None and inference.starts_by is not None:
            self._check_deadline(inference)

    def _check_deadline(self, inference: Inference) -> None:
        """Refuse an inference that has missed its deadline, or is expected to miss it."""
        left_s = inference.starts_by - self.state.now if inference.starts_by is not None else inf
        if inference.attempts:
            return
        if left_s <= 0 or (
            not self.recovery.holding and self.outlooks.earliest_start_s(inference) > left_s
        ):
            self._inferences.refuse_deadline(inference)

    def _lease_nacked(self, event: ev.LeaseNacked) -> None:
        lease = self.state.leases.get(event.lease_id)
        if lease is not None:
            self.ingresses.heartbeat(self.state.inferences[lease.request_id].ingress_id)
        self._replicas.nack_lease(event)

    def _replica_pulled(self, event: ev.ReplicaPulled) -> None:
        self._replicas.pull(event)
        # An application that becomes idle between two reports leaves GPS with the next report.
        self.applications.withdraw_idle()

    def _replica_reported(self, event: ev.ReplicaReported) -> None:
        self._replicas.report(event)
        if event.withdraws:
            self.applications.withdraw_idle()

    def _policy_changed(self, event: ev.PolicyChanged) -> None:
        rule = find_admission(event.admission)
        self.ledger.change_policy(event.policy, dict(event.options))
        self.admission_name = event.admission
        self._leases.placement.admission = rule
        self.state.headroom_changes += 1

    def _tenants_changed(self, event: ev.TenantsChanged) -> None:
        self.state.tenants, self.state.tiers = event.tenants, event.tiers
        self.ledger.change_tenants()
        self.applications.reapply_caps()
        self._leases.shares.describe(event.tenants, event.tiers)
        self.state.headroom_changes += 1

    def _prefill_measured(self, event: ev.PrefillMeasured) -> None:
        accept_measured(self.state, MeasuredPrefill(event.cost, event.release))

    def _expire_lease(self, lease_id: str) -> None:
        inference = self._leases.expire(lease_id)
        if inference is not None:
            self.state.counters.leases_expired += 1
            self.ingresses.lease_expired(inference)
            self._inferences.requeue(inference)

    def _expire_ingress(self, ingress_id: str) -> None:
        for inference in self.ingresses.expire(ingress_id):
            self._inferences.end(inference, Outcome.EXPIRED)
        if ingress_id not in self.state.ingresses:
            self.state.ends.forget_ingress(ingress_id)
            self.applications.resubmitted(ingress_id)
