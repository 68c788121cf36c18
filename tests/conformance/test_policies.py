"""What every policy of the table keeps to, whatever its order."""

import json
import random

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Abort, Action, EndApplication, Grant
from justitia_ray.core.entities import ReplicaCapacity
from justitia_ray.core.invariants import check
from justitia_ray.core.policies import POLICIES
from justitia_ray.core.snapshot import restore, snapshot
from justitia_ray.units import ApplicationId, LeaseId, RequestId, Tokens
from tests.core_driver import CoreDriver, aborted, ended, granted, refused
from tests.fake_replica import FakeReplica, Held

pytestmark = pytest.mark.parametrize("policy", POLICIES)


class Service:
    """Two replicas and an ingress around a core, and a seeded load on them."""

    def __init__(self, policy: str, seed: int = 7) -> None:
        self.driver = CoreDriver(SchedulerCore(policy, lease_prefix="1-"))
        self.replicas = {
            name: FakeReplica(name, ReplicaCapacity(200, 1, 4)) for name in ("r0", "r1")
        }
        self.sizes: dict[RequestId, tuple[Tokens, Tokens]] = {}
        self.holds: dict[RequestId, LeaseId] = {}
        """What the ingress was granted."""
        self.random = random.Random(seed)
        self.log: list[Action] = []

    def load(self) -> None:
        """Open six applications of two to six inferences, in waves, and close them."""
        for wave in range(3):
            for name in (f"a{wave}", f"b{wave}"):
                count = self.random.randint(2, 6)
                sizes = [
                    (self.random.randint(1, 90), self.random.randint(1, 30)) for _ in range(count)
                ]
                cost = sum(p * d for p, d in sizes) * self.random.choice([0.1, 1, 3])
                self.carry_out(self.driver.open(name, cost, weight=self.random.choice([1, 2])))
                for number, (prompt, output) in enumerate(sizes):
                    self.submit(f"{name}/{number}", name, prompt, output)
                self.carry_out(self.driver.handle(ev.ApplicationClosed(name)))
            self.step()
            self.step()

    def submit(
        self, request_id: RequestId, name: ApplicationId, prompt: Tokens, output: Tokens
    ) -> None:
        """Submit an inference whose length is predicted badly."""
        self.sizes[request_id] = (prompt, output)
        guess = self.random.randint(1, 40)
        self.carry_out(
            self.driver.submit(request_id, name, prompt=prompt, output=guess, max_output=100)
        )

    def step(self) -> None:
        """Let each replica make some tokens and pull."""
        self.driver.now += 0.5
        for fake in self.replicas.values():
            fake.start_all()
            for lease_id in list(fake.held):
                fake.make(lease_id, self.random.randint(0, 6))
            self.carry_out(self.driver.handle(fake.pull()))
            self.check_that_the_first_does_not_fit()

    def run(self) -> None:
        """Go on until nothing is left."""
        for _ in range(400):
            if not self.driver.core.state.applications:
                return
            self.step()
        raise AssertionError(f"stuck: {list(self.driver.core.state.inferences)}")

    def carry_out(self, actions: list[Action]) -> None:
        """Do what the core wants done."""
        self.log += actions
        for action in actions:
            if isinstance(action, Grant):
                self.holds[action.request_id] = action.lease_id
                held = Held(*self.sizes[action.request_id])
                self.replicas[action.replica_id].held[action.lease_id] = held
            elif isinstance(action, Abort):
                self.replicas[action.replica_id].held.pop(action.lease_id, None)

    def check_that_the_first_does_not_fit(self) -> None:
        """Hold the order to its word: if the first in order fits somewhere, it has started."""
        core = self.driver.core
        first = core.order.queue.first()
        if first is not None and not core.recovery.holding:
            head = first.waiting[0]
            replicas = core.state.replicas.values()

            assert not [r.replica_id for r in replicas if core._leases.fits(r, head)]

    def restart(self) -> None:
        """Put another scheduler in office; the ingress and the replicas come back to it."""
        old = self.driver
        record = json.loads(json.dumps(snapshot(old.core)))
        core = SchedulerCore(old.core.order.policy_name, lease_prefix="2-")
        self.driver = CoreDriver(core, old.now)
        core.recover(list(self.replicas), old.now)
        restore(core, record["clock"], record["applications"])
        check(core)
        for request_id, inference in old.core.state.inferences.items():
            actions = self.driver.submit(
                request_id,
                inference.application_id,
                prompt=inference.prompt_tokens,
                output=inference.predicted_output_tokens,
                max_output=100,
                again=True,
                age_s=old.now - inference.submitted_at,
                lease_id=self.holds.get(request_id),
            )
            self.carry_out(actions)


def test_nothing_is_lost_or_doubled(policy: str) -> None:
    """Every inference is granted once and every application ends once."""
    service = Service(policy)
    service.load()
    service.run()
    ends = [action for action in service.log if isinstance(action, EndApplication)]

    assert sorted(service.sizes) == sorted(granted(service.log))
    assert sorted({name.split("/")[0] for name in service.sizes}) == sorted(
        end.application_id for end in ends
    )
    assert len(service.sizes) == sum(end.inferences for end in ends)
    assert sum(d for _, d in service.sizes.values()) == sum(end.output_tokens for end in ends)


def test_ties_go_to_the_first_seen(policy: str) -> None:
    """Equal applications with equal inferences: arrival decides, never a hash or a heap."""
    driver = CoreDriver(SchedulerCore(policy))
    names = ["c", "a", "b", "e", "d"]
    for name in names:
        driver.open(name, 100)
        driver.submit(f"{name}1", name)

    assert [f"{name}1" for name in names] == granted(driver.pull())


def test_inferences_of_one_application_go_in_their_order(policy: str) -> None:
    """FIFO inside an application: longest or shortest first was measured and is no better."""
    driver = CoreDriver(SchedulerCore(policy))
    driver.open()
    names = [f"x{number}" for number in range(6)]
    for number, name in enumerate(names):
        driver.submit(name, prompt=60 - number * 7, output=5 + number * number % 11)

    assert names == granted(driver.pull())


def test_keys_are_all_different(policy: str) -> None:
    """A key ends in a sequence number, so that no comparison ever reaches an id."""
    driver = CoreDriver(SchedulerCore(policy))
    for name in "abcdef":
        driver.open(name, 100)
        driver.submit(f"{name}1", name)
    key = driver.core.order.policy.key
    applications = driver.core.state.applications.values()

    assert 6 == len({key(application, application.waiting[0]) for application in applications})


def test_same_events_give_the_same_actions(policy: str) -> None:
    """A run recorded in service can be replayed."""
    logs = []
    for _ in range(2):
        service = Service(policy)
        service.load()
        service.run()
        logs.append(service.log)

    assert logs[0] == logs[1]


@pytest.mark.parametrize("steps", [0, 3, 9])
def test_restart_in_the_middle_loses_nothing(policy: str, steps: int) -> None:
    """What runs goes on under its lease, what waits is granted once, every application ends."""
    service = Service(policy)
    service.load()
    for _ in range(steps):
        service.step()
    running = {name for fake in service.replicas.values() for name in fake.held}
    service.restart()
    adopted_from = len(service.log)
    service.run()

    assert running
    assert sorted(service.sizes) == sorted(granted(service.log))
    assert not running & set(aborted(service.log[adopted_from:]))
    assert len({name for name, _ in ended(service.log)}) == len(ended(service.log)) == 6


def test_cancelled_application_is_settled_and_the_others_go_on(policy: str) -> None:
    """What it was charged and did not use is refunded; its leases are aborted."""
    service = Service(policy)
    service.load()
    driver = service.driver
    share = driver.core.order.fair_share
    victim = next(
        name
        for name, application in driver.core.state.applications.items()
        if application.in_flight
    )
    attained = share.accounts[victim].attained
    leases = sorted(
        lease.lease_id
        for lease in driver.core.state.leases.values()
        if driver.inference(lease.request_id).application_id == victim
    )
    actions = driver.handle(ev.ApplicationCancelled(victim))
    service.carry_out(actions)
    (end,) = (action for action in actions if isinstance(action, EndApplication))

    assert (victim, "cancelled", attained) == (
        end.application_id,
        end.outcome.value,
        end.kv_token_time,
    )
    assert leases == sorted(aborted(actions))
    assert all(name.startswith(f"{victim}/") for name, _ in refused(actions))

    service.run()

    assert 6 == len(ended(service.log))


def test_priority_for_the_engine_is_a_whole_number(policy: str) -> None:
    """VLLM takes an int, lower first."""
    service = Service(policy)
    service.load()
    service.run()
    priorities = [action.priority for action in service.log if isinstance(action, Grant)]

    assert {int} == {type(priority) for priority in priorities}
    assert min(priorities) >= 0
