"""The ledger: keeps accounts, policy and queue consistent.

Each method records one fact once: in the accounts of the clock, in the policy's counters, and in
the order of the queue. A `LedgerObserver`, if there is one, is notified of each fact; it does not
influence decisions.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from justitia_ray.core.actions import Lag
from justitia_ray.core.clock.fair_share import NominalShare, ServedShare, UnsettledShare
from justitia_ray.core.clock.tenant_share import TenantShare
from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.ledger_observer import LedgerObserver
from justitia_ray.core.policies import (
    Delivery,
    Observer,
    Order,
    PolicyContext,
    find_policy,
    in_force,
    parse_options,
)
from justitia_ray.core.policies.options import PolicyOptions
from justitia_ray.core.prefill import NOTHING_PAID, prefill_of_stages
from justitia_ray.core.prefill_account import PrefillAccount
from justitia_ray.core.queue import Key, Queue, WaitingLine
from justitia_ray.core.service_history import ServiceHistory, Start, StartDelay
from justitia_ray.core.state import State
from justitia_ray.core.tenants import TenantTree
from justitia_ray.core.usage import UsageTotals
from justitia_ray.cost import PrefillCost
from justitia_ray.units import ApplicationId, ClientId, KvTokenTime, VirtualTime

if TYPE_CHECKING:
    from justitia_ray.core.working_set import WorkingSet

Place = tuple[Key, Key, Key]
"""Position of an inference in the order: sort keys of its tenant, its application and itself."""

Rank = tuple[bool, VirtualTime]
"""Whether an application is beyond its quota, and the application's tag."""


class _SingleInferenceView(Application):
    """View of an application as if only one of its inferences waited.

    For queries; other attributes are read from the original. A copy would cost ten times as much.
    """

    __slots__ = ("_original",)

    def __init__(self, original: Application, waiting: WaitingLine) -> None:
        self._original = original
        self.waiting = waiting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


class Ledger:
    """Keeps the accounts of GPS, the policy and the queue consistent."""

    def __init__(
        self,
        state: State,
        policy: str,
        options: Mapping[str, object],
        observer: LedgerObserver | None = None,
    ) -> None:
        """Create empty accounts and an empty queue.

        Raises:
            ConfigError: If the policy or an option is not allowed.
        """
        self._state = state
        self.observer = observer
        self.queue = Queue()
        self.policy_name, options = in_force(policy, options)
        self.options = parse_options(self.policy_name, options)
        self.history = ServiceHistory()
        """Times at which virtual time V reached each level."""
        self.history.begin(0)
        self.fair_share = _fair_share(self.options, state.tenants)
        self._start_policy()

    # --- applications

    def arrive(self, application: Application, charge: KvTokenTime | None = None) -> None:
        """Open the account of an application (rule 6).

        Args:
            application: A new application.
            charge: Amount charged instead of its predicted KV token-time; ignored if accounts have
                another unit.
        """
        if self.observer is not None:
            self.observer.arriving(application)
        cost = application.predicted_kv_token_time if charge is None else charge
        if self.options.accounts_cost != "kv_token_time":
            cost = application.predicted_cost or 0
        elif (prefill := application.prefill) is not None:
            expected = self._predicted_prefill(application, prefill.cost, cost)
            prefill.predicted = prefill.charged = expected
            cost += expected
        self.fair_share.arrive(
            application.application_id,
            cost,
            self.weight_of(application),
            application.sequence,
            application.leaf,
        )
        self._reopen_branched()

    def withdraw(self, application_id: ApplicationId) -> None:
        """Refund the unserved charge of an idle application (rule 4)."""
        if self.observer is not None:
            self.observer.losing_credit(application_id)
        self.fair_share.withdraw(application_id)
        self._note_service(0)
        if self.observer is not None:
            self.observer.withdrawn(application_id)
        self._state.changed[application_id] = None

    def resume(self, application_id: ApplicationId) -> None:
        """Charge an application again that submits after a tool gap (rule 5)."""
        resumed = self.fair_share.resume(application_id)
        if self.observer is not None:
            self.observer.resumed(application_id, was_withdrawn=resumed)
        if resumed:
            self._state.changed[application_id] = None

    def expect(self, application_id: ApplicationId, remaining: KvTokenTime) -> None:
        """Raise the charge of an application to the service expected now (rule 7).

        Has no effect if the accounts have another unit than KV token-time.
        """
        if self.options.accounts_cost != "kv_token_time":
            return
        application = self._state.applications[application_id]
        if (prefill := application.prefill) is not None:
            remaining += prefill.charged - prefill.paid
        if self.fair_share.expect(application_id, remaining):
            self._state.counters.expected += 1
            if self.observer is not None:
                self.observer.raised(application_id)
            self._sort_retagged_applications([application_id])

    def weight_of(self, application: Application) -> float:
        """Return the weight that an application's account should have now."""
        if self.fair_share.sets_apart:
            return application.weight
        return application.share_weight

    def reweigh(self, application: Application) -> None:
        """Set the weight of an account to the current weight of the application."""
        name = application.application_id
        if self.observer is not None:
            self.observer.losing_credit(name)
        self.fair_share.reweigh(name, self.weight_of(application))
        self._note_service(0)
        if self.observer is not None:
            self.observer.reweighed(name, application.share_weight)
        self._sort_retagged_applications([name])

    def deprioritise(self, application: Application, *, is_so: bool) -> None:
        """Move an application behind all applications within quota, or back among them.

        With shares by tenant the client of the application changes: for the policy the application
        ends at the old client and begins at the new client.
        """
        name, counting, state = application.application_id, self.counting, self._state
        changes_client = self.fair_share.sets_apart and self.policy.by_leaf
        if self.observer is not None:
            self.observer.losing_credit(name)
        self.queue.remove(application)
        if changes_client and counting is not None:
            counting.application_ended(application)
        application.is_deprioritised = is_so
        self.fair_share.move(name, application.leaf, self.weight_of(application))
        self._note_service(0)
        if self.observer is not None:
            self.observer.reweighed(name, application.share_weight)
        if changes_client and counting is not None:
            for inference in application.waiting.values():
                counting.submitted(application, inference)
            for request_id in sorted(application.in_flight):
                counting.adopted(application, state.inferences[request_id])
            for lease_id in application.leaving:
                counting.adopted(application, state.leaving[lease_id].inference)
        self._reopen_branched()
        self._sort_retagged_applications([name])

    def settle(self, application_id: ApplicationId) -> tuple[VirtualTime, Lag | None]:
        """Close the account of an application (rule 3); return the final tag and the lag."""
        if self.observer is not None:
            self.observer.losing_credit(application_id)
        final_tag = self.fair_share.settle(application_id)
        self._note_service(0, final_tag)
        if self.observer is not None:
            return final_tag, self.observer.settled(application_id, final_tag)
        application = self._state.applications[application_id]
        late = self.late(application, application.last_start, final_tag)
        return final_tag, None if late is None else Lag(late.work, late.seconds, None, None)

    # --- inferences

    def enqueue(self, application: Application, inference: Inference) -> None:
        if self.observer is not None:
            self.observer.enqueuing(application, inference)
        self._add_to_queue(application, inference)

    def leave(self, application: Application, inference: Inference) -> None:
        self.remove_waiting(application, inference)
        self.queue.touch(application)

    def remove_waiting(self, application: Application, inference: Inference) -> None:
        """Remove an inference from its application's waiting inferences.

        The caller updates the queue.
        """
        application.waiting.remove_inference(inference)
        self._state.counters.count_waiting(inference, -1)

    def readmit(self, application: Application, inferences: Iterable[Inference]) -> None:
        """Put suspended inferences of an application back into the queue."""
        if self.observer is not None:
            self.observer.readmitting(application.application_id)
        for inference in inferences:
            self._add_to_queue(application, inference)

    def dispatched(self, application: Application, inference: Inference) -> None:
        """Record that an inference was leased and has left the queue; call only if `notifies`."""
        if self.observer is not None:
            passing = self.queue.passes_some
            nothing_waits = not passing and not len(self.queue)
            self.observer.dispatched(
                application, inference, passing=passing, nothing_waits=nothing_waits
            )
        if self.counting is not None:
            self._sort_rekeyed_clients(self.counting.dispatched(application, inference))

    def adopted(self, application: Application, inference: Inference) -> None:
        """Record that an inference has a lease of an earlier scheduler."""
        if self.observer is not None:
            self.observer.adopted(inference)
        if self.counting is not None:
            self.counting.adopted(application, inference)

    def inference_ended(self, application: Application, inference: Inference) -> None:
        """Record that an inference has ended; call only if `notifies`."""
        if self.observer is not None:
            self.observer.leave_flight(inference)
        if self.counting is not None:
            self._sort_rekeyed_clients(self.counting.ended(application, inference))

    def application_ended(self, application: Application) -> None:
        if self.gate is not None:
            self.gate.ended(application)
        if self.counting is not None:
            self.counting.application_ended(application)

    def book(self, deliveries: Iterable[Delivery]) -> None:
        """Book the service of a report: rules 1 and 2 of the accounts, and the policy's charges."""
        state, booked, computed = self._state, [], []
        usage: dict[ClientId, UsageTotals] = {}
        services: list[tuple[ClientId, KvTokenTime]] = []
        served: KvTokenTime = 0
        for delivery in deliveries:
            application = state.applications[delivery.application_id]
            tenant = application.tenant
            if delivery.prefill is not NOTHING_PAID:
                computed.append(delivery)
            services.append((tenant, delivery.amount))
            if delivery.amount > 0:
                totals = usage.get(tenant)
                if totals is None:
                    totals = usage[tenant] = state.usage.of(tenant, state.now)
                totals.kv_token_time += delivery.amount
            if state.caps:
                state.served[delivery.application_id] = None
            state.counters.made_tokens += delivery.tokens_after - delivery.tokens_before
            application.kv_token_time += delivery.amount
            application.unfinished_kv_token_time += delivery.amount
            if delivery.amount > 0:
                state.changed[delivery.application_id] = None
                booked.append(delivery)
                served += delivery.amount
        state.counters.count_services(services)
        if computed:
            booked, served = self._book_prefill(computed, booked)
        if not booked:
            return
        recharged = self.fair_share.deliver(
            self._service_by_application(booked, with_prefill=bool(computed))
        )
        state.counters.outran += len(recharged)
        self._note_service(served)
        if self.observer is not None:
            self.observer.served(booked, recharged)
        if recharged:
            self._sort_retagged_applications(recharged)
        if self.counting is not None:
            self._sort_rekeyed_clients(self.counting.served(booked))

    def _book_prefill(
        self, computed: Iterable[Delivery], booked: list[Delivery]
    ) -> tuple[list[Delivery], KvTokenTime]:
        """Book the prompts computed in a report, and change the charges for prompts.

        Args:
            computed: Deliveries of prompts that were computed.
            booked: Deliveries of other service.

        Returns:
            The deliveries of service that tags pay, and the service by which V moves.
        """
        state, counters = self._state, self._state.counters
        served: KvTokenTime = sum(delivery.amount for delivery in booked)
        accounts: dict[ApplicationId, PrefillAccount] = {}
        for delivery in computed:
            name, prefill = delivery.application_id, delivery.prefill
            account = state.applications[name].prefill
            assert account is not None
            account.paid += prefill.paid
            account.unfinished += prefill.paid
            account.forgiven += prefill.forgiven
            accounts[name] = account
        # No prompt of the report is pending any more: charges before all are paid would be too low.
        for name, account in accounts.items():
            self.charge_prefill(state.applications[name], account)
        for delivery in computed:
            name, prefill = delivery.application_id, delivery.prefill
            application = state.applications[name]
            whole = prefill.paid + prefill.forgiven
            state.usage.of(application.tenant, state.now).prefill_token_time += whole
            counters.count_services([(application.tenant, whole)])
            counters.prefill += whole
            counters.forgiven += prefill.forgiven
            state.changed[name] = None
            if prefill.paid and self._counts_kv_token_time:
                served += prefill.paid
                if delivery.amount <= 0:
                    booked.append(delivery)
            if prefill.forgiven and self._counts_kv_token_time:
                served += self.fair_share.miss(name, prefill.forgiven)
        return booked, served

    def _predicted_prefill(
        self, application: Application, price: PrefillCost, charge: KvTokenTime
    ) -> int:
        """Return the prefill to charge an arriving application in addition to a charge."""
        state, stages = self._state, application.expected_stages
        of_stages: KvTokenTime = 0
        of_all = sum(stage.kv_token_time for stage in stages)
        replicas = state.replicas.values()
        if of_all and replicas and not any(one.capacity.caches_prefixes for one in replicas):
            of_stages = prefill_of_stages(price, stages) * (charge / of_all)
        return state.prefill_ratios.expected(application.application_class, charge, of_stages)

    def charge_prefill(self, application: Application, prefill: PrefillAccount) -> None:
        """Charge an application for its prompts (rule 8), or refund a part of that charge.

        Has no effect if the accounts have another unit than KV token-time.
        """
        name = application.application_id
        charge = max(prefill.predicted, prefill.paid + prefill.pending)
        amount = charge - prefill.charged
        if not amount or not self._counts_kv_token_time:
            return
        prefill.charged = charge
        if amount < 0 and self.observer is not None:
            self.observer.losing_credit(name)
        self.fair_share.adjust_prefill_charge(name, amount)
        if amount > 0 and self.observer is not None:
            self.observer.raised(name)
        self._note_service(0)
        self._sort_retagged_applications([name])

    # --- lateness against GPS

    def late(
        self, application: Application, start: Start | None, tag: VirtualTime
    ) -> StartDelay | None:
        """Return the lag of an application's last start behind GPS; None: unknown.

        Known only if V moves by delivered service in KV token-time. With shares by tenant, known
        only for applications within quota: the others have another clock.
        """
        if start is None or not self.follows_service:
            return None
        if self.fair_share.sets_apart and application.is_deprioritised:
            return None
        return self.history.late(start, tag, self._state.now)

    @property
    def promises_by_tag(self) -> bool:
        """Return whether the order bounds how late applications start."""
        policy, options = self.policy, self.options
        return (
            policy.BY_TAG
            and not policy.lets_pass
            and options.backfill is not None
            and options.fairness == "application"
            and self.follows_service
        )

    @property
    def _counts_kv_token_time(self) -> bool:
        return self.options.accounts_cost == "kv_token_time"

    @property
    def follows_service(self) -> bool:
        """Return whether virtual time moves by delivered service in KV token-time."""
        options = self.options
        return options.clock == "served" and options.accounts_cost == "kv_token_time"

    def start_clock(self, virtual_time: VirtualTime) -> None:
        """Continue at the virtual time of an earlier scheduler.

        Times of lower levels are unknown.
        """
        self.fair_share.clock.start(virtual_time)
        self.history.forget_levels()
        self.history.begin(virtual_time)

    def _note_service(self, amount: KvTokenTime, *settled: VirtualTime) -> None:
        """Record the time at which virtual time has reached its present level."""
        history, share = self.history, self.fair_share
        history.note_service(amount, share.clock.virtual_time, self._state.now)
        if history.is_long(len(share.accounts)):
            accounts = share.accounts.items()
            # An application that is withdrawn from GPS has no current tag.
            tags = [share.tag(name) for name, account in accounts if not account.withdrawn]
            history.keep_finish_levels([*settled, *tags])

    # --- the order

    def rank(self, application_id: ApplicationId) -> Rank:
        """Return the sort key that orders applications by their tags alone.

        With shares by tenant, applications within and beyond quota have tags of two clocks.
        """
        application = self._state.applications[application_id]
        apart = self.fair_share.sets_apart and application.is_deprioritised
        return apart, self.fair_share.tag(application_id)

    def place(self, inference: Inference) -> Place:
        """Return the order position of an inference as if it were its application's only one.

        Also used as the engine priority of a grant, if the policy keeps the order while inferences
        run.
        """
        application, policy = self._state.applications[inference.application_id], self.policy
        key = policy.inference_key(inference)
        lease = self._state.leases.get(inference.lease_id or "")
        if lease is not None and policy.keeps_place_in_flight:
            of_grant = (lease.priority, application.sequence)
            return of_grant, policy.application_key(application), key
        waiting = WaitingLine()
        waiting.add_inference(inference, key)
        alone = _SingleInferenceView(application, waiting)
        client = policy.client(application)
        return policy.key(client, alone), policy.application_key(alone), key

    def refresh(self) -> None:
        """Sort tenants again whose applications have new tags."""
        if tenants := self.fair_share.take_retagged_tenants():
            self._sort_rekeyed_clients(tenants)

    def reorder(self) -> None:
        self.queue.reorder(self.policy, self.counting)

    def capacity_changed(self) -> None:
        """Set the rate of the nominal clock, after a replica was added or removed."""
        self.fair_share.set_rate(self._state.kv_tokens(), self._state.now)

    def change_policy(self, policy: str, options: Mapping[str, object]) -> None:
        """Order by another policy from now on; accounts and queue are kept.

        The counters of the old policy are dropped, even if only its options change.

        Raises:
            ConfigError: If the policy or an option is not allowed; nothing changed.
            Exception: Raised by the policy's constructor; the old policy continues with new
                counters.
        """
        policy, options = in_force(policy, options)
        parsed = parse_options(policy, options)
        before = self.policy_name, self.options, self.fair_share
        self.policy_name, self.options = policy, parsed
        try:
            if parsed.same_accounts(before[1]):
                self._start_policy()
            else:
                self.restart_clock()
        except Exception:
            self.policy_name, self.options, self.fair_share = before
            self._start_policy()
            raise

    def change_tenants(self) -> None:
        """Use the weights of the current tenant tree; what GPS owes each tenant stays the same."""
        self.fair_share.apply_weights(self._state.tenants)

    def restart_clock(self) -> None:
        """Open new GPS accounts at this virtual time, with each application's unserved charge."""
        before = self.fair_share
        self.fair_share = _fair_share(self.options, self._state.tenants)
        self.fair_share.clock.start(before.clock.virtual_time)
        # The store must also drop what GPS owes ended applications.
        self._state.changed.update(dict.fromkeys(before.take_changed()))
        self._state.changed.update(dict.fromkeys(before.sessions()))
        self.capacity_changed()
        for application_id, account in before.accounts.items():
            application = self._state.applications[application_id]
            self.fair_share.arrive(
                application_id,
                account.charged - account.attained,
                self.weight_of(application),
                account.sequence,
                application.leaf,
            )
            renewed = self.fair_share.accounts[application_id]
            renewed.charged += account.attained
            renewed.attained = account.attained
            renewed.settlements = account.settlements
            if application.is_idle:
                self.fair_share.withdraw(application_id)
        self._start_policy()

    def _start_policy(self) -> None:
        """Create the policy, and sort the queue by it."""
        self.fair_share.unwatch()
        self.policy: Order = find_policy(self.policy_name)(
            PolicyContext(
                self.fair_share,
                self.options,
                self._state.applications.__getitem__,
                lambda: self._state.now,
                self.queue,
                self._state.kv_in_flight,
                self._state.kv_per_iteration,
            )
        )
        self.counting = self.policy if isinstance(self.policy, Observer) else None
        """The policy, if it counts events; otherwise None."""
        self.notifies = self.observer is not None or self.counting is not None
        """Whether an observer or the policy receives starts and ended inferences."""
        self.gate = self._working_set()
        """Decides whether cached contexts leave memory for the first application; None: contexts
        are not counted.
        """
        if self.observer is not None:
            self.observer.policy_changed(self.fair_share, self.policy)
        for application in self._state.applications.values():
            for inference in list(application.waiting):
                if self.counting is not None:
                    self.counting.submitted(application, inference)
                application.waiting.add_inference(inference, self.policy.inference_key(inference))
        self.queue.reorder(self.policy, self.counting)

    def _working_set(self) -> "WorkingSet | None":
        """Return the working set that the policy's options request, or None."""
        if not self.options.own.get("working_set", False):
            return None
        from justitia_ray.core.working_set import WorkingSet

        return WorkingSet(self._state, self.rank, self.fair_share.accounts.__getitem__)

    def _reopen_branched(self) -> None:
        """Sort the tenants again below which a tenant got its first child."""
        for client in self.fair_share.take_reordered_tenants():
            self.queue.reopen(client)

    def _add_to_queue(self, application: Application, inference: Inference) -> None:
        counting, clients = self.counting, None
        if counting is not None:
            clients = counting.submitted(application, inference)
        application.waiting.add_inference(inference, self.policy.inference_key(inference))
        self._state.counters.count_waiting(inference, 1)
        self.queue.touch(application)
        if self.gate is not None:
            self.gate.join(application)
        if clients:
            self._sort_rekeyed_clients(clients)

    def _sort_retagged_applications(self, application_ids: Iterable[ApplicationId]) -> None:
        for application_id in application_ids:
            self._state.changed[application_id] = None
            self.queue.touch(self._state.applications[application_id])

    def _sort_rekeyed_clients(self, clients: Iterable[ClientId]) -> None:
        """Sort tenants or applications again whose keys have changed."""
        for client in clients:
            self.queue.touch_client(client)

    def _service_by_application(
        self, deliveries: list[Delivery], *, with_prefill: bool
    ) -> list[tuple[ApplicationId, KvTokenTime]]:
        if self.options.accounts_cost == "kv_token_time":
            if with_prefill:
                return [(d.application_id, d.tag_amount) for d in deliveries]
            return [(d.application_id, d.amount) for d in deliveries]
        cost = self.options.cost_function
        return [(d.application_id, d.cost(cost)) for d in deliveries]


def _fair_share(options: PolicyOptions, tenants: TenantTree) -> ServedShare:
    """Return empty accounts of the kind that the options select."""
    if options.clock == "nominal":
        return NominalShare(options.nominal_iteration_s)
    if options.clock == "unsettled":
        return UnsettledShare()
    if options.fairness == "tenant":
        return TenantShare(tree=tenants)
    return ServedShare()
