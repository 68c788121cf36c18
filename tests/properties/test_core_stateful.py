"""Random lives of a core: failures, repetitions and restarts, with the books kept outside it."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from justitia_ray.core import events as ev
from justitia_ray.core.admission import ADMISSIONS
from justitia_ray.core.entities import Outcome
from justitia_ray.core.policies import CLOCKS, POLICIES
from tests.properties.core_world import Call, CoreWorld, replica

_APPLICATIONS = st.sampled_from("abcd")
_REPLICAS = st.sampled_from(["r0", "r1", "r2"])
_INGRESSES = st.sampled_from(["i0", "i1"])
_WEIGHTS = st.sampled_from([1, 2, 0.5])
_ORDERS = {
    "policy": st.sampled_from(sorted(POLICIES)),
    "clock": st.sampled_from(CLOCKS),
    "admission": st.sampled_from(sorted(ADMISSIONS)),
}


class CoreMachine(RuleBasedStateMachine):
    """What may happen; every step is checked by the world."""

    @initialize(**_ORDERS)
    def start(self, policy: str, clock: str, admission: str) -> None:
        """Take office."""
        self.world = CoreWorld(policy, {"clock": clock}, admission)
        self.requests = 0
        self.last: ev.Event = ev.DeadlinePassed()

    # --- applications and their inferences

    @rule(name=_APPLICATIONS, cost=st.integers(0, 3000), weight=_WEIGHTS, ingress=_INGRESSES)
    def open(self, name: str, cost: int, weight: float, ingress: str) -> None:
        """An application arrives, or is opened again."""
        self.world.applications.setdefault(name)
        self._do(ev.ApplicationArrived(name, "class", "tenant", weight, cost, ingress))

    @rule(
        name=_APPLICATIONS,
        prompt=st.integers(0, 80),
        output=st.integers(1, 40),
        predicted=st.integers(0, 60),
        choices=st.integers(1, 3),
        ingress=_INGRESSES,
    )
    def submit(
        self, name: str, prompt: int, output: int, predicted: int, choices: int, ingress: str
    ) -> None:
        """An inference wants to run, with a prediction that may be far off."""
        self.requests += 1
        request_id = f"q{self.requests}"
        if ingress in self.world.live_ingresses:
            self.world.calls[request_id] = Call(
                name, ingress, prompt, output, predicted, choices, self.world.now
            )
            self.world.submit(request_id)

    @precondition(lambda self: self.world.calls.keys() - set(self.world.to_resubmit))
    @rule(data=st.data())
    def submit_twice(self, data: st.DataObject) -> None:
        """An ingress did not hear the answer."""
        known = sorted(self.world.calls.keys() - set(self.world.to_resubmit))
        self.world.submit(data.draw(st.sampled_from(known)))

    @precondition(lambda self: self.world.to_resubmit)
    @rule(data=st.data())
    def submit_again(self, data: st.DataObject) -> None:
        """An ingress has noticed the restart."""
        self.world.submit(data.draw(st.sampled_from(self.world.to_resubmit)), again=True)

    @precondition(lambda self: self.world.calls)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """A caller is gone."""
        self.world.cancel(data.draw(st.sampled_from(sorted(self.world.calls))))

    @rule(name=_APPLICATIONS, weight=_WEIGHTS)
    def reweigh(self, name: str, weight: float) -> None:
        """A weight changes."""
        self._do(ev.WeightChanged(name, weight))

    @rule(name=_APPLICATIONS)
    def close(self, name: str) -> None:
        """An owner will submit no more."""
        self._do(ev.ApplicationClosed(name))

    @rule(name=_APPLICATIONS)
    def cancel_application(self, name: str) -> None:
        """An owner wants nothing of it any more."""
        self._do(ev.ApplicationCancelled(name))

    # --- replicas

    @rule(
        name=_REPLICAS,
        kv_tokens=st.sampled_from([60, 150, 400]),
        seats=st.integers(1, 5),
        block=st.sampled_from([1, 4]),
    )
    def join(self, name: str, kv_tokens: int, seats: int, block: int) -> None:
        """A replica is there for the first time."""
        if name not in self.world.replicas and name not in self.world.core.state.replicas:
            self.world.replicas[name] = replica(name, kv_tokens, seats, block)
            self._do(self.world.replicas[name].pull())

    @rule(name=_REPLICAS, tokens=st.integers(0, 30), started=st.booleans())
    def pull(self, name: str, tokens: int, started: bool) -> None:
        """A replica reports and asks for work."""
        fake = self.world.replicas.get(name)
        if fake is not None:
            if started:
                fake.start_all()
            for lease_id in list(fake.held):
                fake.make(lease_id, tokens)
            self._do(fake.pull())

    @rule(name=_REPLICAS)
    def answer(self, name: str) -> None:
        """The answer to a pull leaves."""
        self._do(ev.PullAnswered(name))

    @rule(name=_REPLICAS, outcome=st.sampled_from([None, Outcome.FAILED]))
    def break_engine(self, name: str, outcome: Outcome | None) -> None:
        """The engine dies under its leases, or answers them with an error."""
        fake = self.world.replicas.get(name)
        if fake is not None:
            for lease_id in list(fake.held):
                fake.end(lease_id, outcome)
            self._do(fake.pull())

    @rule(name=_REPLICAS)
    def forget_leases(self, name: str) -> None:
        """A replica loses what it held and does not know it."""
        if name in self.world.replicas:
            self.world.replicas[name].held.clear()

    @rule(name=_REPLICAS, told=st.booleans())
    def lose(self, name: str, told: bool) -> None:
        """A replica dies; the scheduler hears of it or finds out."""
        self.world.replicas.pop(name, None)
        if told:
            self._do(ev.ReplicaLost(name))

    @rule(name=_REPLICAS)
    def drain(self, name: str) -> None:
        """A replica will take no new lease."""
        if name in self.world.replicas:
            self.world.replicas[name].draining = True

    @precondition(lambda self: self.world.lease_owner)
    @rule(data=st.data(), gone=st.booleans(), name=_REPLICAS)
    def refuse(self, data: st.DataObject, gone: bool, name: str) -> None:
        """An ingress cannot use a lease, or speaks of one long gone."""
        lease_id = data.draw(st.sampled_from(sorted(self.world.lease_owner)))
        self._do(ev.LeaseRefused(lease_id, name, gone))

    # --- the scheduler, the ingresses and time

    @rule(**_ORDERS)
    def change_policy(self, policy: str, clock: str, admission: str) -> None:
        """The operator wants another order."""
        self._do(ev.PolicyChanged(policy, (("clock", clock),), admission))

    @rule()
    def restart(self) -> None:
        """The scheduler dies and another takes office."""
        self.world.restart()

    @rule()
    def repeat(self) -> None:
        """The last event comes a second time."""
        if not isinstance(self.last, ev.ApplicationArrived):  # it may have ended: a new one
            self._do(self.last)

    @rule(seconds=st.sampled_from([0.0, 0.5, 2.0, 5.0]))
    def pass_time(self, seconds: float) -> None:
        """Nothing happens for a while."""
        self.world.pass_time(seconds)

    @rule(name=_INGRESSES)
    def kill_ingress(self, name: str) -> None:
        """An ingress dies; at least one lives."""
        if len(self.world.live_ingresses) == 2:
            self.world.kill_ingress(name)

    def teardown(self) -> None:
        """Let everything run to its end: nothing may be stuck."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.replicas["last"] = replica("last", 2000, 64, 1)
        for _ in range(60):
            for request_id in list(world.to_resubmit):
                world.submit(request_id, again=True)
            for name in sorted(world.replicas):
                fake = world.replicas[name]
                fake.start_all()
                for lease_id in list(fake.held):
                    fake.make(lease_id, 1000)
                world.handle(fake.pull())
            world.pass_time(1.0)
        for name in list(world.applications):
            world.handle(ev.ApplicationClosed(name))

        assert not world.calls, "never ended"
        assert not world.applications, "never ended"
        state = world.core.state
        assert (state.inferences, state.leases, world.core.order.fair_share.accounts) == (
            {},
            {},
            {},
        )

    def _do(self, event: ev.Event) -> None:
        self.last = event
        self.world.handle(event)


TestCore = CoreMachine.TestCase
TestCore.settings = settings(max_examples=80, stateful_step_count=40)
