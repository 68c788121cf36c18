"""The engine of DESIGN.md, section 5, with every iteration executed.

It transcribes those lines with lists and loops, without jumps, and reports after each iteration. It
drives the same core as the simulator, whose jumps are tested against it. Beyond those lines:
blocks, `peak` admission, and iterations whose time grows with the load.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from justitia_ray.core import SchedulerCore, Timeouts
from justitia_ray.core import events as ev
from justitia_ray.core.actions import EndApplication, Grant
from justitia_ray.core.entities import Outcome, ReplicaCapacity
from justitia_ray.core.policies import policy_path
from justitia_ray.sim.results import InferenceResult
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference

_NEVER = float("inf")


@dataclass(eq=False)
class _Running:
    request_id: str
    lease_id: str
    row: InferenceResult
    made: int = 0

    @property
    def context(self) -> int:
        return self.row.prompt_tokens + self.made

    def blocks(self, size: int, more: int = 0) -> int:
        return math.ceil((self.context + more) / size) * size


@dataclass(eq=False)
class _Replica:
    index: int
    running: list[_Running] = field(default_factory=list)
    swapped: list[_Running] = field(default_factory=list)
    boundary: float | None = None
    """End of the current iteration; None if no iteration runs."""

    @property
    def used(self) -> int:
        return sum(running.context for running in self.running)

    def needed(self, block_size: int) -> int:
        return sum(running.blocks(block_size, 1) for running in self.running)


class SteppingEngine:
    """Engine simulated by single iterations, with exact predictions."""

    def __init__(
        self,
        policy: str,
        kv_tokens: int,
        *,
        replicas: int = 1,
        iteration_s: float = 1.0,
        prefill_s_per_token: float = 0.0,
        per_sequence_s: float = 0.0,
        per_context_token_s: float = 0.0,
        max_num_seqs: int = 256,
        block_size: int = 1,
        admission: str = "prompt",
        options: dict[str, object] | None = None,
    ) -> None:
        timeouts = Timeouts(_NEVER, _NEVER, _NEVER, _NEVER, _NEVER)
        self.core = SchedulerCore(policy_path(policy), options, admission, timeouts)
        self._kv_tokens = kv_tokens
        self._iteration_s = iteration_s
        self._prefill_s_per_token = prefill_s_per_token
        self._per_sequence_s = per_sequence_s
        self._per_context_token_s = per_context_token_s
        self._block_size = block_size
        self._seats = max_num_seqs
        self._replicas = [_Replica(index) for index in range(replicas)]
        self.rows: dict[str, InferenceResult] = {}
        self.ended: dict[str, EndApplication] = {}
        self.most_held = 0
        capacity = ReplicaCapacity(kv_tokens, block_size, max_num_seqs)
        for replica in self._replicas:
            self._handle(ev.ReplicaPulled(str(replica.index), capacity, kv_tokens), 0.0)
            self._handle(ev.PullAnswered(str(replica.index)), 0.0)

    def run(self, applications: Sequence[WorkloadApplication]) -> None:
        """Run until all applications have ended; fill `rows` and `ended` by id."""
        self._inferences = {
            f"{a.application_id}/{i.inference_id}": (a, i)
            for a in applications
            for i in a.inferences
        }
        self._finished: set[str] = set()
        self._submitted: dict[str, int] = {a.application_id: 0 for a in applications}
        self._due: list[tuple[float, WorkloadApplication, WorkloadInference | None]] = [
            (a.arrived_at_s, a, None) for a in sorted(applications, key=lambda a: a.arrived_at_s)
        ]
        while len(self.ended) < len(applications):
            self._run_boundary(self._next_instant())

    def _next_instant(self) -> float:
        instants = [r.boundary for r in self._replicas if r.boundary is not None]
        waits = [at for at, _, _ in self._due]
        deadline = self.core.next_deadline()
        if deadline is not None:
            waits.append(deadline)
        if waits and any(replica.boundary is None for replica in self._replicas):
            instants.append(min(waits))
        return min(instants)

    def _run_boundary(self, now: float) -> None:
        here = [r for r in self._replicas if r.boundary is None or r.boundary == now]
        completed: list[_Running] = []
        for replica in here:  # step 0
            if replica.boundary is not None:
                completed += self._end_iteration(replica, now)
        for replica in here:  # step 5
            by_order = sorted(replica.running, key=lambda r: self.core.place(r.request_id))
            while replica.needed(self._block_size) > self._kv_tokens:
                last = by_order.pop()
                replica.running.remove(last)
                replica.swapped.append(last)
                last.row.preemptions += 1
        for running in completed:
            self._submit_successors(running, now)
        self._process_due(now)
        if self.core.applications.settled_since_report:
            self._handle(ev.ReplicaReported("0", withdraws=True), now)
        for replica in here:
            self._admit(replica, now)

    def _end_iteration(self, replica: _Replica, now: float) -> list[_Running]:
        for running in replica.running:
            running.made += 1
            if running.made == 1:
                running.row.first_token_at_s = now
        held = sum(running.blocks(self._block_size) for running in replica.running)
        self.most_held = max(self.most_held, held)
        completed = [r for r in replica.running if r.made == r.row.output_tokens]
        replica.running = [r for r in replica.running if r not in completed]
        for running in completed:
            running.row.finished_at_s = now
        self._handle(
            ev.ReplicaReported(
                str(replica.index),
                tuple(
                    ev.LeaseProgress(r.lease_id, r.row.prompt_tokens, r.made, running=True)
                    for r in [*replica.running, *replica.swapped]
                ),
                tuple(
                    ev.LeaseFinished(r.lease_id, r.row.prompt_tokens, r.made, Outcome.FINISHED)
                    for r in completed
                ),
            ),
            now,
        )
        replica.boundary = None
        return completed

    def _submit_successors(self, running: _Running, now: float) -> None:
        application, finished = self._inferences[running.request_id]
        self._finished.add(running.request_id)
        for inference in application.inferences:
            names = [f"{application.application_id}/{name}" for name in inference.after]
            if finished.inference_id in inference.after and self._finished.issuperset(names):
                self._submit_after(now, application, inference, now)

    def _process_due(self, now: float) -> None:
        if (deadline := self.core.next_deadline()) is not None and deadline <= now:
            self._handle(ev.DeadlinePassed(), now)
        while ready := sorted((d for d in self._due if d[0] <= now), key=lambda due: due[0]):
            at, application, inference = first = ready[0]
            self._due.remove(first)
            if inference is not None:
                self._submit(application, inference, at, now)
                continue
            cost = application.cost()
            name = application.application_id
            self._handle(
                ev.ApplicationArrived(
                    name,
                    application.application_class,
                    application.tenant,
                    application.weight,
                    cost,
                    "i",
                    None,
                    cost,
                ),
                now,
            )
            for root in application.inferences:
                if not root.after:
                    self._submit_after(at, application, root, now)

    def _submit_after(
        self,
        since: float,
        application: WorkloadApplication,
        inference: WorkloadInference,
        now: float,
    ) -> None:
        if inference.delay_s:
            self._due.append((since + inference.delay_s, application, inference))
        else:
            self._submit(application, inference, since, now)

    def _submit(
        self, application: WorkloadApplication, inference: WorkloadInference, at: float, now: float
    ) -> None:
        name = application.application_id
        request_id = f"{name}/{inference.inference_id}"
        self.rows[request_id] = InferenceResult(
            name,
            inference.inference_id,
            None,
            at,
            None,
            None,
            None,
            inference.prompt_tokens,
            inference.output_tokens,
        )
        self._handle(
            ev.InferenceSubmitted(
                request_id,
                name,
                inference.inference_id,
                "i",
                inference.prompt_tokens,
                inference.output_tokens,
                self._kv_tokens - inference.prompt_tokens,
                true_output_tokens=inference.output_tokens,
            ),
            now,
        )
        self._submitted[name] += 1
        if self._submitted[name] == len(application.inferences):
            self._handle(ev.ApplicationClosed(name), now)

    def _admit(self, replica: _Replica, now: float) -> None:
        for swapped in sorted(
            replica.swapped, key=lambda r: self.core.place(r.request_id)
        ):  # step 1
            wanted = replica.needed(self._block_size) + swapped.blocks(self._block_size, 1)
            # With block size 1: the used tokens, its context, and one token for each sequence.
            if wanted > self._kv_tokens:
                break
            if len(replica.running) >= self._seats:
                break
            replica.swapped.remove(swapped)
            replica.running.append(swapped)
        admitted = 0
        if not replica.swapped:  # step 2
            asks = ev.ReplicaReported(str(replica.index), asks=True)
            for grant in self._handle(asks, now):
                row = self.rows[grant.request_id]
                row.replica, row.dispatched_at_s = replica.index, now
                assert len(replica.running) < self._seats
                replica.running.append(_Running(grant.request_id, grant.lease_id, row))
                assert replica.needed(self._block_size) <= self._kv_tokens
                admitted += row.prompt_tokens
            self._handle(ev.PullAnswered(str(replica.index)), now)
        if replica.running:  # step 3
            length_s = self._iteration_s + self._prefill_s_per_token * admitted
            length_s += self._per_sequence_s * len(replica.running)
            length_s += self._per_context_token_s * replica.used
            replica.boundary = now + length_s

    def _handle(self, event: ev.Event, now: float) -> list[Grant]:
        actions = self.core.handle(event, now)
        self.ended |= {a.application_id: a for a in actions if isinstance(a, EndApplication)}
        return [action for action in actions if isinstance(action, Grant)]
