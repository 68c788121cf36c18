"""The order of applications: the policy in force, the accounts it reads, the queue it sorts."""

from collections.abc import Iterable, Mapping

from justitia_ray.core.actions import Lag
from justitia_ray.core.admission import kv_need_tokens
from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.fair_share import FairShare, ServedShare
from justitia_ray.core.lag import LagMeter
from justitia_ray.core.lazy_heap import Key
from justitia_ray.core.policies import Delivery, Policy, PolicyContext, find_policy, parse_options
from justitia_ray.core.policies.options import PolicyOptions
from justitia_ray.core.queue import Queue
from justitia_ray.core.state import State
from justitia_ray.core.tenant_share import TenantShare
from justitia_ray.core.unsettled_share import NominalShare, UnsettledShare
from justitia_ray.core.virtual_clock import VirtualClock
from justitia_ray.core.waiting_line import WaitingLine
from justitia_ray.units import ApplicationId, ClientId, KvTokenTime, VirtualTime

Place = tuple[Key, Key, Key]
"""Of the client, of the application among those of its client, of the inference among its own."""


class Order:
    """Keeps the queue in step with what changes keys."""

    def __init__(
        self,
        state: State,
        policy: str,
        options: Mapping[str, object],
        *,
        measure_lag: bool = False,
    ) -> None:
        self._state = state
        self.queue = Queue()
        self.policy_name = policy
        self.options = parse_options(policy, options)
        self.fair_share: FairShare = _fair_share(self.options)
        self.lag = LagMeter(state, self.fair_share, self.options) if measure_lag else None
        self._take_policy()

    # --- what happens to applications and inferences

    def arrive(self, application: Application, charge: KvTokenTime | None = None) -> None:
        """Open the account of an application (rule 6).

        Args:
            application: It has just come.
            charge: What to charge in place of its predicted KV token-time; of no effect on accounts
                in another unit.
        """
        if self.lag is not None:
            self.lag.arrive(application)
        cost = application.predicted_kv_token_time if charge is None else charge
        if self.options.accounts_cost != "kv_token_time":
            cost = application.predicted_cost or 0
        self.fair_share.arrive(
            application.application_id,
            cost,
            application.weight,
            application.sequence,
            application.tenant,
        )

    def withdraw(self, application_id: ApplicationId) -> None:
        """Refund what an idle application was charged (rule 4)."""
        if self.lag is not None:
            self.lag.lose_credit(application_id)
        self.fair_share.withdraw(application_id)
        if self.lag is not None:
            self.lag.withdrawn(application_id)

    def resume(self, application_id: ApplicationId) -> bool:
        """Charge it again (rule 5); return whether its tag changed."""
        resumed = self.fair_share.resume(application_id)
        if self.lag is not None:
            self.lag.resumed(application_id, was_withdrawn=resumed)
        return resumed

    def expect(self, application_id: ApplicationId, remaining: KvTokenTime) -> bool:
        """Raise a charge to what is expected now (rule 7); return whether its tag changed.

        Nothing happens if the accounts are kept in another unit than KV token-time.
        """
        if self.options.accounts_cost != "kv_token_time":
            return False
        raised = self.fair_share.expect(application_id, remaining)
        self._state.tally.expected += raised
        if raised and self.lag is not None:
            self.lag.raised(application_id)
        return raised

    def reweigh(self, application_id: ApplicationId, weight: float) -> None:
        """Change the weight of an account."""
        if self.lag is not None:
            self.lag.lose_credit(application_id)
        self.fair_share.reweigh(application_id, weight)
        if self.lag is not None:
            self.lag.reweighed(application_id, weight)

    def settle(self, application_id: ApplicationId) -> tuple[VirtualTime, Lag | None]:
        """Close an account (rule 3); return its final tag, and the lag of its application."""
        if self.lag is None:
            return self.fair_share.settle(application_id), None
        self.lag.lose_credit(application_id)
        final_tag = self.fair_share.settle(application_id)
        return final_tag, self.lag.ended(application_id, final_tag)

    def enqueue(self, application: Application, inference: Inference) -> None:
        """Let an inference wait."""
        if self.lag is not None:
            self.lag.waits(application, inference)
        self._join(application, inference)

    def leave(self, application: Application, inference: Inference) -> None:
        """Take a waiting inference out of the queue."""
        self.take_out(application, inference)
        self.queue.touch(application)

    def take_out(self, application: Application, inference: Inference) -> None:
        """Take an inference out of its application's line; who calls sorts the queue anew."""
        application.waiting.remove(inference)
        self._state.tally.waits_no_more(inference, kv_need_tokens(inference, 1))

    def kept_out(self, inference: Inference) -> None:
        """An inference that is not in the queue will not wait until it is let in."""
        if self.lag is not None:
            self.lag.kept_out(inference)

    def let_in(self, application: Application, inferences: Iterable[Inference]) -> None:
        """Let inferences of one application wait that were kept out."""
        if self.lag is not None:
            self.lag.let_in(application.application_id)
        for inference in inferences:
            self._join(application, inference)

    def dispatched(self, application: Application, inference: Inference) -> None:
        """An inference was leased, and has left the queue."""
        if self.lag is not None:
            passing = self.queue.passes_some
            nothing_waits = not passing and not len(self.queue)
            self.lag.started(application, inference, passing=passing, nothing_waits=nothing_waits)
        self.rekey(self.policy.dispatched(application, inference))

    def adopted(self, inference: Inference) -> None:
        """An inference holds a lease that an earlier scheduler granted."""
        if self.lag is not None:
            self.lag.adopted(inference)

    def inference_ended(self, application: Application, inference: Inference) -> None:
        """An inference reached its end."""
        if self.lag is not None:
            self.lag.inference_ended(inference)
        self.rekey(self.policy.ended(application, inference))

    def book(self, deliveries: list[Delivery]) -> None:
        """Book one report's service: rules 1 and 2 of the clock, and the policy's own charges."""
        if not deliveries:
            return
        changed = self.fair_share.deliver(self._charges(deliveries))
        self._state.tally.outran += len(changed)
        if self.lag is not None:
            self.lag.served(deliveries, changed)
        for delivery in deliveries:
            self._state.changed[delivery.application_id] = None
        self.retag(changed)
        self.rekey(self.policy.served(deliveries))

    # --- keys

    def place(self, inference: Inference) -> Place:
        """Return where an inference stands: as if it alone of its application waited."""
        application = self._state.applications[inference.application_id]
        key = self.policy.inference_key(inference)
        alone = WaitingLine()
        alone.add(inference, key)
        client = self.policy.client(application)
        # Lent for the two questions: a copy of the application would cost ten times as much.
        waiting, application.waiting = application.waiting, alone
        try:
            place = self.policy.key(client, application), self.policy.application_key(application)
        finally:
            application.waiting = waiting
        return (*place, key)

    def retag(self, application_ids: Iterable[ApplicationId]) -> None:
        """Sort applications anew whose tag changed."""
        for application_id in application_ids:
            self._state.changed[application_id] = None
            self.queue.touch(self._state.applications[application_id])

    def rekey(self, clients: Iterable[ClientId]) -> None:
        """Sort clients anew."""
        for client in clients:
            self.queue.touch_client(client)

    def refresh(self) -> None:
        """Sort tenants anew whose applications' tags a charge to one of them has moved."""
        self.rekey(self.fair_share.take_rekeyed())

    def capacity_changed(self) -> None:
        """A replica came or went: the nominal clock has another rate."""
        total = sum(replica.capacity.kv_tokens for replica in self._state.replicas.values())
        self.fair_share.set_rate(total, self._state.now)

    # --- another policy

    def change(self, policy: str, options: Mapping[str, object]) -> None:
        """Order by another policy from now on; accounts and queue stay.

        What the old policy counted is forgotten, also if it is the same with other options.

        Raises:
            ConfigError: If the policy or an option is not one of those allowed; nothing changed.
        """
        parsed = parse_options(policy, options)
        accounts_stay = parsed.same_accounts(self.options)
        self.policy_name, self.options = policy, parsed
        if accounts_stay:
            self._take_policy()
        else:
            self.restart_clock()

    def restart_clock(self) -> None:
        """Start new accounts at this V, with what each live application may still ask for."""
        before, self.fair_share = self.fair_share, _fair_share(self.options)
        self.fair_share.clock = VirtualClock(before.clock.virtual_time)
        # What GPS owed to applications that have ended is forgotten, in the store too.
        self._state.changed.update(dict.fromkeys(before.take_changed()))
        self._state.changed.update(dict.fromkeys(before.sessions()))
        self.capacity_changed()
        for application_id, account in before.accounts.items():
            self.fair_share.arrive(
                application_id,
                account.charged - account.attained,
                account.weight,
                account.sequence,
                self._state.applications[application_id].tenant,
            )
            renewed = self.fair_share.accounts[application_id]
            renewed.charged += account.attained
            renewed.attained = account.attained
            renewed.settlements = account.settlements
            if self._state.applications[application_id].is_idle:
                self.fair_share.withdraw(application_id)
        self._take_policy()

    def _join(self, application: Application, inference: Inference) -> None:
        clients = self.policy.submitted(application, inference)
        application.waiting.add(inference, self.policy.inference_key(inference))
        self._state.tally.waits(inference, kv_need_tokens(inference, 1))
        self.queue.touch(application)
        self.rekey(clients)

    def _take_policy(self) -> None:
        self.policy = self._make_policy()
        if self.lag is not None:
            self.lag.follow(self.fair_share, self.policy)
        for application in self._state.applications.values():
            for inference in list(application.waiting):
                self.policy.submitted(application, inference)
                application.waiting.add(inference, self.policy.inference_key(inference))
        self.queue.reorder(self.policy)

    def _make_policy(self) -> Policy:
        return find_policy(self.policy_name)(
            PolicyContext(
                self.fair_share,
                self.options,
                self._state.applications.__getitem__,
                lambda: self._state.now,
                self.queue,
            )
        )

    def _charges(self, deliveries: list[Delivery]) -> Iterable[tuple[ApplicationId, KvTokenTime]]:
        if self.options.accounts_cost == "kv_token_time":
            return [(d.application_id, d.amount) for d in deliveries]
        cost = self.options.cost_function
        return [(d.application_id, d.cost(cost)) for d in deliveries]


def _fair_share(options: PolicyOptions) -> FairShare:
    if options.clock == "nominal":
        return NominalShare(options.nominal_iteration_s)
    if options.clock == "unsettled":
        return UnsettledShare()
    if options.fairness == "tenant":
        return TenantShare()
    return ServedShare()
