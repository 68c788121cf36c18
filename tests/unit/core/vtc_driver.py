"""A driver for the policies that keep a counter for each client."""

import json
from collections.abc import Mapping

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, Grant
from justitia_ray.core.invariants import check
from justitia_ray.core.policies.vtc import VtcPolicy
from justitia_ray.core.snapshot import Record, restore, snapshot
from justitia_ray.units import ClientId, KvTokenTime, LeaseId, RequestId, Tokens
from tests.core_driver import CoreDriver, granted


class VtcDriver(CoreDriver):
    """A core with one replica of one seat, unless a test pulls otherwise."""

    def __init__(self, policy: str = "vtc", options: Mapping[str, object] | None = None) -> None:
        self.policy_name = policy
        self.policy_options = dict(options or {})
        self.holds: dict[RequestId, LeaseId] = {}
        """The lease last granted to each inference, which outlives the scheduler."""
        super().__init__(SchedulerCore(policy, self.policy_options, lease_prefix="1-"))

    def handle(self, event: ev.Event) -> list[Action]:
        """Feed an event in, and note what is granted."""
        actions = super().handle(event)
        self.holds |= {a.request_id: a.lease_id for a in actions if isinstance(a, Grant)}
        return actions

    @property
    def policy(self) -> VtcPolicy:
        """The policy in force."""
        policy = self.core.order.policy
        assert isinstance(policy, VtcPolicy)
        return policy

    def counter(self, client: ClientId) -> KvTokenTime:
        """Return the counter of a client; 0 if it is not known."""
        return self.policy.counters.level(client)

    def arrive(self, application_id: str, tenant: str, weight: float = 1) -> None:
        """Open an application of a tenant."""
        self.handle(ev.ApplicationArrived(application_id, "class", tenant, weight, 100, "i0"))

    def run(self, request_id: RequestId, tokens: Tokens, seats: int = 1) -> list[RequestId]:
        """Report that an inference goes on and has made so many tokens; return what is granted."""
        return granted(self.pull(progress={self.holds[request_id]: tokens}, seats=seats))

    def finish(self, request_id: RequestId, tokens: Tokens, seats: int = 1) -> list[RequestId]:
        """Report that the only inference under lease has ended; return what is granted."""
        return granted(self.pull(finished={self.holds[request_id]: tokens}, seats=seats))

    def record(self) -> Record:
        """Return the snapshot as it comes back from the store."""
        stored: Record = json.loads(json.dumps(snapshot(self.core)))
        return stored

    def restart(self, *, submit: bool = True, record: Record | None = None) -> None:
        """Put another scheduler in office, to which everything outstanding is submitted again."""
        old = self.core
        record = self.record() if record is None else record
        self.core = SchedulerCore(self.policy_name, self.policy_options, lease_prefix="2-")
        self.core.recover(["r0"], self.now)
        restore(self.core, record["clock"], record["applications"])
        check(self.core)
        for inference in old.state.inferences.values() if submit else ():
            self.submit(
                inference.request_id,
                inference.application_id,
                prompt=inference.prompt_tokens,
                output=inference.predicted_output_tokens,
                max_output=inference.max_output_tokens,
                again=True,
                age_s=self.now - inference.submitted_at,
                lease_id=inference.lease_id,
            )


def two_clients() -> VtcDriver:
    """Return a driver in which a1 runs, a2 waits, and b has submitted nothing yet."""
    driver = VtcDriver()
    driver.open("a")
    driver.open("b")
    driver.pull(seats=1)
    driver.submit("a1", "a", prompt=10)
    driver.submit("a2", "a", prompt=10)
    return driver
