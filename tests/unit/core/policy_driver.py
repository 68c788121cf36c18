"""A driver for tests of policies: clients by tenant, one replica, and a restart in the middle."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from justitia_ray.core import SchedulerCore, Timeouts
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, Grant
from justitia_ray.core.entities import Outcome
from justitia_ray.core.invariants import check
from justitia_ray.core.snapshot import restore, snapshot
from justitia_ray.units import ApplicationId, LeaseId, RequestId, Tokens
from tests.core_driver import CoreDriver, granted

_NEVER_S = 1e9


class PolicyDriver(CoreDriver):
    """A core with one replica that reports everything it holds in every pull."""

    def __init__(self, policy: str, options: Mapping[str, object] | None = None) -> None:
        self.policy_name, self.policy_options = policy, dict(options or {})
        self.made: dict[RequestId, Tokens] = {}
        """Tokens made so far by what holds a lease."""
        super().__init__(self._core("1-"), now=0.0)

    def handle(self, event: ev.Event) -> list[Action]:
        """Feed an event in, and note what is granted."""
        actions = super().handle(event)
        self.made |= {a.request_id: 0 for a in actions if isinstance(a, Grant)}
        return actions

    def arrive(
        self, application_id: ApplicationId, *requests: RequestId, tenant: str = "", cost: float = 9
    ) -> None:
        """Open an application, of a tenant of its own by default, and submit inferences of it."""
        tenant = tenant or application_id
        self.handle(ev.ApplicationArrived(application_id, "class", tenant, 1, cost, "i0"))
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

    def close(self, application_id: ApplicationId) -> None:
        """Close an application."""
        self.handle(ev.ApplicationClosed(application_id))

    def state(self) -> dict[str, Any]:
        """Return what the policy has stored, as it comes back from the store."""
        stored: dict[str, Any] = json.loads(json.dumps(self.core.order.policy.state()))
        return stored

    def restart(
        self,
        options: Mapping[str, object] | None = None,
        *,
        seats: int = 1,
        lost: Sequence[RequestId] = (),
        reverse: bool = False,
    ) -> list[RequestId]:
        """Put another scheduler in office; return what it grants at the replica's first report.

        Args:
            options: Its options, if they are others.
            seats: Seats of the replica.
            lost: Inferences whose leases have lapsed meanwhile.
            reverse: Submit what is outstanding in the reverse order.
        """
        old, record = self.core, json.loads(json.dumps(snapshot(self.core)))
        self.policy_options = dict(options or self.policy_options)
        self.core = self._core("2-")
        self.core.recover(["r0"], self.now)
        restore(self.core, record["clock"], record["applications"])
        check(self.core)
        outstanding = list(old.state.inferences.values())
        for inference in outstanding[::-1] if reverse else outstanding:
            self.submit(
                inference.request_id,
                inference.application_id,
                prompt=inference.prompt_tokens,
                output=inference.predicted_output_tokens,
                max_output=inference.max_output_tokens,
                again=True,
                age_s=self.now - inference.submitted_at,
                lease_id=None if inference.request_id in lost else inference.lease_id,
            )
        self.made = {name: made for name, made in self.made.items() if name not in lost}
        leases = {name: old.state.inferences[name].lease_id for name in self.made}
        progress = {lease: self.made[name] for name, lease in leases.items() if lease is not None}
        return self._report(seats, progress, [])

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
            self.policy_name,
            self.policy_options,
            timeouts=Timeouts(_NEVER_S, _NEVER_S, _NEVER_S, _NEVER_S),
            lease_prefix=lease_prefix,
        )
