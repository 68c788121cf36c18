"""How late each application is against GPS, for every policy, and how late it may be.

The lag of an application is S(e) − S(f̄): S all served work, e its last start, f̄ when V of a shadow
clock reaches its final tag. `LagAccounts` has that clock.

Lags are measured, and change nothing that the scheduler does. Nothing of it is stored: after a
restart an application whose tag V had reached before has no lag that is known.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from justitia_ray.core.actions import Lag
from justitia_ray.core.delay_bound import Claim, DelayBound, uncovered
from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.fair_share import FairShare
from justitia_ray.core.lag_accounts import LagAccounts
from justitia_ray.core.lazy_heap import Key
from justitia_ray.core.policies import Delivery, Policy, PolicyOptions
from justitia_ray.core.policies.justitia import JustitiaPolicy
from justitia_ray.core.service_history import ServiceHistory
from justitia_ray.core.state import State
from justitia_ray.cost import choices_kv_token_time
from justitia_ray.units import ApplicationId, KvTokenTime, RequestId, Seconds, VirtualTime


@dataclass(slots=True)
class _Standing:
    """What is kept of one live application."""

    served: KvTokenTime
    """S when it arrived."""
    busy_s: Seconds
    due_from: KvTokenTime
    """S when it was last charged anew: its final tag is reached later."""
    last_start: tuple[KvTokenTime, Seconds] | None = None
    in_flight: KvTokenTime = 0
    claim: Claim = field(default_factory=Claim)


class LagMeter:
    """Watches accounts, starts and service. Every event is O(log N), amortised."""

    def __init__(self, state: State, fair_share: FairShare, options: PolicyOptions) -> None:
        self._state = state
        self._accounts = LagAccounts(state, fair_share, options)
        self.history = ServiceHistory()
        self._bound = DelayBound()
        self._standings: dict[ApplicationId, _Standing] = {}
        self._in_flight: dict[RequestId, KvTokenTime] = {}
        self._by_tag = False
        """Whether the order is one to which the promise applies."""

    # --- the order

    def follow(self, fair_share: FairShare, policy: Policy) -> None:
        """Take in the accounts and the policy that are in force from now on."""
        self._accounts.follow(fair_share, policy.options)
        self._by_tag = isinstance(policy, JustitiaPolicy) and policy.options.backfill is not None
        # What started under the last order does not say what waited.
        self._bound.forget(nothing_known=bool(self._state.applications))
        for standing in self._standings.values():
            standing.claim = Claim(proven=False)

    # --- applications

    def arrive(self, application: Application) -> None:
        """An application is about to be charged."""
        if len(self._state.applications) == 1 and self._accounts.rejoin():
            self.history.start_over()
            self._bound.forget(nothing_known=False)
        self.history.begin(self._accounts.clock.virtual_time)
        self._accounts.arrive(application)
        self._stand(application.application_id)

    def lose_credit(self, application_id: ApplicationId) -> None:
        """An application is about to be withdrawn, reweighed or settled: others get its credit."""
        self.history.begin(self._accounts.clock.virtual_time)
        if self._accounts.are_own:
            self._bound.exceptions += uncovered(self._accounts.share, application_id)

    def withdrawn(self, application_id: ApplicationId) -> None:
        """An idle application was withdrawn (rule 4)."""
        self._accounts.withdraw(application_id)
        self._note(0)

    def resumed(self, application_id: ApplicationId, *, was_withdrawn: bool) -> None:
        """An application submits; if it was withdrawn, it is due later than now (rule 5)."""
        self._accounts.resume(application_id)
        if was_withdrawn:
            self._charged_anew(application_id)

    def reweighed(self, application_id: ApplicationId, weight: float) -> None:
        """The weight of an application was changed: from here it is due later than now."""
        self._accounts.reweigh(application_id, weight)
        self._note(0)
        self._charged_anew(application_id)

    def raised(self, application_id: ApplicationId) -> None:
        """The charge of an application was raised (rule 7): GPS owes it later what is in flight."""
        if self._accounts.are_own:
            self._bound.exceptions += self._stand(application_id).in_flight

    def ended(self, application_id: ApplicationId, final_tag: VirtualTime) -> Lag | None:
        """Return the lag of an application that was settled.

        None if it was never started, or if it was late before this scheduler took office.
        """
        final_tag = self._accounts.settle(application_id, final_tag)
        standing = self._standings.pop(application_id, None)
        self._note(0)
        if standing is None or standing.last_start is None:
            return None
        return self._lag(standing, standing.last_start, standing.claim, final_tag)

    def lag(self, application: Application) -> Lag | None:
        """Return the lag of a live application: as if it started now, if any of it waits."""
        name = application.application_id
        standing = self._standings.get(name)
        if standing is None:
            return None
        start, claim = standing.last_start, standing.claim
        if application.waiting:
            start, claim = (self.history.served, self._state.now), replace(claim)
            self._bound.promise(claim, self._key(application))
        if start is None:
            return None
        return self._lag(standing, start, claim, self._accounts.tag(name))

    @property
    def virtual_time(self) -> VirtualTime:
        """V of the clock that lags are measured with."""
        return self._accounts.clock.virtual_time

    def tag(self, application_id: ApplicationId) -> VirtualTime:
        """Return F of a live application on that clock.

        Raises:
            KeyError: If no such application is live.
        """
        return self._accounts.tag(application_id)

    # --- inferences

    def waits(self, application: Application, inference: Inference) -> None:
        """An inference is about to wait, again if it was in flight."""
        self._leave(inference)
        name = application.application_id
        self.history.begin(self._accounts.clock.virtual_time)
        standing = self._stand(name)
        if application.waiting:
            return
        if standing.last_start is not None:
            since = max(standing.last_start[0], standing.due_from)
            standing.claim.path += self.history.served - since
        if not inference.attempts:
            self.lose_credit(name)

    def kept_out(self, inference: Inference) -> None:
        """An inference is not in flight, if it was, and cannot be granted for a while."""
        self._leave(inference)

    def let_in(self, application_id: ApplicationId) -> None:
        """What was kept out of an application is about to wait.

        What GPS has served of it meanwhile comes before others now, and of itself nothing is
        promised: it was not the order that kept it.
        """
        self.lose_credit(application_id)
        self._stand(application_id).claim = Claim(proven=False)

    def started(
        self, application: Application, inference: Inference, *, passing: bool, nothing_waits: bool
    ) -> None:
        """An inference was leased.

        Args:
            application: Its application.
            inference: What was leased.
            passing: Something before it in order waits, and was set aside.
            nothing_waits: Nothing else waits.
        """
        standing = self._stand(application.application_id)
        if not self._promises:
            self._enter(standing, inference)
        else:
            key = self._key(application)
            self._bound.promise(standing.claim, key)
            work = self._enter(standing, inference)
            if passing:
                self._bound.exceptions += work
            else:
                self._bound.start(key, nothing_waits=nothing_waits)
        standing.last_start = (self.history.served, self._state.now)

    def adopted(self, inference: Inference) -> None:
        """An inference holds a lease that an earlier scheduler granted."""
        self.history.begin(self._accounts.clock.virtual_time)
        self._bound.exceptions += self._enter(self._stand(inference.application_id), inference)

    def inference_ended(self, inference: Inference) -> None:
        """An inference reached its end, from whatever state."""
        self._leave(inference)

    def served(self, deliveries: Iterable[Delivery], recharged: Iterable[ApplicationId]) -> None:
        """One report's service was booked, and the charges of these applications doubled."""
        charges = [(delivery.application_id, delivery.amount) for delivery in deliveries]
        if self._accounts.are_own:
            for name in set(recharged):
                self._bound.exceptions += self._stand(name).in_flight
        self._accounts.deliver(charges)
        for delivery in deliveries:
            inference = self._state.inferences[delivery.request_id]
            self._weigh(self._stand(delivery.application_id), inference)
        self._note(sum((amount for _, amount in charges), start=0))

    # --- inside

    @property
    def _promises(self) -> bool:
        return self._by_tag and self._accounts.are_own

    def _stand(self, application_id: ApplicationId) -> _Standing:
        standing = self._standings.get(application_id)
        if standing is None:
            served = self.history.served
            standing = _Standing(served, self.history.busy_s, served)
            self._standings[application_id] = standing
        return standing

    def _charged_anew(self, application_id: ApplicationId) -> None:
        standing = self._stand(application_id)
        standing.claim, standing.due_from = Claim(), self.history.served

    def _key(self, application: Application) -> Key:
        return (self._accounts.tag(application.application_id), application.sequence)

    def _note(self, amount: KvTokenTime) -> None:
        history = self.history
        self._accounts.forget_ended()
        history.note(amount, self._accounts.clock.virtual_time, self._state.now)
        if history.is_long(len(self._standings)):
            history.thin(self._accounts.tag(name) for name in self._standings)

    def _enter(self, standing: _Standing, inference: Inference) -> KvTokenTime:
        """Count what is in flight from now on; return the most that it can be served."""
        if not self._in_flight:
            self.history.rise_from(self._state.now)
        self._in_flight[inference.request_id] = 0
        return self._weigh(standing, inference)

    def _weigh(self, standing: _Standing, inference: Inference) -> KvTokenTime:
        work = _remaining(inference)
        change = work - self._in_flight[inference.request_id]
        self._in_flight[inference.request_id] = work
        standing.in_flight += change
        self._bound.in_flight += change
        return work

    def _leave(self, inference: Inference) -> None:
        work = self._in_flight.pop(inference.request_id, 0)
        self._bound.in_flight -= work
        self._stand(inference.application_id).in_flight -= work

    def _lag(
        self,
        standing: _Standing,
        start: tuple[KvTokenTime, Seconds],
        claim: Claim,
        tag: VirtualTime,
    ) -> Lag | None:
        history = self.history
        if not history.knows(tag):
            return None
        level = history.reached(tag)
        served, since = history.served, self._state.now
        if level is not None:
            served, since = level.served_before, level.since
        work = start[0] - served
        seconds = start[1] - since if work else 0.0
        bound = claim.bound if self._promises else None
        if bound is None:
            return Lag(work, seconds, None, None)
        bound += 0 if level is None else level.amount
        bound_s = None
        if history.served > standing.served:
            pace = (history.busy_s - standing.busy_s) / (history.served - standing.served)
            bound_s = max(0, seconds) + (bound - max(0, work)) * pace
        return Lag(work, seconds, bound, bound_s)


def _remaining(inference: Inference) -> KvTokenTime:
    """Return the most service that an inference can still receive."""
    longest = inference.true_output_tokens
    if longest is None:
        longest = inference.max_output_tokens
    longest = max(longest, inference.output_tokens)
    whole = choices_kv_token_time(inference.prompt_tokens, longest, inference.choices)
    return max(0, whole - inference.attained)
