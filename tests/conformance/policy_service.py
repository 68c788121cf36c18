"""Small service around a scheduling core with a seeded load, for the policies' conformance."""

import random
from collections.abc import Mapping
from dataclasses import replace

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Abort, Action, EndApplication, Grant
from justitia_ray.core.entities import Outcome, ReplicaCapacity
from justitia_ray.core.policies import policy_path
from justitia_ray.units import ApplicationId, LeaseId, ReplicaId, RequestId, Tokens
from tests.core_driver import CoreDriver
from tests.fake_replica import FakeReplica, HeldLease

STEP_S = 0.5
"""Seconds per simulation step: a power of two, so that sums of times are exact in floats."""
_TENANTS = {"t0": 1, "t1": 2}
"""Weight of each tenant's applications; all applications of a tenant must have the same weight."""


class Service:
    """Scheduler core with two fake replicas, an ingress and a random load."""

    def __init__(self, policy: str, options: Mapping[str, object], seed: int = 7) -> None:
        self.options = dict(options)
        self.driver = CoreDriver(
            SchedulerCore(policy_path(policy), self.options, lease_prefix="1-")
        )
        self.replicas = {
            "r0": FakeReplica("r0", ReplicaCapacity(200, 1, 4)),
            "r1": FakeReplica("r1", ReplicaCapacity(150, 4, 3)),
        }
        self.submitted: dict[RequestId, ev.InferenceSubmitted] = {}
        self.outputs: dict[RequestId, Tokens] = {}
        self.holds: dict[RequestId, LeaseId] = {}
        """Lease that the ingress holds for each granted inference."""
        self.owners: dict[LeaseId, RequestId] = {}
        self._priorities: set[int] = set()
        self.random = random.Random(seed)
        self.log: list[Action] = []

    def load(self, waves: int = 3, first: int = 0) -> None:
        """Open two applications of two to six inferences in each wave, and close them."""
        for wave in range(first, first + waves):
            for name, tenant in ((f"a{wave}", "t0"), (f"b{wave}", "t1")):
                self.open(name, tenant, self.random.randint(2, 6))
                self.handle(ev.ApplicationClosed(name))
            self.step()
            self.step()

    def open(self, name: ApplicationId, tenant: str, inferences: int) -> None:
        """Open an application with a wrong cost prediction, and submit all its inferences."""
        sizes = [
            (self.random.randint(1, 90), self.random.randint(1, 30)) for _ in range(inferences)
        ]
        cost = sum(p * d for p, d in sizes) * self.random.choice([0.1, 1, 3])
        weight = _TENANTS[tenant]
        self.handle(ev.ApplicationArrived(name, "class", tenant, weight, cost, "i0", cost / 50))
        for number, (prompt, output) in enumerate(sizes):
            self.submit(f"{name}/{number}", name, prompt, output)

    def submit(
        self, request_id: RequestId, name: ApplicationId, prompt: Tokens, output: Tokens
    ) -> None:
        """Submit an inference with a wrong prediction of its output length."""
        self.outputs[request_id] = output
        event = ev.InferenceSubmitted(
            request_id=request_id,
            application_id=name,
            inference_id=request_id,
            ingress_id="i0",
            prompt_tokens=prompt,
            predicted_output_tokens=self.random.randint(1, 40),
            max_output_tokens=100,
            true_output_tokens=output,
        )
        self.submitted[request_id] = event
        self.handle(event)

    def step(self) -> None:
        """Advance the clock; each replica produces some tokens and pulls."""
        self.driver.now += STEP_S
        self.handle(ev.IngressHeartbeat("i0"))
        for fake in list(self.replicas.values()):
            fake.start_all()
            for lease_id in list(fake.held):
                fake.make(lease_id, self.random.randint(0, 6))
        self.report()

    def make_tokens(self, tokens: Tokens) -> None:
        """Let a replica produce tokens under each lease without reporting them."""
        for fake in self.replicas.values():
            fake.start_all()
            for lease_id in list(fake.held):
                fake.make(lease_id, tokens)

    def report(self) -> None:
        for fake in list(self.replicas.values()):
            self.handle(fake.pull())
            self._check_that_the_first_does_not_fit()

    def run(self) -> None:
        """Advance the clock until all applications have ended."""
        for _ in range(1200):
            if not self.driver.core.state.applications:
                return
            self.step()
        raise AssertionError(f"stuck: {list(self.driver.core.state.inferences)}")

    def handle(self, event: ev.Event) -> list[Action]:
        """Handle a scheduler event and execute its actions; check that priorities are integers."""
        actions = self.driver.handle(event)
        self.log += actions
        for action in actions:
            if isinstance(action, Grant):
                self.holds[action.request_id] = action.lease_id
                self.owners[action.lease_id] = action.request_id
                assert isinstance(action.priority, int)
                assert action.priority >= 0
                self._priorities.add(action.priority)
                prompt = self.submitted[action.request_id].prompt_tokens
                held = HeldLease(prompt, self.outputs[action.request_id])
                self.replicas[action.replica_id].held[action.lease_id] = held
            elif isinstance(action, Abort) and action.replica_id in self.replicas:
                self.replicas[action.replica_id].abort(action.lease_id)
        return actions

    def add_replica(self, replica_id: ReplicaId, capacity: ReplicaCapacity) -> None:
        self.replicas[replica_id] = FakeReplica(replica_id, capacity)

    def lose_replica(self, replica_id: ReplicaId) -> None:
        """Remove a replica with all its leases."""
        del self.replicas[replica_id]
        self.handle(ev.ReplicaLost(replica_id))

    def break_engine(self, replica_id: ReplicaId) -> None:
        """Let a replica's engine die; the inferences on it wait again."""
        fake = self.replicas[replica_id]
        for lease_id in list(fake.held):
            fake.end(lease_id, None)
        self.handle(fake.pull())

    def fail_one(self, replica_id: ReplicaId) -> None:
        """Let a replica's first lease end with an error at the next pull."""
        fake = self.replicas[replica_id]
        for lease_id in list(fake.held)[:1]:
            fake.end(lease_id, Outcome.FAILED)

    def running_ids(self) -> set[RequestId]:
        return {self.owners[name] for fake in self.replicas.values() for name in fake.held}

    def restart(self) -> None:
        """Replace the scheduler; the ingress resubmits its inferences, then the replicas report."""
        old = self.driver
        self.driver = CoreDriver(old.core, old.now)
        core = SchedulerCore(old.core.ledger.policy_name, self.options, lease_prefix="2-")
        self.driver.hand_over(core, list(self.replicas))
        for request_id, inference in old.core.state.inferences.items():
            self.handle(
                replace(
                    self.submitted[request_id],
                    resubmitted=True,
                    age_s=old.now - inference.submitted_at,
                    lease_id=self.holds.get(request_id),
                )
            )

    def executed_actions(self) -> list[object]:
        """Return the executed actions without the lease ids, which depend on the scheduler.

        Leases are replaced by their inferences, and priorities by their ranks: some are sequence
        numbers, of which resubmitted inferences have used up some.
        """
        ranks = {priority: rank for rank, priority in enumerate(sorted(self._priorities))}
        return [self._neutral_action(action, ranks) for action in self.log]

    def ends(self) -> list[EndApplication]:
        return [action for action in self.log if isinstance(action, EndApplication)]

    def _neutral_action(self, action: Action, ranks: Mapping[int, int]) -> object:
        if isinstance(action, Grant):
            return replace(action, lease_id="", priority=ranks[action.priority])
        if isinstance(action, Abort):
            return (action.replica_id, self.owners[action.lease_id])
        if isinstance(action, EndApplication):
            told = {name: getattr(action, name) for name in action.__dataclass_fields__}
            # Lag and stages are measured anew by each scheduler.
            return {name: value for name, value in told.items() if name not in ("lag", "stages")}
        return action

    def _check_that_the_first_does_not_fit(self) -> None:
        """Check that the first waiting inference fits on no replica.

        Clients that `rpm` delays have no place in the order until their next window.
        """
        core = self.driver.core
        first = core.ledger.queue.first()
        if first is not None and not core.recovery.holding:
            head = first.waiting.first
            replicas = core.state.replicas.values()

            placement = core._leases.placement

            assert not [r.replica_id for r in replicas if placement.fits(r, head)]
