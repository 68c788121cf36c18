"""Model of replicas and ingresses around a core that checks the core's rules after every event."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Abort, Action, EndApplication, Grant, Refuse
from justitia_ray.core.entities import Application
from justitia_ray.core.invariants import check, expected_first, same_key
from justitia_ray.core.policies.guarded.policy import GuardedPolicy
from justitia_ray.core.policies.guarded.rules import comes_first
from justitia_ray.core.snapshot import restore, snapshot
from justitia_ray.cost import PrefillCost, choices_kv_token_time
from justitia_ray.units import ApplicationId, IngressId, LeaseId, ReplicaId, RequestId, Tokens
from tests.fake_replica import FakeReplica, HeldLease


@dataclass
class Call:
    """Inference as its ingress knows it."""

    application_id: ApplicationId
    ingress_id: IngressId
    prompt: Tokens
    output: Tokens
    predicted: Tokens
    choices: int
    submitted_at: float
    lease_id: LeaseId | None = None
    deadline_s: float | None = None
    prefixes: bytes = b""
    copies: int = 1
    cached: Tokens | None = None
    """Prompt tokens that each replica finds in its prefix cache; None if it does not report any."""
    seen: Tokens = 0
    """Largest number of output tokens that a replica has reported or returned on abort."""
    read: Tokens = 0
    """Prompt tokens that were computed before the inference was aborted."""


class CoreWorld:
    """Scheduler core with replicas and ingresses, checked against invariants after every event."""

    def __init__(
        self,
        policy: str,
        options: Mapping[str, object],
        admission: str,
        prefill_cost: PrefillCost | None = None,
    ) -> None:
        self._settings = (policy, options, admission)
        self._prefill_cost = prefill_cost
        self.epoch = 1
        self.now = 50.0
        self.core = self._new_core()
        self.replicas: dict[ReplicaId, FakeReplica] = {}
        self.live_ingresses: set[IngressId] = {"i0", "i1"}
        self.applications: dict[ApplicationId, None] = {}
        self.calls: dict[RequestId, Call] = {}
        """Inferences that have not ended."""
        self.ended: dict[RequestId, str] = {}
        self.to_resubmit: list[RequestId] = []
        """Inferences that were outstanding at the last restart and are not yet resubmitted."""
        self.lease_owner: dict[LeaseId, RequestId] = {}
        self.finished: set[LeaseId] = set()
        """Leases that a replica has reported as finished."""
        self.served: dict[ApplicationId, float] = {}
        """KV token-time of the ended inferences of each application, from reported tokens."""

    def handle(self, event: ev.Event) -> list[Action]:
        """Feed an event to the core, check the core's invariants, and execute its actions."""
        before = set(self.core.state.inferences)
        if isinstance(event, ev.InferenceSubmitted) and event.request_id in self.calls:
            before.add(event.request_id)
        self._note_reports(event)
        actions = self.core.handle(event, self.now)
        check(self.core)
        for action in actions:
            self._execute(action)
        for request_id in sorted(before - set(self.core.state.inferences)):
            self._end(request_id, event, actions)
        known = set(self.core.state.inferences)
        assert self.calls.keys() - set(self.to_resubmit) == known, "lost or invented"
        self._check_that_the_first_does_not_fit()
        self._check_charged_service()
        return actions

    def submit(self, request_id: RequestId, *, resubmitted: bool = False) -> list[Action]:
        call = self.calls[request_id]
        if resubmitted:
            self.to_resubmit.remove(request_id)
        event = ev.InferenceSubmitted(
            request_id=request_id,
            application_id=call.application_id,
            inference_id=request_id,
            ingress_id=call.ingress_id,
            prompt_tokens=call.prompt,
            predicted_output_tokens=call.predicted,
            max_output_tokens=100,
            choices=call.choices,
            resubmitted=resubmitted,
            age_s=self.now - call.submitted_at,
            lease_id=call.lease_id if resubmitted else None,
            deadline_s=call.deadline_s,
            prefixes=call.prefixes,
            copies=call.copies,
        )
        return self.handle(event)

    def cancel(self, request_id: RequestId) -> None:
        self.handle(ev.InferenceCancelled(request_id))
        if request_id in self.to_resubmit:
            self._drop_unsubmitted(request_id, "cancelled")

    def kill_ingress(self, ingress_id: IngressId) -> None:
        """Stop the heartbeats of an ingress, and drop its inferences that are not resubmitted."""
        self.live_ingresses.discard(ingress_id)
        for request_id in list(self.to_resubmit):
            if self.calls[request_id].ingress_id == ingress_id:
                self._drop_unsubmitted(request_id, "ingress lost")

    def pass_time(self, seconds: float) -> None:
        """Advance the time in steps of at most 10 s, with heartbeats of all live ingresses."""
        until = self.now + seconds
        while True:
            self.now = min(until, self.now + 10.0)
            for ingress_id in sorted(self.live_ingresses):
                self.handle(ev.IngressHeartbeat(ingress_id))
            self.handle(ev.DeadlinePassed())
            if self.now >= until:
                return

    def restart(self) -> None:
        """Replace the core by one that recovers from a snapshot."""
        stored = json.loads(json.dumps(snapshot(self.core)))
        policy, options = self.core.ledger.policy_name, self.core.ledger.options
        chosen = {
            "clock": options.clock,
            "nominal_iteration_s": options.nominal_iteration_s,
            "fairness": options.fairness,
            **options.own,
        }
        self._settings = (policy, chosen, self.core.admission_name)
        self.epoch += 1
        self.core = self._new_core()
        self.core.recover(sorted(self.replicas), self.now)
        restore(self.core, stored["clock"], stored["applications"])
        check(self.core)
        self.to_resubmit = list(self.calls)
        for ingress_id in {call.ingress_id for call in self.calls.values()} - self.live_ingresses:
            self.kill_ingress(ingress_id)

    def _new_core(self) -> SchedulerCore:
        policy, options, admission = self._settings
        core = SchedulerCore(
            policy,
            options,
            admission,
            lease_prefix=f"{self.epoch}-",
            prefill_cost=self._prefill_cost,
        )
        first, claim_first = core.ledger.queue.first, core.ledger.queue.claim_first

        def checked_choice(chosen: Application | None) -> Application | None:
            """Choose an application by the policy, and check the choice against the order."""
            policy = core.ledger.policy
            if not isinstance(policy, GuardedPolicy) or not policy.lets_pass:
                expected = expected_first(core)
                same = chosen is expected or same_key(core, chosen, expected)
                assert same, "granted out of order"
            elif chosen is not None:
                assert all(holds for holds, _, _ in comes_first(core, policy, chosen))
            return chosen

        queue = core.ledger.queue
        setattr(queue, "first", lambda: checked_choice(first()))  # noqa: B010 - a method, to mypy
        setattr(queue, "claim_first", lambda: checked_choice(claim_first()))  # noqa: B010
        return core

    def _note_reports(self, event: ev.Event) -> None:
        if isinstance(event, ev.ReplicaPulled):
            reports: list[ev.LeaseProgress | ev.LeaseFinished] = [
                *(event.progress or ()),
                *event.finished,
            ]
            for report in reports:
                call = self.calls.get(self.lease_owner.get(report.lease_id, ""))
                if call is not None:
                    call.seen = max(call.seen, report.output_tokens)
            self.finished.update(r.lease_id for r in event.finished if r.outcome is not None)

    def _execute(self, action: Action) -> None:
        if isinstance(action, Grant):
            assert action.lease_id not in self.lease_owner, "lease granted twice"
            self.lease_owner[action.lease_id] = action.request_id
            call = self.calls[action.request_id]
            in_time = call.deadline_s is None or self.now < call.submitted_at + call.deadline_s
            assert in_time or call.lease_id is not None, "granted after its deadline"
            call.lease_id = action.lease_id
            replica = self.replicas.get(action.replica_id)
            if replica is not None:
                replica.held[action.lease_id] = HeldLease(
                    call.prompt, call.output, cached=call.cached
                )
        elif isinstance(action, Abort):
            replica = self.replicas.get(action.replica_id)
            held = replica.abort(action.lease_id) if replica is not None else None
            left = self.calls.get(self.lease_owner.get(action.lease_id, ""))
            if held is not None and left is not None:
                left.seen, left.read = max(left.seen, held.made), held.read_tokens
        elif isinstance(action, EndApplication):
            del self.applications[action.application_id]
            self.served.pop(action.application_id, None)

    def _end(self, request_id: RequestId, event: ev.Event, actions: list[Action]) -> None:
        assert request_id not in self.ended, "ended twice"
        call = self.calls[request_id]
        # The resubmitted inference had already finished under its lease.
        if isinstance(event, ev.InferenceSubmitted):
            last_words = self.finished & {event.lease_id or ""}
        elif isinstance(event, ev.ReplicaPulled):
            last_words = {report.lease_id for report in event.finished} & self.finished
        else:
            last_words = set()
        reasons = {
            "finished": any(self.lease_owner.get(name) == request_id for name in last_words),
            "cancelled": event == ev.InferenceCancelled(request_id),
            "refused": any(isinstance(a, Refuse) and a.request_id == request_id for a in actions),
            "ingress lost": call.ingress_id not in self.core.state.ingresses,
        }
        self._note_end(request_id, next(reason for reason, holds in reasons.items() if holds))

    def _drop_unsubmitted(self, request_id: RequestId, reason: str) -> None:
        self.to_resubmit.remove(request_id)
        self._note_end(request_id, reason)

    def _note_end(self, request_id: RequestId, reason: str) -> None:
        call = self.calls.pop(request_id)
        self.ended[request_id] = reason
        if call.application_id in self.applications:
            before = self.served.get(call.application_id, 0)
            self.served[call.application_id] = before + self._most_received(call)

    def _check_that_the_first_does_not_fit(self) -> None:
        if self.core.recovery.holding:
            return
        first = self.core.ledger.queue.first()
        if first is not None:
            head = first.waiting.first
            placement = self.core._leases.placement
            if self.core._leases.tier_refuses(first, head):
                return
            for replica in self.core.state.replicas.values():
                asking = replica.replica_id in self.core.state.asking and not replica.draining
                assert not (asking and placement.fits(replica, head)), "idle beside work"

    def _check_charged_service(self) -> None:
        """Check that no application is charged more service than replicas reported."""
        seen = dict.fromkeys(self.applications, 0.0)
        for call in self.calls.values():
            if call.application_id in seen:
                seen[call.application_id] += self._most_received(call)
        for application_id, account in self.core.ledger.fair_share.accounts.items():
            most = seen[application_id] + self.served.get(application_id, 0)
            assert account.attained <= most, "booked more than was served"

    def _most_received(self, call: Call) -> float:
        """Return the most service that a call can have received by its reports."""
        memory = choices_kv_token_time(call.prompt, call.seen, call.choices) or call.read
        computed = call.prompt if call.seen else call.read
        cost = self._prefill_cost
        return memory if cost is None else memory + cost.of(computed, max(computed, call.prompt))
