"""Stateful property test of the core: failures, duplicates and restarts.

The model outside the core records every inference.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from justitia_ray.core import events as ev
from justitia_ray.core.admission import ADMISSIONS
from justitia_ray.core.entities import FailureCause, Outcome, ReplicaCapacity
from justitia_ray.core.policies import LAB_POLICIES, POLICIES, policy_path
from justitia_ray.core.prefixes import Prefix, pack_prefixes
from justitia_ray.core.tenants import TIERS, KvShare, TenantNode, TenantTree, Tier
from justitia_ray.cost import PrefillCost
from tests.fake_replica import FakeReplica
from tests.property.core_world import Call, CoreWorld
from tests.property.profiles import examples

_APPLICATIONS = st.sampled_from("abcd")
_SLOTS = st.sampled_from([0, 1, 2])
_CAPACITIES = ((60, 2, 1, False), (150, 3, 4, True), (400, 5, 1, True))
"""KV tokens, seats, block size and whether there is a prefix cache, for each replica."""
_INGRESSES = st.sampled_from(["i0", "i1"])
_WEIGHTS = st.sampled_from([1, 2, 0.5])
_NAMES = sorted({*POLICIES, *LAB_POLICIES} - {"justitia-guarded"})
"""Policy names; `guarded` stands for justitia with overtaking by urgent applications."""
_POLICIES = st.sampled_from([policy_path(name) for name in _NAMES])
_ACCOUNTS = st.sampled_from(
    ({"clock": "served"}, {"clock": "nominal"}, {"clock": "served", "fairness": "tenant"})
)
_TENANTS = st.sampled_from(
    (
        {"a": "one", "b": "two", "c": "two", "d": "one"},
        {"a": "one/x", "b": "two/y/z", "c": "two", "d": "one/x/w"},
    )
)
_TREES = st.sampled_from(
    (TenantTree(), TenantTree({"one": TenantNode(weight=3), "two/y": TenantNode(weight=0.5)}))
)
_TIER_OF = {"a": "flex", "b": "default", "c": "default", "d": "priority"}
_TIERS = st.sampled_from(
    (
        TIERS,
        {**TIERS, "priority": Tier(4, KvShare(guaranteed=0.3, lends=0))},
        {"flex": Tier(0.5, KvShare(most=0.4)), "default": Tier(1, KvShare(0.5, lends=0.5))},
    )
)
_PREFILL_COSTS = st.sampled_from([None, None, PrefillCost(3), PrefillCost(2, 0.5)])
_ADMISSIONS = st.sampled_from(sorted(ADMISSIONS))
_ORDERS = st.sampled_from(
    (
        {},
        {"order": "sgps", "guard_iterations": 0},
        {"order": "sgps", "guard_iterations": 2},
        {"order": "finish", "guard_iterations": 50},
    )
)


def _policy_and_options(
    policy: str, accounts: dict[str, str], order: dict[str, object]
) -> tuple[str, dict[str, object]]:
    """Return a policy and its options; some options let urgent applications overtake."""
    if policy == "justitia" and order and accounts["clock"] == "served":
        return "justitia-guarded", {**accounts, **order}
    return policy, {**accounts}


class CoreMachine(RuleBasedStateMachine):
    """Hypothesis rules for every event that the core may receive."""

    @initialize(
        policy=_POLICIES,
        accounts=_ACCOUNTS,
        admission=_ADMISSIONS,
        order=_ORDERS,
        tenants=_TENANTS,
        prefill_cost=_PREFILL_COSTS,
    )
    def start(
        self,
        policy: str,
        accounts: dict[str, str],
        admission: str,
        order: dict[str, object],
        tenants: dict[str, str],
        prefill_cost: PrefillCost | None,
    ) -> None:
        self.tenant_of = tenants
        self.world = CoreWorld(
            *_policy_and_options(policy, accounts, order), admission, prefill_cost
        )
        self.requests = 0
        self.slots: dict[int, FakeReplica] = {}
        self.replicas = 0
        self.last: ev.Event = ev.DeadlinePassed()
        for name, ingress in (("a", "i0"), ("b", "i1")):
            self.submit(name, [(9, 20, 15), (30, 12, 40)], 1, ingress, 1)
        for _ in range(2):
            self.pull(1, 5, started=True)

    # --- applications and their inferences

    @rule(tree=_TREES, tiers=_TIERS)
    def change_tenants(self, tree: TenantTree, tiers: dict[str, Tier]) -> None:
        self._handle_event(ev.TenantsChanged(tree, tiers))

    @rule(name=_APPLICATIONS, cost=st.integers(0, 3000), weight=_WEIGHTS, ingress=_INGRESSES)
    def open(self, name: str, cost: int, weight: float, ingress: str) -> None:
        self.world.applications.setdefault(name)
        tenant, tier = self.tenant_of[name], _TIER_OF[name]
        self._handle_event(
            ev.ApplicationArrived(name, "class", tenant, weight, cost, ingress, tier=tier)
        )

    @rule(
        name=_APPLICATIONS,
        sizes=st.lists(
            st.tuples(st.integers(0, 80), st.integers(1, 40), st.integers(0, 60)),
            min_size=1,
            max_size=4,
        ),
        choices=st.integers(1, 3),
        ingress=_INGRESSES,
        weight=_WEIGHTS,
        deadline_s=st.sampled_from([None, None, 0.5, 4.0, 40.0]),
        beginning=st.sampled_from(["", "x", "xy", "xz", "xyz"]),
        cached=st.sampled_from([None, 0, 8, 16]),
    )
    def submit(
        self,
        name: str,
        sizes: list[tuple[int, int, int]],
        choices: int,
        ingress: str,
        weight: float,
        deadline_s: float | None = None,
        beginning: str = "",
        cached: int | None = None,
    ) -> None:
        """Submit inferences whose predictions may be far off, some with a deadline.

        Their prompts may share prefixes with those of others, whether the replica finds them or
        not.
        """
        named = [Prefix(8 * n, beginning[:n].encode().ljust(7)) for n in range(1, 4)]
        if ingress not in self.world.live_ingresses:
            return
        if name not in self.world.applications:
            self.open(name, sum(prompt for prompt, _, _ in sizes), weight, ingress)
        for prompt, output, predicted in sizes:
            self.requests += 1
            request_id = f"q{self.requests}"
            self.world.calls[request_id] = Call(
                name,
                ingress,
                prompt,
                output,
                predicted,
                choices,
                self.world.now,
                deadline_s=deadline_s,
                prefixes=pack_prefixes(named[: len(beginning)]),
                copies=choices if beginning else 1,
                cached=cached,
            )
            self.world.submit(request_id)

    @rule(name=st.sampled_from(["a", "nobody"]))
    def submit_unknown(self, name: str) -> None:
        self.requests += 1
        request_id = f"q{self.requests}"
        self.world.calls[request_id] = Call(name, "i0", 5, 5, 5, 1, self.world.now)
        self.world.submit(request_id)

    @precondition(lambda self: self.world.calls.keys() - set(self.world.to_resubmit))
    @rule(data=st.data())
    def submit_twice(self, data: st.DataObject) -> None:
        """Repeat a submission whose answer the ingress did not receive."""
        known = sorted(self.world.calls.keys() - set(self.world.to_resubmit))
        self.world.submit(data.draw(st.sampled_from(known)))

    @precondition(lambda self: self.world.to_resubmit)
    @rule(data=st.data())
    def submit_again(self, data: st.DataObject) -> None:
        """Resubmit an inference after the ingress has detected the restart."""
        self.world.submit(data.draw(st.sampled_from(self.world.to_resubmit)), resubmitted=True)

    @precondition(lambda self: self.world.calls)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.world.cancel(data.draw(st.sampled_from(sorted(self.world.calls))))

    @precondition(lambda self: self.world.applications)
    @rule(data=st.data(), weight=_WEIGHTS)
    def reweigh(self, data: st.DataObject, weight: float) -> None:
        name = data.draw(st.sampled_from(sorted(self.world.applications)))
        self._handle_event(ev.WeightChanged(name, weight))

    @precondition(lambda self: self.world.applications)
    @rule(data=st.data(), is_so=st.booleans())
    def deprioritise(self, data: st.DataObject, is_so: bool) -> None:
        """Mark an application as beyond its quota, or as within it again."""
        name = data.draw(st.sampled_from(sorted(self.world.applications)))
        self._handle_event(ev.ApplicationDeprioritised(name, is_so))

    @precondition(lambda self: len(self.world.applications) > 1)
    @rule(data=st.data(), cancelled=st.booleans())
    def end_application(self, data: st.DataObject, cancelled: bool) -> None:
        """Close or cancel an application."""
        name = data.draw(st.sampled_from(sorted(self.world.applications)))
        self._handle_event(
            ev.ApplicationCancelled(name) if cancelled else ev.ApplicationClosed(name)
        )

    # --- replicas

    @rule(slot=_SLOTS, tokens=st.integers(0, 30), started=st.booleans(), whole=st.booleans())
    def pull(self, slot: int, tokens: int, started: bool, whole: bool = True) -> None:
        """Let a replica, perhaps a new one, report some or all of its leases and pull."""
        fake = self._replica(slot)
        if started:
            fake.start_all()
        for lease_id in list(fake.held):
            fake.make(lease_id, tokens)
        self._handle_event(fake.pull(whole=whole))

    @rule(slot=_SLOTS, data=st.data())
    def pull_in_part(self, slot: int, data: st.DataObject) -> None:
        """Report some leases as running with tokens, and others as not yet started."""
        fake = self._replica(slot)
        for lease_id in list(fake.held):
            if data.draw(st.booleans()):
                fake.held[lease_id].running = True
                fake.make(lease_id, data.draw(st.integers(0, 20)))
        self._handle_event(fake.pull())

    @rule(slot=_SLOTS)
    def answer_pull(self, slot: int) -> None:
        self._handle_event(ev.PullAnswered(self._replica(slot).replica_id))

    @rule(slot=_SLOTS, outcome=st.sampled_from([None, Outcome.FAILED]))
    def break_engine(self, slot: int, outcome: Outcome | None) -> None:
        """Fail the engine and all its leases, or end the leases with an error."""
        fake = self._replica(slot)
        for lease_id in list(fake.held):
            fake.end(lease_id, outcome)
        self._handle_event(fake.pull())

    @rule(slot=_SLOTS, cause=st.sampled_from(FailureCause), told=st.booleans())
    def lose_engine(self, slot: int, cause: FailureCause, told: bool) -> None:
        """Let an engine die; the report of the leases that it ran may be lost."""
        fake = self._replica(slot)
        fake.start_all()
        self._handle_event(fake.pull())
        ran = tuple(ev.LeaseRun(lease_id, 0.5) for lease_id in fake.held)
        fake.draining = True
        self._handle_event(ev.EngineFailed(fake.replica_id, fake.replica_id, cause, ran))
        if told:
            for lease_id in list(fake.held):
                fake.end(lease_id, None)
            self._handle_event(fake.pull())
        self.lose_replica(slot, told)

    @rule(slot=_SLOTS, data=st.data(), told=st.booleans())
    def crash(self, slot: int, data: st.DataObject, told: bool) -> None:
        """Crash a replica's process; some ingresses may have noticed before the scheduler."""
        fake = self._replica(slot)
        fake.start_all()
        self._handle_event(fake.pull())
        for lease_id in list(fake.held):
            if data.draw(st.booleans()):
                self._handle_event(ev.LeaseNacked(lease_id, ev.NackReason.CONNECTION))
        self._handle_event(ev.ReplicaCrashed(fake.replica_id))
        self.lose_replica(slot, told)

    @rule(slot=_SLOTS)
    def forget_leases(self, slot: int) -> None:
        """Let a replica lose its leases without noticing."""
        self._replica(slot).held.clear()

    @rule(slot=_SLOTS, told=st.booleans())
    def lose_replica(self, slot: int, told: bool) -> None:
        """Stop a replica; the scheduler is notified, or notices by a timeout."""
        fake = self._replica(slot)
        del self.slots[slot], self.world.replicas[fake.replica_id]
        if told:
            self._handle_event(ev.ReplicaLost(fake.replica_id))

    @rule(slot=_SLOTS)
    def drain_replica(self, slot: int) -> None:
        self._replica(slot).draining = True

    @precondition(lambda self: self.world.lease_owner)
    @rule(data=st.data(), reason=st.sampled_from(ev.NackReason))
    def refuse_lease(self, data: st.DataObject, reason: ev.NackReason) -> None:
        """Refuse a lease, which may have ended long ago."""
        lease_id = data.draw(st.sampled_from(sorted(self.world.lease_owner)))
        self._handle_event(ev.LeaseNacked(lease_id, reason))

    # --- the scheduler, the ingresses and time

    @rule(policy=_POLICIES, accounts=_ACCOUNTS, admission=_ADMISSIONS, order=_ORDERS)
    def change_policy(
        self,
        policy: str,
        accounts: dict[str, str],
        admission: str,
        order: dict[str, object],
    ) -> None:
        name, options = _policy_and_options(policy, accounts, order)
        self._handle_event(ev.PolicyChanged(name, tuple(options.items()), admission))

    @rule(recovered=st.booleans(), tokens=st.integers(0, 9))
    def restart(self, recovered: bool, tokens: int) -> None:
        """Replace the scheduler by a new leader; all replicas and ingresses may return at once."""
        self.world.restart()
        if recovered:
            for request_id in list(self.world.to_resubmit):
                self.world.submit(request_id, resubmitted=True)
            for slot in list(self.slots):
                self.pull(slot, tokens, started=False)

    @rule()
    def repeat_last_event(self) -> None:
        # A repeated opening of an ended application would open a new one.
        if not isinstance(self.last, ev.ApplicationArrived):
            self._handle_event(self.last)

    @precondition(lambda self: self.world.applications)
    @rule(data=st.data())
    def read_outlook(self, data: st.DataObject) -> None:
        """Request the reasons why an application waits, which must change no state."""
        name = data.draw(st.sampled_from(sorted(self.world.applications)))
        outlook = self.world.core.outlooks.ask([name])[name]
        times = (outlook.expected_start_s, outlook.expected_finish_s)
        assert all(q is None or 0 <= q.p10 <= q.p50 <= q.p90 for q in times)
        self.world.core.outlooks.sample()

    @rule(seconds=st.sampled_from([0.0, 0.5, 2.0, 5.0, 31.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(name=_INGRESSES)
    def kill_ingress(self, name: str) -> None:
        if len(self.world.live_ingresses) == 2:
            self.world.kill_ingress(name)

    @rule(name=_INGRESSES)
    def wake_ingress(self, name: str) -> None:
        """Send a heartbeat of an ingress that may have paused longer than its timeout."""
        self.world.live_ingresses.add(name)
        self._handle_event(ev.IngressHeartbeat(name))

    @precondition(lambda self: len(self.world.live_ingresses) == 2)
    @rule(name=_APPLICATIONS, ingress=_INGRESSES, slot=_SLOTS, wakes=st.booleans())
    def let_leases_expire(self, name: str, ingress: str, slot: int, wakes: bool) -> None:
        """Kill or pause an ingress right after its submissions, while a replica goes on pulling."""
        self.submit(name, [(9, 20, 15), (5, 5, 5)], 1, ingress, 1)
        self.world.kill_ingress(ingress)
        for _ in range(8):
            self.world.pass_time(1.5)
            self._handle_event(self._replica(slot).pull())
        if wakes:
            self.wake_ingress(ingress)

    def teardown(self) -> None:
        """Run all applications to their end, so that none may be stuck."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.replicas["last"] = FakeReplica("last", ReplicaCapacity(2000, 1, 64))
        for _ in range(60):
            if not world.calls:
                break
            for request_id in list(world.to_resubmit):
                world.submit(request_id, resubmitted=True)
            for name in sorted(world.replicas):
                fake = world.replicas[name]
                fake.start_all()
                for lease_id in list(fake.held):
                    fake.make(lease_id, 1000)
                world.handle(fake.pull())
            world.pass_time(1.0)
        for name in list(world.applications):
            world.handle(ev.ApplicationClosed(name))
        world.pass_time(
            world.core.state.timeouts.replica_s
        )  # No report of the aborted leases arrives.

        assert not world.calls, "never ended"
        assert not world.applications, "never ended"
        state = world.core.state
        assert (state.inferences, state.leases, world.core.ledger.fair_share.accounts) == (
            {},
            {},
            {},
        )

    def _replica(self, slot: int) -> FakeReplica:
        """Return a replica by number; a replacement of a dead replica has another name."""
        if slot not in self.slots:
            kv_tokens, seats, block, caches = _CAPACITIES[slot]
            self.replicas += 1
            name = f"r{self.replicas}"
            fake = FakeReplica(name, ReplicaCapacity(kv_tokens, block, seats, caches))
            self.slots[slot] = self.world.replicas[name] = fake
        return self.slots[slot]

    def _handle_event(self, event: ev.Event) -> None:
        self.last = event
        self.world.handle(event)


@pytest.mark.slow
class TestCore(CoreMachine.TestCase):  # type: ignore[misc, valid-type]  # made by hypothesis
    settings = settings(examples(150), stateful_step_count=50)
