"""A driver for tests of policies: clients by tenant, one replica, and a restart in the middle."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, Grant
from justitia_ray.core.entities import Outcome
from justitia_ray.core.policies import policy_path
from justitia_ray.core.policies.vtc import VtcPolicy
from justitia_ray.core.records import Record
from justitia_ray.core.snapshot import clock_record
from justitia_ray.units import ApplicationId, ClientId, KvTokenTime, LeaseId, RequestId, Tokens
from tests.core_driver import PATIENT, CoreDriver, granted


class PolicyDriver(CoreDriver):
    """A core with one replica: `step` reports everything it holds, `run` and `finish` one of it."""

    def __init__(self, policy: str, options: Mapping[str, object] | None = None) -> None:
        self.policy_name, self.policy_options = policy_path(policy), dict(options or {})
        self.made: dict[RequestId, Tokens] = {}
        """Tokens made so far by what holds a lease; `step` counts them."""
        self.holds: dict[RequestId, LeaseId] = {}
        """The lease last granted to each inference, which outlives the scheduler."""
        super().__init__(self._core("1-"), now=0.0)

    def handle(self, event: ev.Event) -> list[Action]:
        """Feed an event in, and note what is granted."""
        actions = super().handle(event)
        leases = {a.request_id: a.lease_id for a in actions if isinstance(a, Grant)}
        self.made |= dict.fromkeys(leases, 0)
        self.holds |= leases
        return actions

    @property
    def vtc(self) -> VtcPolicy:
        """The policy in force, one that keeps a counter for each client."""
        policy = self.core.ledger.policy
        assert isinstance(policy, VtcPolicy)
        return policy

    def counter(self, client: ClientId) -> KvTokenTime:
        """Return the counter of a client; 0 if it is not known."""
        return self.vtc.counters.level(client)

    def arrive(
        self, application_id: ApplicationId, *requests: RequestId, tenant: str = "", cost: float = 9
    ) -> None:
        """Open an application, of a tenant of its own by default, and submit inferences of it."""
        self.open(application_id, cost, tenant=tenant or application_id)
        for request_id in requests:
            self.submit(request_id, application_id)

    def step(
        self,
        seats: int = 1,
        make: Mapping[RequestId, Tokens] | None = None,
        finish: Sequence[RequestId] = (),
        requeue: Sequence[RequestId] = (),
    ) -> list[RequestId]:
        """Make tokens, report, and return what is granted.

        Args:
            seats: Seats of the replica.
            make: How many tokens each makes.
            finish: What ends then.
            requeue: What the replica gives back then.
        """
        for request_id, tokens in (make or {}).items():
            self.made[request_id] += tokens
        ends = {**dict.fromkeys(finish, Outcome.FINISHED), **dict.fromkeys(requeue)}
        finished = [
            ev.LeaseFinished(self.lease_of(name), 0, self.made.pop(name), outcome)
            for name, outcome in ends.items()
        ]
        progress = {self.lease_of(name): tokens for name, tokens in self.made.items()}
        return self._report(seats, progress, finished)

    def drain(self, *, make: Tokens = 1) -> list[RequestId]:
        """Run everything on one seat, each inference so many tokens long; return the order."""
        order = self.step()
        while self.core.state.inferences:
            (running,) = self.made
            order += self.step(make={running: make}, finish=[running])
        return order

    def run(self, request_id: RequestId, tokens: Tokens, seats: int = 1) -> list[RequestId]:
        """Report that an inference goes on and has made so many tokens; return what is granted."""
        return granted(self.pull(progress={self.holds[request_id]: tokens}, seats=seats))

    def finish(self, request_id: RequestId, tokens: Tokens, seats: int = 1) -> list[RequestId]:
        """Report that the only inference under lease has ended; return what is granted."""
        return granted(self.pull(finished={self.holds[request_id]: tokens}, seats=seats))

    def close(self, application_id: ApplicationId) -> None:
        """Close an application."""
        self.handle(ev.ApplicationClosed(application_id))

    def state(self) -> dict[str, Any]:
        """Return what the policy has stored, as it comes back from the store."""
        stored: dict[str, Any] = json.loads(json.dumps(clock_record(self.core)["counted"]))
        return stored

    def restart(
        self,
        options: Mapping[str, object] | None = None,
        *,
        seats: int = 1,
        lost: Sequence[RequestId] = (),
    ) -> list[RequestId]:
        """Put another scheduler in office; return what it grants at the replica's first report.

        Args:
            options: Its options, if they are others.
            seats: Seats of the replica.
            lost: Inferences whose leases have expired meanwhile.
        """
        self.policy_options = dict(options or self.policy_options)
        self.take_over(lost=lost)
        self.made = {name: made for name, made in self.made.items() if name not in lost}
        progress = {self.holds[name]: made for name, made in self.made.items()}
        return self._report(seats, progress, [])

    def take_over(
        self,
        *,
        submit: bool = True,
        lost: Sequence[RequestId] = (),
        record: Record | None = None,
    ) -> None:
        """Put another scheduler in office, to which everything outstanding is submitted again."""
        old = self.hand_over(self._core("2-"), ["r0"], record)
        for inference in old.state.inferences.values() if submit else ():
            self.resubmit(inference, None if inference.request_id in lost else inference.lease_id)

    def _report(
        self,
        seats: int,
        progress: Mapping[LeaseId, Tokens],
        finished: Sequence[ev.LeaseFinished],
    ) -> list[RequestId]:
        """Pull, and take the answer at once: nothing is granted before the next."""
        answer = self.pull(progress=progress, finished=finished, kv=10**6, seats=seats)
        return granted(answer + self.handle(ev.PullAnswered("r0")))

    def _core(self, lease_prefix: str) -> SchedulerCore:
        return SchedulerCore(
            self.policy_name, self.policy_options, timeouts=PATIENT, lease_prefix=lease_prefix
        )


def two_clients(policy: str = "vtc", options: Mapping[str, object] | None = None) -> PolicyDriver:
    """Return a driver with a and b, which have submitted nothing, and a replica of one seat."""
    driver = PolicyDriver(policy, options)
    driver.open("a")
    driver.open("b")
    driver.pull(seats=1)
    return driver


def two_of_a() -> PolicyDriver:
    """Return a driver under VTC in which a1 runs, a2 waits, and b has submitted nothing yet."""
    driver = two_clients()
    driver.submit("a1", "a", prompt=10)
    driver.submit("a2", "a", prompt=10)
    return driver
