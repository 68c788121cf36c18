"""Recorder of a simulation: its trace, and assertions that hold at every step."""

import asyncio
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from justitia_ray.accounts.messages import ClaimName
from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Abort, Action, EndApplication, Grant, Refusal, Refuse
from justitia_ray.core.entities import Application
from justitia_ray.core.invariants import InvariantViolation, check
from justitia_ray.core.states import InferenceState
from justitia_ray.cost import choices_kv_token_time
from justitia_ray.protocol.engine import Progress
from justitia_ray.serve.scheduler.outboxes import Outbox
from justitia_ray.units import (
    ApplicationId,
    Epoch,
    KvTokenTime,
    LeaseId,
    ReplicaId,
    RequestId,
    Seconds,
    Tokens,
)
from tests.harness.simulation.store import Tags
from tests.harness.simulation.use_recorder import METERED, UseRecorder, claim_name
from tests.harness.simulation.virtual_loop import Process

_LONG_ID = re.compile(r"[0-9a-f]{32}\+*|ingress-[0-9a-f]{12}")


class Trace:
    """Events of one simulation; random ids are replaced by short names in order of appearance."""

    def __init__(self, *, traced: bool) -> None:
        self.is_kept = traced
        self.lines: list[tuple[Seconds, str]] = []
        self._names: dict[str, str] = {}

    def add_event(self, at: Seconds, text: str) -> None:
        if self.is_kept:
            self.lines.append((at, _LONG_ID.sub(self._short_name, text)))

    def _short_name(self, match: re.Match[str]) -> str:
        found = match.group()
        kind = "ingress~" if found.startswith("ingress") else "q"
        return self._names.setdefault(found, f"{kind}{len(self._names) + 1}")

    def text(self) -> str:
        """Return the simulation's events, one on each line."""
        return "\n".join(f"{at:10.4f}  {text}" for at, text in self.lines)


_REMEMBERED_S: Seconds = 60.0
"""Seconds for which a replica repeats ended leases to a new scheduler."""


@dataclass(frozen=True, slots=True)
class FinishedLease:
    """Lease whose inference was completed, with the replica's report of it."""

    replica_id: ReplicaId
    first_pull: int
    """Number of the replica's pull that first reports the end of the lease."""
    at_s: Seconds


class ClaimAssertions:
    """Leases of resubmitted inferences that no replica has confirmed to the new scheduler."""

    def __init__(self, finished: Mapping[LeaseId, FinishedLease], forgets_after_s: Seconds) -> None:
        self._finished = finished
        self._forgets_after_s = forgets_after_s
        self._made: set[RequestId] = set()
        self.pending: dict[RequestId, LeaseId] = {}
        """Leases that no replica has reported yet, by request."""

    def add_claim(self, submitted: ev.InferenceSubmitted) -> None:
        """Add the lease that a resubmitted inference names; ignore repeated messages."""
        name = submitted.request_id
        if name not in self._made and submitted.lease_id is not None:
            self.pending[name] = submitted.lease_id
        self._made.add(name)

    def find_reruns(
        self,
        core: SchedulerCore,
        lines: Mapping[ReplicaId, Outbox],
        leader_for_s: Seconds,
        at_s: Seconds,
    ) -> list[str]:
        """Return inferences that would run again although a reported lease had completed them.

        To be called after every event: what is settled by it is forgotten.

        Args:
            core: Of the scheduler, after an event.
            lines: Its lines to replicas.
            leader_for_s: For how long it is in office.
            at_s: The instant, as the ends have it.
        """
        wrong = []
        for request_id, lease_id in list(self.pending.items()):
            inference = core.state.inferences.get(request_id)
            if inference is None:
                del self.pending[request_id]
                continue
            end = self._finished.get(lease_id)
            known = end is not None and end.replica_id in core.state.replicas
            if known and end is not None and _has_reported(lines.get(end.replica_id), end):
                fresh = at_s - end.at_s < _REMEMBERED_S and leader_for_s < self._forgets_after_s
                if fresh:
                    wrong.append(f"{request_id} though {end.replica_id} told that {lease_id} ended")
                del self.pending[request_id]
            elif inference.state is not InferenceState.CLAIMED:
                del self.pending[request_id]
        return wrong


def _has_reported(line: Outbox | None, end: FinishedLease) -> bool:
    return (
        line is not None and line.last_pull is not None and line.last_pull.number >= end.first_pull
    )


_MOST_FAILURES = 20


@dataclass(frozen=True, slots=True)
class Failure:
    """A check that failed, with the simulated time and the detail."""

    check: str
    at_s: Seconds
    """Virtual seconds since the start of the simulation."""
    detail: str

    def __str__(self) -> str:
        return f"{self.check} at {self.at_s:.3f} s: {self.detail}"


@dataclass(slots=True)
class GrantedLease:
    """Lease that a scheduler granted, with the service that its inference got."""

    request_id: str
    application_id: ApplicationId
    choices: int
    claim: ClaimName
    """Name of the inference's quota reservation."""
    used: KvTokenTime = 0
    """KV token-time produced under the lease, set at its end."""
    tokens: Tokens = 0
    """Tokens of prompt and output, set at the end if any output was produced."""


class Recorder:
    """Observer of every scheduling decision, lease and output token of a simulation."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.failures: list[Failure] = []
        self.failed = asyncio.Event()
        self.leases: dict[LeaseId, GrantedLease] = {}
        self.holders: dict[LeaseId, object] = {}
        """Engine under which each lease runs."""
        self.grants = 0
        self.held = 0
        """Number of contexts that engines have held."""
        self.killed = Counter[str]()
        """Number of engines that each call has killed."""
        self.ended: dict[ApplicationId, int] = {}
        self._loop = asyncio.get_running_loop()
        self._began_at = self._loop.time()
        self._by_application: dict[ApplicationId, list[GrantedLease]] = {}
        self._leaders: dict[Epoch, object] = {}
        self.finished: dict[LeaseId, FinishedLease] = {}
        """Leases that completed and were not aborted."""
        self._refused: set[tuple[Epoch, RequestId]] = set()
        self._named: dict[Process, Epoch] = {}
        self.use = UseRecorder(lambda: self.now)

    @property
    def now(self) -> Seconds:
        """Virtual seconds since the start of the simulation."""
        return self._loop.time() - self._began_at

    def add_failure(self, check: str, detail: str) -> None:
        if len(self.failures) < _MOST_FAILURES:
            self.failures.append(Failure(check, self.now, detail))
            self.add_event("!", f"{check}: {detail}")
        self.failed.set()

    def add_event(self, who: str, text: str) -> None:
        if self.trace.is_kept:
            self.trace.add_event(self.now, f"{who:<12} {text}")

    def check_named_epoch(self, process: Process, epoch: Epoch) -> None:
        """Check that a process never calls a scheduler of a lower epoch than before."""
        before = self._named.get(process, 0)
        if epoch < before:
            self.add_failure(
                "known_epochs_only_rise", f"{process.name} goes from {before} to {epoch}"
            )
        self._named[process] = max(before, epoch)

    # --- the scheduler

    def became_leader(self, epoch: Epoch, core: SchedulerCore, stored: Tags | None) -> None:
        """Check that the new leader's epoch is unused and its tags are the stored ones."""
        self.add_event(
            f"scheduler-{epoch}", f"is the leader, {len(core.state.applications)} applications"
        )
        if epoch in self._leaders:
            self.add_failure("epochs_are_of_one_scheduler", f"epoch {epoch} was given out twice")
        self._leaders[epoch] = core
        self.use.became_leader(epoch)
        if stored is None:
            return
        found = virtual_finish_times(core)
        if found != stored:
            names = sorted(found.keys() | stored.keys())
            pairs = {name: (stored.get(name), found.get(name)) for name in names}
            changes = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
            self.add_failure("tags_survive_restarts", f"(before, after): {changes}")

    def check_invariants(self, core: SchedulerCore) -> None:
        try:
            check(core)
        except InvariantViolation as violation:
            self.add_failure("core_invariants", str(violation))

    def check_submission(self, epoch: Epoch, request_id: RequestId) -> None:
        """Check that a refused inference is not submitted again under another name.

        A scheduler that does not know the application may receive it.
        """
        if request_id.endswith("+") and (epoch, request_id[:-1]) in self._refused:
            self.add_failure("what_was_refused_is_not_asked_anew", request_id)

    def add_decisions(self, epoch: Epoch, core: SchedulerCore, actions: Sequence[Action]) -> None:
        """Check that grants are in order, and that counted service was really produced."""
        granted: list[tuple[Application, ReplicaId]] = []
        for action in actions:
            if isinstance(action, Grant):
                granted.append((self._record_grant(core, action), action.replica_id))
            elif isinstance(action, Abort) and action.lease_id in self.leases:
                self.use.aborted.add(self.leases[action.lease_id].request_id)
            elif isinstance(action, EndApplication):
                self._check_booked_service(action)
                if self.use.is_latest_epoch(epoch):
                    self.use.ended(action.application_id, epoch)
            elif isinstance(action, Refuse) and action.reason is not Refusal.UNKNOWN_APPLICATION:
                self._refused.add((epoch, action.request_id))
            if self.trace.is_kept:
                self.add_event(f"scheduler-{epoch}", _describe_action(action))
        if granted:
            self._check_order(core, granted)

    def _record_grant(self, core: SchedulerCore, grant: Grant) -> Application:
        inference = core.state.inferences[grant.request_id]
        lease = GrantedLease(
            grant.request_id, inference.application_id, inference.choices, claim_name(inference)
        )
        by = inference.starts_by
        if by is not None and inference.attempts == 1 and by <= core.state.now:
            self.add_failure("nothing_is_granted_after_its_deadline", grant.request_id)
        if grant.lease_id in self.leases:
            self.add_failure(
                "leases_have_names_of_their_own", f"{grant.lease_id} was granted twice"
            )
        self.leases[grant.lease_id] = lease
        self._by_application.setdefault(inference.application_id, []).append(lease)
        self.grants += 1
        application = core.state.applications[inference.application_id]
        self.use.tenants[application.application_id] = application.tenant
        return application

    def _check_order(
        self, core: SchedulerCore, granted: list[tuple[Application, ReplicaId]]
    ) -> None:
        """Check that grants precede all waiting inferences, under policies with tags.

        Inferences that avoid the granted replica, or wait for another one with their context, are
        excluded, and so are grants to started applications at their places.
        """
        order = core.ledger
        if order.policy_name not in ("justitia", "app-fcfs"):
            return
        if order.options.fairness == "tenant":
            # A grant may complete a tenant's first application, which changes the tenant's key.
            return
        waiting = [a for a in core.state.applications.values() if a.waiting]

        def sort_key(application: Application) -> tuple[float, int]:
            tag = core.tag(application.application_id) if order.policy_name == "justitia" else 0.0
            return (tag, application.sequence)

        for application, replica_id in granted:
            in_line = [
                a
                for a in waiting
                if not any(replica_id in i.avoided or i.holder_wait for i in a.waiting.values())
            ]
            first = min(in_line, key=sort_key, default=application)
            if sort_key(application) > sort_key(first) and not self._has_earlier_start(
                core, application, first
            ):
                self.add_failure(
                    "grants_follow_the_order",
                    f"{application.application_id} {sort_key(application)} was granted before"
                    f" {first.application_id} {sort_key(first)}",
                )

    def _has_earlier_start(self, core: SchedulerCore, one: Application, other: Application) -> bool:
        """Return whether an application starts before another although its sort key is higher."""
        if core.ledger.gate is None:
            return False
        places = {name: place for name, place, _ in core.ledger.gate.kept_queue_positions()}
        place = places.get(one.application_id)
        rank = core.ledger.rank(other.application_id)
        return place is not None and place < (rank, other.sequence)

    def _check_booked_service(self, ended: EndApplication) -> None:
        """Check that the service charged to an application is at most what its leases produced."""
        application_id = ended.application_id
        self.ended[application_id] = self.ended.get(application_id, 0) + 1
        produced = sum(lease.used for lease in self._by_application.get(application_id, ()))
        produced += sum(
            self._service_so_far(lease_id)
            for lease_id in self.holders
            if self.leases[lease_id].application_id == application_id
        )
        if ended.kv_token_time > produced + 1e-6 * (1 + produced):
            self.add_failure(
                "service_is_explained",
                f"{application_id} was booked {ended.kv_token_time}, {produced} was produced",
            )

    def sample_engines(self) -> None:
        """Record the output produced so far; called about once a second."""
        of: defaultdict[tuple[ApplicationId, ClaimName], list[float]] = defaultdict(lambda: [0, 0])
        for lease_id, lease in self.leases.items():
            amounts = of[lease.application_id, lease.claim]
            amounts[0] += lease.tokens
            amounts[1] += lease.used
            if lease_id in self.holders:
                used = self._lease_progress(lease_id)
                amounts[0] += _total_tokens(used)
                amounts[1] += self._kv_token_time(lease_id, used)
        for (name, claim), amounts in of.items():
            for unit, amount in zip(METERED, amounts, strict=True):
                self.use.produced(self.use.tenants[name], claim, unit, amount)

    def _service_so_far(self, lease_id: LeaseId) -> KvTokenTime:
        return self._kv_token_time(lease_id, self._lease_progress(lease_id))

    def _lease_progress(self, lease_id: LeaseId) -> Progress:
        progress: Progress = self.holders[lease_id].progress(lease_id)  # type: ignore[attr-defined]
        return progress

    def _kv_token_time(self, lease_id: LeaseId, used: Progress) -> KvTokenTime:
        choices = self.leases[lease_id].choices
        return choices_kv_token_time(used.prompt_tokens, used.output_tokens, choices)

    # --- replicas

    def lease_armed(self, replica: str, lease_id: LeaseId, known: Epoch) -> None:
        """Check that a replica accepts no lease of a scheduler that it knows to be replaced."""
        self.add_event(replica, f"arms {lease_id}")
        if _epoch_of(lease_id) < known:
            self.add_failure(
                "no_lease_of_a_lower_epoch_is_armed",
                f"{replica} knows epoch {known} and arms {lease_id}",
            )

    def payload_started(self, replica: str, lease_id: LeaseId, engine: object) -> None:
        self.add_event(replica, f"runs {lease_id}")
        self.holders[lease_id] = engine

    def inference_completed(
        self, replica: ReplicaId, lease_id: LeaseId, first_pull: int, output_tokens: Tokens
    ) -> None:
        """Record a completed inference, and its replica's first pull that can report it."""
        self.finished[lease_id] = FinishedLease(replica, first_pull, self.now)
        lease = self.leases[lease_id]
        name = lease.application_id
        self.use.completed(lease.request_id, _epoch_of(lease_id), name, output_tokens)

    def payload_ended(
        self, replica: str, lease_id: LeaseId, so_far: Progress, used: Progress
    ) -> None:
        """Record the end of an inference under a lease, successful or not.

        Args:
            replica: Where it ran.
            lease_id: Its lease.
            so_far: Its progress, with the prompts of choices that had not begun.
            used: What is charged.
        """
        if self.holders.pop(lease_id, None) is not None:
            lease = self.leases[lease_id]
            lease.used += self._kv_token_time(lease_id, so_far) or used.prompt_tokens
            lease.tokens += used.prompt_tokens + used.output_tokens
            if used.prompt_tokens or used.output_tokens:
                self.use.began(lease.request_id, _epoch_of(lease_id), lease.application_id)
            self.add_event(replica, f"ends {lease_id} after {used.output_tokens} tokens")


def virtual_finish_times(core: SchedulerCore) -> Tags:
    return {name: core.tag(name) for name in core.state.applications}


def _total_tokens(used: Progress) -> Tokens:
    return used.prompt_tokens + used.output_tokens if used.output_tokens else 0


def _epoch_of(lease_id: LeaseId) -> Epoch:
    return int(lease_id.partition("-")[0])


def _describe_action(action: Action) -> str:
    if isinstance(action, Grant):
        return f"grants {action.lease_id} to {action.request_id} on {action.replica_id}"
    if isinstance(action, Abort):
        return f"aborts {action.lease_id} on {action.replica_id}"
    if isinstance(action, EndApplication):
        return f"ends {action.application_id}: {action.outcome}, {action.inferences} inferences"
    return f"says {action}"
