"""Lag: how late each application is against GPS, for every policy, with a bound on it.

The lag of an application is S(e) − S(f̄), where S is all service, e the time of its last start, and
f̄ the time at which virtual time V reaches its final tag. V is taken from `LagAccounts`: the
scheduler's own accounts, or shadow accounts.

`LagMeter` is an optional observer of the ledger, and does not change scheduling. None of its state
is stored: after a restart an application whose tag V had reached before has an unknown lag. Without
`LagMeter`, lags are computed on request (`core.lags`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from justitia_ray.core.actions import Lag
from justitia_ray.core.clock.fair_share import MINIMUM_CHARGE, ServedShare
from justitia_ray.core.clock.virtual_clock import VirtualClock
from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.lag.bound import ApplicationBound, DelayBound, uncovered_demand
from justitia_ray.core.lags import most_remaining_work
from justitia_ray.core.policies import Delivery, Order, PolicyOptions
from justitia_ray.core.queue import Key
from justitia_ray.core.service_history import ServiceHistory, Start
from justitia_ray.core.state import State
from justitia_ray.units import ApplicationId, KvTokenTime, RequestId, Seconds, VirtualTime


class LagAccounts:
    """GPS accounts from which lags are measured: the scheduler's own, or separate copies.

    The shadow accounts are a `ServedShare` that receives the service of this run and the true
    costs; if true costs are unknown, the predictions, with settlement. The scheduler's own accounts
    are used unless they have another clock or cost, or are between tenants, or use predictions
    although true costs are known; from then on the shadow has its own accounts, until no
    application is live.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._own: ServedShare | None = None
        self._could_be_own = False
        self._shadow: ServedShare | None = None

    @property
    def uses_scheduler_accounts(self) -> bool:
        return self._shadow is None

    @property
    def share(self) -> ServedShare:
        """Return the GPS accounts, which may lack applications of an earlier scheduler."""
        share = self._own if self._shadow is None else self._shadow
        assert share is not None
        return share

    def follow(self, own: ServedShare, options: PolicyOptions) -> None:
        """Measure lags from the GPS accounts of another policy."""
        self._could_be_own = (options.clock, options.fairness, options.accounts_cost) == (
            "served",
            "application",
            "kv_token_time",
        )
        if self._shadow is None and not self._could_be_own:
            self._shadow = ServedShare() if self._own is None else self.share
        self._own = own

    def return_to_scheduler_accounts(self) -> bool:
        """Use the scheduler's own accounts again if possible; return whether this was a change.

        Called when no application is live.
        """
        if self._shadow is None or not self._could_be_own:
            return False
        self._shadow = None
        return True

    def arrive(self, application: Application) -> None:
        """Charge an application in the separate GPS accounts, before the scheduler charges it."""
        cost = _known_or_predicted_cost(application)
        if self._shadow is None and cost != application.predicted_kv_token_time:
            self._shadow = _copied_accounts(self.share)
        if self._shadow is not None:
            self._shadow.arrive(
                application.application_id, cost, application.share_weight, application.sequence
            )

    def separate_accounts(self, application_id: ApplicationId) -> ServedShare | None:
        """Return the separate GPS accounts, or None if the scheduler's own are used.

        An account of this application is opened if missing.
        """
        return None if self._shadow is None else self._with_account(application_id)

    def settle(self, application_id: ApplicationId, final_tag: VirtualTime) -> VirtualTime:
        """Close an account and return its final tag."""
        if self._shadow is None:
            return final_tag
        return self._with_account(application_id).settle(application_id)

    def deliver(self, charges: Sequence[tuple[ApplicationId, KvTokenTime]]) -> None:
        """Book the service of one report in the separate GPS accounts."""
        if self._shadow is not None:
            for application_id, _ in charges:
                self._with_account(application_id)
            self._shadow.deliver(charges)

    def forget_ended(self) -> None:
        """Drop the ended applications to which GPS owes nothing."""
        if self._shadow is not None:
            self._shadow.clock.take_forgotten()

    def tag(self, application_id: ApplicationId) -> VirtualTime:
        """Return the tag F of a live application.

        Without an account, the tag that a charge now would give.

        Raises:
            KeyError: If no such application is live.
        """
        share = self.share
        if application_id in share.accounts:
            return share.tag(application_id)
        application = self._state.applications[application_id]
        charge = max(
            MINIMUM_CHARGE, _known_or_predicted_cost(application) - application.kv_token_time
        )
        return share.clock.virtual_time + charge / application.share_weight

    def _with_account(self, application_id: ApplicationId) -> ServedShare:
        """Return the GPS accounts, with the application added if it is from before a restart."""
        share = self.share
        if application_id not in share.accounts:
            application = self._state.applications[application_id]
            had = application.kv_token_time
            rest = max(0, _known_or_predicted_cost(application) - had)
            share.arrive(application_id, rest, application.share_weight, application.sequence)
            account = share.accounts[application_id]
            account.attained = had
            account.charged += had
        return share


def _known_or_predicted_cost(application: Application) -> KvTokenTime:
    """Return the true cost of an application if it is known, otherwise the prediction."""
    if application.true_kv_token_time is not None:
        return application.true_kv_token_time
    return application.predicted_kv_token_time


def _copied_accounts(share: ServedShare) -> ServedShare:
    copy = ServedShare(VirtualClock(share.clock.virtual_time))
    for name, session in share.clock.sessions().items():
        copy.clock.restore_session(
            name, session.finish, session.weight, session.sequence, released=session.released
        )
    copy.accounts = {name: replace(account) for name, account in share.accounts.items()}
    return copy


@dataclass(slots=True)
class _MeasuredLag:
    """Lag of one live application behind GPS, as measured so far."""

    served: KvTokenTime
    """Service of all replicas when the application arrived."""
    busy_s: Seconds
    due_from: KvTokenTime
    """Service of all replicas at the application's last charge; a charge delays its finish in GPS.
    """
    last_start: Start | None = None
    in_flight: KvTokenTime = 0
    own_bound: ApplicationBound = field(default_factory=ApplicationBound)


class LagMeter:
    """Measures how far applications lag behind GPS. An event takes amortised O(log N)."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._accounts = LagAccounts(state)
        self.history = ServiceHistory()
        self._bound = DelayBound()
        self._standings: dict[ApplicationId, _MeasuredLag] = {}
        self._in_flight: dict[RequestId, KvTokenTime] = {}
        self._by_tag: Order | None = None
        """The policy, if its order bounds the lags; otherwise None."""
        self._wants_slack: Callable[[Application], KvTokenTime | None] | None = None
        """Function that returns the slack needed by the last start that overtook; None if no
        application may overtake.
        """

    # --- queries

    @property
    def virtual_time(self) -> VirtualTime:
        """Return virtual time V of the clock from which lags are measured."""
        return self._accounts.share.clock.virtual_time

    def tag(self, application_id: ApplicationId) -> VirtualTime:
        """Return the tag F of a live application on the clock from which lags are measured.

        Raises:
            KeyError: If no such application is live.
        """
        return self._accounts.tag(application_id)

    def knows(self, tag: VirtualTime) -> bool:
        """Return whether GPS had not finished an application when the measurement began."""
        return self.history.knows(tag)

    def lag(self, application: Application) -> Lag | None:
        """Return a live application's lag behind GPS, as if a waiting inference started now."""
        name = application.application_id
        standing = self._standings.get(name)
        if standing is None:
            return None
        start, own_bound = standing.last_start, standing.own_bound
        if application.waiting:
            start, own_bound = (self.history.served, self._state.now), replace(own_bound)
            self._bound.update(own_bound, self._tag_key(application))
        if start is None:
            return None
        return self._lag_at(standing, start, own_bound, self._accounts.tag(name))

    # --- the events of the ledger

    def policy_changed(self, fair_share: ServedShare, policy: Order) -> None:
        """Measure lags from other accounts; starts under the earlier order give no bound."""
        self._accounts.follow(fair_share, policy.options)
        self._by_tag = None
        if policy.BY_TAG and policy.options.backfill is not None:
            self._by_tag = policy
            self._wants_slack = getattr(policy, "overtaking_slack", None)
        self._bound.forget(nothing_known=bool(self._state.applications))
        for standing in self._standings.values():
            standing.own_bound = ApplicationBound(proven=False)

    def arriving(self, application: Application) -> None:
        if len(self._state.applications) == 1 and self._accounts.return_to_scheduler_accounts():
            self.history.forget_levels()
            self._bound.forget(nothing_known=False)
        self.history.begin(self.virtual_time)
        self._accounts.arrive(application)
        self._measured_lag_of(application.application_id)

    def losing_credit(self, application_id: ApplicationId) -> None:
        """Add an application's refund to the exceptions in the bound on other lags."""
        self.history.begin(self.virtual_time)
        if self._accounts.uses_scheduler_accounts:
            self._bound.exceptions += uncovered_demand(self._accounts.share, application_id)

    def withdrawn(self, application_id: ApplicationId) -> None:
        if (shadow := self._accounts.separate_accounts(application_id)) is not None:
            shadow.withdraw(application_id)
        self._note_service(0)

    def resumed(self, application_id: ApplicationId, *, was_withdrawn: bool) -> None:
        """Start a new bound for an application after a tool gap, because GPS finishes it later."""
        if (shadow := self._accounts.separate_accounts(application_id)) is not None:
            shadow.resume(application_id)
        if was_withdrawn:
            self._note_new_charge(application_id)

    def reweighed(self, application_id: ApplicationId, weight: float) -> None:
        """Start a new bound for an application with a new weight: GPS may finish it later."""
        if (shadow := self._accounts.separate_accounts(application_id)) is not None:
            shadow.reweigh(application_id, weight)
        self._note_service(0)
        self._note_new_charge(application_id)

    def raised(self, application_id: ApplicationId) -> None:
        """Add an application's running work to the exceptions in the bound on other lags."""
        if self._accounts.uses_scheduler_accounts:
            self._bound.exceptions += self._measured_lag_of(application_id).in_flight

    def settled(self, application_id: ApplicationId, final_tag: VirtualTime) -> Lag | None:
        """Remove an application whose account was closed (rule 3); return its lag.

        None if the application never started, or was late before this scheduler began.
        """
        final_tag = self._accounts.settle(application_id, final_tag)
        standing = self._standings.pop(application_id, None)
        self._note_service(0, final_tag)
        if standing is None or standing.last_start is None:
            return None
        return self._lag_at(standing, standing.last_start, standing.own_bound, final_tag)

    def enqueuing(self, application: Application, inference: Inference) -> None:
        """Record for how long none of an application's inferences waited."""
        self.leave_flight(inference)
        name = application.application_id
        self.history.begin(self.virtual_time)
        standing = self._measured_lag_of(name)
        if application.waiting:
            return
        if standing.last_start is not None:
            since = max(standing.last_start[0], standing.due_from)
            standing.own_bound.path += self.history.served - since
        if not inference.attempts:
            self.losing_credit(name)

    def readmitting(self, application_id: ApplicationId) -> None:
        """Add a suspended application's credit to the exceptions; its own lag has no bound.

        The service that GPS gave it in the meantime now puts it before others, and its delay was
        not due to the order.
        """
        self.losing_credit(application_id)
        self._measured_lag_of(application_id).own_bound = ApplicationBound(proven=False)

    def dispatched(
        self, application: Application, inference: Inference, *, passing: bool, nothing_waits: bool
    ) -> None:
        """Record the start of an inference, which may bound the lags of other applications.

        Args:
            application: The application of the inference.
            inference: The inference.
            passing: Whether it overtook a waiting inference that is before it in the order.
            nothing_waits: Whether no other inference waits.
        """
        standing = self._measured_lag_of(application.application_id)
        if self._policy_with_bound is None:
            self._count_in_flight(standing, inference)
        else:
            key = self._tag_key(application)
            self._bound.update(standing.own_bound, key)
            work = self._count_in_flight(standing, inference)
            if passing:
                self._bound.exceptions += work
            else:
                wanted = self._wants_slack(application) if self._wants_slack else None
                self._bound.record_start(
                    key, nothing_waits=nothing_waits, lack=max(0, -(wanted or 0))
                )
        standing.last_start = (self.history.served, self._state.now)

    def adopted(self, inference: Inference) -> None:
        """Count an inference with a lease of an earlier scheduler as started out of order."""
        self.history.begin(self.virtual_time)
        self._bound.exceptions += self._count_in_flight(
            self._measured_lag_of(inference.application_id), inference
        )

    def leave_flight(self, inference: Inference) -> None:
        """Remove an inference that ended, waits or is suspended from the work in flight."""
        work = self._in_flight.pop(inference.request_id, 0)
        self._bound.in_flight -= work
        self._measured_lag_of(inference.application_id).in_flight -= work

    def served(self, deliveries: Sequence[Delivery], recharged: Sequence[ApplicationId]) -> None:
        """Book the service of a report, and update the work in flight.

        The service doubled the charges of the `recharged` applications.
        """
        charges = [(delivery.application_id, delivery.tag_amount) for delivery in deliveries]
        if self._accounts.uses_scheduler_accounts:
            for name in set(recharged):
                self._bound.exceptions += self._measured_lag_of(name).in_flight
        self._accounts.deliver(charges)
        for delivery in deliveries:
            inference = self._state.inferences.get(delivery.request_id)
            if inference is None:  # a stopped inference has no work left
                continue
            self._update_remaining_work(self._measured_lag_of(delivery.application_id), inference)
        self._note_service(sum((amount for _, amount in charges), start=0))

    # --- internals

    @property
    def _policy_with_bound(self) -> Order | None:
        return self._by_tag if self._accounts.uses_scheduler_accounts else None

    def _measured_lag_of(self, application_id: ApplicationId) -> _MeasuredLag:
        standing = self._standings.get(application_id)
        if standing is None:
            served = self.history.served
            standing = _MeasuredLag(served, self.history.busy_s, served)
            self._standings[application_id] = standing
        return standing

    def _note_new_charge(self, application_id: ApplicationId) -> None:
        standing = self._measured_lag_of(application_id)
        standing.own_bound, standing.due_from = ApplicationBound(), self.history.served

    def _tag_key(self, application: Application) -> Key:
        return (self._accounts.tag(application.application_id), application.sequence)

    def _note_service(self, amount: KvTokenTime, *settled: VirtualTime) -> None:
        history = self.history
        self._accounts.forget_ended()
        history.note_service(amount, self.virtual_time, self._state.now)
        if history.is_long(len(self._standings)):
            history.keep_finish_levels([*settled, *map(self._accounts.tag, self._standings)])

    def _count_in_flight(self, standing: _MeasuredLag, inference: Inference) -> KvTokenTime:
        """Count an inference as in flight.

        Return the most service that the inference can receive.
        """
        if not self._in_flight:
            self.history.record_service_restart(self._state.now)
        self._in_flight[inference.request_id] = 0
        return self._update_remaining_work(standing, inference)

    def _update_remaining_work(self, standing: _MeasuredLag, inference: Inference) -> KvTokenTime:
        work = most_remaining_work(inference)
        change = work - self._in_flight[inference.request_id]
        self._in_flight[inference.request_id] = work
        standing.in_flight += change
        self._bound.in_flight += change
        return work

    def _lag_at(
        self,
        standing: _MeasuredLag,
        start: Start,
        own_bound: ApplicationBound,
        tag: VirtualTime,
    ) -> Lag | None:
        history = self.history
        late = history.late(start, tag, self._state.now)
        if late is None:
            return None
        work, seconds, report = late
        bound = None if self._policy_with_bound is None else own_bound.bound
        if bound is None:
            return Lag(work, seconds, None, None)
        bound += report
        bound_s = None
        if history.served > standing.served:
            pace = (history.busy_s - standing.busy_s) / (history.served - standing.served)
            bound_s = max(0, seconds) + (bound - max(0, work)) * pace
        return Lag(work, seconds, bound, bound_s)
