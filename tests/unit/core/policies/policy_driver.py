"""Driver for tests of policies: clients by tenant, one replica, and restarts of the scheduler."""

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
    """Driver of a core with one replica, for tests of policies.

    `step` reports every running inference, `run` and `finish` report a single one.
    """

    def __init__(self, policy: str, options: Mapping[str, object] | None = None) -> None:
        self.policy_name, self.policy_options = policy_path(policy), dict(options or {})
        self.made: dict[RequestId, Tokens] = {}
        """Tokens generated so far by each leased inference; only `step` updates them."""
        self.holds: dict[RequestId, LeaseId] = {}
        """Last granted lease of each inference, kept over restarts of the scheduler."""
        super().__init__(self._create_core("1-"), now=0.0)

    def handle(self, event: ev.Event) -> list[Action]:
        """Feed an event to the core and record the grants."""
        actions = super().handle(event)
        leases = {a.request_id: a.lease_id for a in actions if isinstance(a, Grant)}
        self.made |= dict.fromkeys(leases, 0)
        self.holds |= leases
        return actions

    @property
    def vtc(self) -> VtcPolicy:
        """Return the active policy, which must be one with a counter per client."""
        policy = self.core.ledger.policy
        assert isinstance(policy, VtcPolicy)
        return policy

    def counter(self, client: ClientId) -> KvTokenTime:
        """Return the counter of a client; 0 for an unknown client."""
        return self.vtc.counters.level(client)

    def open_and_submit(
        self, application_id: ApplicationId, *requests: RequestId, tenant: str = "", cost: float = 9
    ) -> None:
        """Open an application, by default of its own tenant, and submit inferences."""
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
        """Generate tokens, report them, and return the new grants.

        Args:
            seats: Seats of the replica.
            make: New tokens by request id.
            finish: Ids of the requests that finish.
            requeue: Ids of the requests that the replica gives back unfinished.
        """
        for request_id, tokens in (make or {}).items():
            self.made[request_id] += tokens
        ends = {**dict.fromkeys(finish, Outcome.FINISHED), **dict.fromkeys(requeue)}
        finished = [
            ev.LeaseFinished(self.lease_of(name), 0, self.made.pop(name), outcome)
            for name, outcome in ends.items()
        ]
        progress = {self.lease_of(name): tokens for name, tokens in self.made.items()}
        return self._report_and_pull(seats, progress, finished)

    def drain(self, *, make: Tokens = 1) -> list[RequestId]:
        """Run all inferences on one seat, with `output` tokens each; return their order."""
        order = self.step()
        while self.core.state.inferences:
            (running,) = self.made
            order += self.step(make={running: make}, finish=[running])
        return order

    def report_tokens(
        self, request_id: RequestId, tokens: Tokens, seats: int = 1
    ) -> list[RequestId]:
        """Report the progress of an inference in tokens, and return the new grants."""
        return granted(self.pull(progress={self.holds[request_id]: tokens}, seats=seats))

    def finish(self, request_id: RequestId, tokens: Tokens, seats: int = 1) -> list[RequestId]:
        """Report the end of the only inference under lease, and return the new grants."""
        return granted(self.pull(finished={self.holds[request_id]: tokens}, seats=seats))

    def close(self, application_id: ApplicationId) -> None:
        self.handle(ev.ApplicationClosed(application_id))

    def state(self) -> dict[str, Any]:
        """Return the policy's state as read back from the store."""
        stored: dict[str, Any] = json.loads(json.dumps(clock_record(self.core)["counted"]))
        return stored

    def restart(
        self,
        options: Mapping[str, object] | None = None,
        *,
        seats: int = 1,
        lost: Sequence[RequestId] = (),
    ) -> list[RequestId]:
        """Replace the scheduler; return the grants of the new one at the replica's first report.

        Args:
            options: Options of the new scheduler; None: the old ones.
            seats: Seats of the replica.
            lost: Inferences whose leases expired during the restart.
        """
        self.policy_options = dict(options or self.policy_options)
        self.take_over(lost=lost)
        self.made = {name: made for name, made in self.made.items() if name not in lost}
        progress = {self.holds[name]: made for name, made in self.made.items()}
        return self._report_and_pull(seats, progress, [])

    def take_over(
        self,
        *,
        submit: bool = True,
        lost: Sequence[RequestId] = (),
        record: Record | None = None,
    ) -> None:
        """Replace the scheduler by one to which all outstanding inferences are resubmitted."""
        old = self.hand_over(self._create_core("2-"), ["r0"], record)
        for inference in old.state.inferences.values() if submit else ():
            self.resubmit(inference, None if inference.request_id in lost else inference.lease_id)

    def _report_and_pull(
        self,
        seats: int,
        progress: Mapping[LeaseId, Tokens],
        finished: Sequence[ev.LeaseFinished],
    ) -> list[RequestId]:
        answer = self.pull(progress=progress, finished=finished, kv=10**6, seats=seats)
        return granted(answer + self.handle(ev.PullAnswered("r0")))

    def _create_core(self, lease_prefix: str) -> SchedulerCore:
        return SchedulerCore(
            self.policy_name, self.policy_options, timeouts=PATIENT, lease_prefix=lease_prefix
        )


def driver_with_two_clients(
    policy: str = "vtc", options: Mapping[str, object] | None = None
) -> PolicyDriver:
    """Return a driver with clients a and b without inferences, and a replica of one seat."""
    driver = PolicyDriver(policy, options)
    driver.open("a")
    driver.open("b")
    driver.pull(seats=1)
    return driver


def driver_with_two_inferences() -> PolicyDriver:
    """Return a driver under VTC in which a1 runs, a2 waits, and b has no inference yet."""
    driver = driver_with_two_clients()
    driver.submit("a1", "a", prompt=10)
    driver.submit("a2", "a", prompt=10)
    return driver
