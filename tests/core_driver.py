"""Driver of a `SchedulerCore` in tests: short calls, its own clock, invariants after each event."""

import json
from collections.abc import Mapping, Sequence

from justitia_ray.core import SchedulerCore, Timeouts
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Abort, Action, EndApplication, Grant, Refuse
from justitia_ray.core.clock.fair_share import Account
from justitia_ray.core.entities import Application, Inference, Outcome, ReplicaCapacity
from justitia_ray.core.invariants import check
from justitia_ray.core.prefill_account import PrefillAccount
from justitia_ray.core.records import Record
from justitia_ray.core.snapshot import restore, snapshot
from justitia_ray.units import KvTokenTime, LeaseId, ReplicaId, RequestId, Seconds, Tokens

PATIENT = Timeouts(1e9, 1e9, 1e9, 1e9)
"""Timeouts so long that no replica or ingress is taken for dead."""


class CoreDriver:
    """Scheduler core with a clock; each method handles one event and returns the actions."""

    def __init__(self, core: SchedulerCore | None = None, now: Seconds = 100.0) -> None:
        self.core = core if core is not None else SchedulerCore()
        self.now = now

    def handle(self, event: ev.Event) -> list[Action]:
        """Handle an event at the clock's current time."""
        actions = self.core.handle(event, self.now)
        check(self.core)
        return actions

    def wait(self, seconds: Seconds) -> list[Action]:
        """Advance the clock without an event."""
        self.now += seconds
        return self.handle(ev.DeadlinePassed())

    def open(
        self,
        application_id: str = "a",
        cost: KvTokenTime = 100,
        *,
        weight: float = 1,
        ingress_id: str = "i0",
        tenant: str = "tenant",
        recognized_by: str = "",
        idle_s: Seconds | None = None,
    ) -> list[Action]:
        return self.handle(
            ev.ApplicationArrived(
                application_id,
                "class",
                tenant,
                weight,
                cost,
                ingress_id,
                recognized_by=recognized_by,
                idle_s=idle_s,
            )
        )

    def submit(
        self,
        request_id: RequestId,
        application_id: str = "a",
        *,
        prompt: Tokens = 10,
        output: Tokens = 10,
        max_output: Tokens | None = None,
        choices: int = 1,
        ingress_id: str = "i0",
        resubmitted: bool = False,
        age_s: Seconds = 0.0,
        lease_id: LeaseId | None = None,
        stage: int | None = None,
        remaining: KvTokenTime | None = None,
    ) -> list[Action]:
        """Submit an inference with a predicted output of `output` tokens."""
        return self.handle(
            ev.InferenceSubmitted(
                request_id=request_id,
                application_id=application_id,
                inference_id=request_id,
                ingress_id=ingress_id,
                prompt_tokens=prompt,
                predicted_output_tokens=output,
                max_output_tokens=output if max_output is None else max_output,
                choices=choices,
                resubmitted=resubmitted,
                age_s=age_s,
                lease_id=lease_id,
                stage=stage,
                remaining_kv_token_time=remaining,
            )
        )

    def pull(
        self,
        replica_id: str = "r0",
        progress: Mapping[LeaseId, Tokens] | Sequence[ev.LeaseProgress] | None = (),
        finished: Mapping[LeaseId, Tokens] | Sequence[ev.LeaseFinished] = (),
        *,
        kv: Tokens = 1000,
        seats: int = 256,
        block: Tokens = 1,
        free: Tokens | None = None,
        draining: bool = False,
        stalled: bool = False,
        hangs: bool = False,
        connected: bool = False,
        caches: bool = False,
        host: Tokens = 0,
    ) -> list[Action]:
        """Pull for a replica; `progress` and `finished` may map lease ids to output tokens.

        With `progress=None` only the ends are reported.
        """
        if isinstance(progress, Mapping):
            progress = [ev.LeaseProgress(name, 0, n, running=True) for name, n in progress.items()]
        if isinstance(finished, Mapping):
            finished = [
                ev.LeaseFinished(name, 0, n, Outcome.FINISHED) for name, n in finished.items()
            ]
        return self.handle(
            ev.ReplicaPulled(
                replica_id,
                ReplicaCapacity(kv, block, seats, caches_prefixes=caches, host_kv_tokens=host),
                kv if free is None else free,
                None if progress is None else tuple(progress),
                tuple(finished),
                draining,
                stalled,
                hangs,
                connected,
            )
        )

    def end(self, request_id: RequestId, prompt: Tokens, output: Tokens = 10) -> list[Action]:
        """Report that an inference has finished, and pull the next inference for its replica."""
        lease = self.core.state.leases[self.lease_of(request_id)]
        ended = ev.LeaseFinished(lease.lease_id, prompt, output, Outcome.FINISHED)
        return self.handle(ev.ReplicaReported(lease.replica_id, (), (ended,), asks=True))

    def last_word(
        self, *lease_ids: LeaseId, output: Tokens = 0, prompt: Tokens = 0, replica_id: str = "r0"
    ) -> list[Action]:
        """Report the tokens that a replica made under leases before it aborted them."""
        ends = [ev.LeaseFinished(name, prompt, output, None) for name in lease_ids]
        return self.pull(replica_id, None, ends)

    def record(self) -> Record:
        """Return the core's stored state after a round trip through JSON."""
        stored: Record = json.loads(json.dumps(snapshot(self.core)))
        return stored

    def hand_over(
        self,
        core: SchedulerCore,
        replicas: Sequence[ReplicaId] = (),
        record: Record | None = None,
    ) -> SchedulerCore:
        """Replace the core by one that restores the stored state, and return the previous core.

        Args:
            core: A core that has handled nothing.
            replicas: Those that it knows of: it holds grants until they have reported.
            record: What is stored, if not all that the one before knew.
        """
        record = self.record() if record is None else record
        old, self.core = self.core, core
        core.recover(replicas, self.now)
        restore(core, record["clock"], record["applications"])
        check(core)
        return old

    def resubmit(self, inference: Inference, lease_id: LeaseId | None) -> list[Action]:
        """Resubmit an inference that a previous scheduler had granted, with its lease."""
        return self.submit(
            inference.request_id,
            inference.application_id,
            prompt=inference.prompt_tokens,
            output=inference.predicted_output_tokens,
            max_output=inference.max_output_tokens,
            resubmitted=True,
            age_s=self.now - inference.submitted_at,
            lease_id=lease_id,
        )

    def lease_of(self, request_id: RequestId) -> LeaseId:
        lease_id = self.inference(request_id).lease_id
        assert lease_id is not None
        return lease_id

    def inference(self, request_id: RequestId) -> Inference:
        return self.core.state.inferences[request_id]

    def application(self, application_id: str = "a") -> Application:
        return self.core.state.applications[application_id]

    def prefill(self, application_id: str = "a") -> PrefillAccount:
        prefill = self.application(application_id).prefill
        assert prefill is not None
        return prefill

    def account(self, application_id: str = "a") -> Account:
        return self.core.ledger.fair_share.accounts[application_id]

    def waiting(self, application_id: str = "a") -> list[RequestId]:
        return [inference.request_id for inference in self.application(application_id).waiting]


def granted(actions: Sequence[Action]) -> list[RequestId]:
    return [action.request_id for action in actions if isinstance(action, Grant)]


def aborted(actions: Sequence[Action]) -> list[LeaseId]:
    return [action.lease_id for action in actions if isinstance(action, Abort)]


def refused(actions: Sequence[Action]) -> list[tuple[RequestId, str]]:
    return [(a.request_id, a.reason.value) for a in actions if isinstance(a, Refuse)]


def ended(actions: Sequence[Action]) -> list[tuple[str, str]]:
    return [(a.application_id, a.outcome.value) for a in actions if isinstance(a, EndApplication)]
