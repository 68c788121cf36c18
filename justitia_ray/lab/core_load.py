"""A steady load of N live applications with ten waiting inferences each, to time a core's events.

After every grant the application submits another inference, as an agent that loops does; one time
in ten it ends instead and a new application arrives. So the numbers of live applications and of
waiting inferences stay constant under any policy.

With `beginnings` the replicas have a prefix cache, which holds 32 tokens of each prompt, and a
prompt names up to four beginnings: 16 tokens that all prompts share, 32 and 48 tokens that the
prompts of an application share, and the whole prompt.
"""

from __future__ import annotations

import random
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Abort, Action, Grant
from justitia_ray.core.entities import Outcome, ReplicaCapacity
from justitia_ray.core.policies import policy_path
from justitia_ray.core.prefixes import DIGEST_BYTES, Prefix, pack_prefixes
from justitia_ray.core.tenants import SEPARATOR
from justitia_ray.cost import kv_token_time
from justitia_ray.units import ApplicationId, ClientId, LeaseId, ReplicaId, Seconds, Tokens

WAITING_EACH = 10
"""Number of inferences that wait for each application."""

ARRIVAL, SUBMIT, CANCEL, CLOSE = "arrival", "submit", "cancel", "close"
PULL, GRANT, COMPLETION = "pull", "grant", "completion"
KINDS = (ARRIVAL, SUBMIT, PULL, GRANT, COMPLETION, CANCEL, CLOSE)

_PULL_INTERVAL_S = 0.24
_TOKENS_A_PULL = 8
_PROMPTS = (50, 400)
_OUTPUTS = (20, 200)
_MOST_OUTPUT = 400
_LARGE = ReplicaCapacity(kv_tokens=64_000, block_size=16, max_num_seqs=256)
"""A replica with room for about 220 of the load's inferences at their largest size."""
_ONE_SEAT = ReplicaCapacity(kv_tokens=64_000, block_size=16, max_num_seqs=1)
_SHARED_TOKENS = (16, 32, 48)
"""Length of the prefix that all prompts share, and of the prefix that an application's prompts
share.
"""
_CACHED_TOKENS = 32
_TENANTS = 100
_DEPTH = 4
_LAST_GRANT = 0.1
"""Probability that an application ends after a grant; on average it gets ten grants."""


@dataclass(slots=True)
class Timings:
    elapsed_ns: array[int] = field(default_factory=lambda: array("q"))
    decisions: array[int] = field(default_factory=lambda: array("q"))

    def add(self, elapsed_ns: int, decisions: int) -> None:
        self.elapsed_ns.append(elapsed_ns)
        self.decisions.append(decisions)

    def microseconds_per_decision(self) -> list[float]:
        """Return the mean duration of a scheduling decision for each event, in microseconds."""
        return [
            elapsed / decisions / 1e3
            for elapsed, decisions in zip(self.elapsed_ns, self.decisions, strict=True)
        ]


@dataclass(slots=True)
class _RunningInference:
    prompt_tokens: Tokens
    output_tokens: Tokens
    made: Tokens = 0


@dataclass(slots=True)
class _SimulatedReplica:
    replica_id: ReplicaId
    capacity: ReplicaCapacity
    running: dict[LeaseId, _RunningInference] = field(default_factory=dict)


class CoreLoad:
    """Measures the speed of a `SchedulerCore` whose queue is full."""

    def __init__(
        self,
        applications: int,
        seed: int,
        policy: str = "justitia",
        options: Mapping[str, object] | None = None,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
        leaves: int | None = None,
        beginnings: int | None = None,
    ) -> None:
        self.core = SchedulerCore(policy_path(policy), options)
        self.timings = {kind: Timings() for kind in KINDS}
        self._applications = applications
        self._leaves = leaves
        self._clock_ns = clock_ns
        self._random = random.Random(seed)
        self._named = 0
        self._now: Seconds = 1000.0
        self._granted: deque[ApplicationId] = deque()
        """Applications whose grants the load has not answered yet with a submission or an end."""
        self._beginnings = beginnings
        self._large = [_SimulatedReplica(f"large-{k}", self._capacity(_LARGE)) for k in range(2)]
        self._one_seat = _SimulatedReplica("one-seat", self._capacity(_ONE_SEAT))

    def open_all(self) -> list[ApplicationId]:
        return [self._open_application() for _ in range(self._applications)]

    def submit_all(self, application_ids: Iterable[ApplicationId]) -> None:
        """Submit ten inferences for each application."""
        for application_id in application_ids:
            self._submit_inferences(application_id, WAITING_EACH)

    def build(self) -> None:
        """Fill the queue and the replicas before the measurement."""
        self.submit_all(self.open_all())
        for replica in (*self._large, self._one_seat):
            self._pull_with_report(replica, PULL)
        self._answer_grants()
        self.forget()

    def change_policy(self, policy: str, options: Mapping[str, object]) -> None:
        """Change the scheduling policy; inferences keep waiting.

        Raises:
            ConfigError: If the policy or an option is not allowed.
        """
        event = ev.PolicyChanged(
            policy_path(policy), tuple(options.items()), self.core.admission_name
        )
        self._apply_actions(self._handle_as_actor(event)[0])
        self._answer_grants()

    def run(self, steps: int, completions: int) -> None:
        """Measure how long the scheduler core takes while full replicas pull work.

        At every fourth step an empty replica joins, pulls and is lost.
        """
        for step in range(steps):
            self._now += _PULL_INTERVAL_S / len(self._large)
            replica = self._large[step % len(self._large)]
            self._pull_with_report(replica, PULL)
            self._answer_grants()
            for _ in range(completions):
                self._pull_with_report(self._one_seat, COMPLETION)
                self._answer_grants()
            if step % 4 == 0:
                self._fill_and_remove_replica()
                self._answer_grants()
            self.core.take_changed()

    def forget(self) -> None:
        self.timings = {kind: Timings() for kind in KINDS}

    def waiting(self) -> int:
        return sum(len(a.waiting) for a in self.core.state.applications.values())

    # --- replicas

    def _pull_with_report(self, replica: _SimulatedReplica, kind: str) -> None:
        progress: list[ev.LeaseProgress] = []
        finished: list[ev.LeaseFinished] = []
        for lease_id, running in list(replica.running.items()):
            made = _TOKENS_A_PULL if kind == PULL else running.output_tokens
            running.made = min(running.made + made, running.output_tokens)
            report = (lease_id, running.prompt_tokens, running.made)
            cached = None if self._beginnings is None else _CACHED_TOKENS
            if running.made == running.output_tokens:
                finished.append(ev.LeaseFinished(*report, Outcome.FINISHED, cached_tokens=cached))
                del replica.running[lease_id]
            else:
                progress.append(ev.LeaseProgress(*report, running=True, cached_tokens=cached))
        used = sum(r.prompt_tokens + r.made for r in replica.running.values())
        event = ev.ReplicaPulled(
            replica.replica_id,
            replica.capacity,
            replica.capacity.kv_tokens - used,
            tuple(progress),
            tuple(finished),
        )
        actions, elapsed_ns = self._handle_as_actor(event)
        reports = len(progress) + len(finished)
        self.timings[kind].add(elapsed_ns, max(1, reports + len(_grants_of(actions))))
        self._apply_actions(actions)

    def _fill_and_remove_replica(self) -> None:
        """Add an empty replica, let it receive all inferences that fit, and remove it."""
        actions, elapsed_ns = self._handle_as_actor(
            ev.ReplicaPulled("joiner", self._capacity(_LARGE), _LARGE.kv_tokens)
        )
        granted = len(_grants_of(actions))
        if granted:
            self.timings[GRANT].add(elapsed_ns, granted)
        self._apply_actions(
            [grant for grant in _grants_of(actions) if grant.replica_id != "joiner"]
        )
        self._apply_actions(self._handle_as_actor(ev.ReplicaLost("joiner"))[0])

    def _apply_actions(self, actions: Sequence[Action]) -> None:
        replicas = {replica.replica_id: replica for replica in (*self._large, self._one_seat)}
        for action in actions:
            if isinstance(action, Abort):
                replicas[action.replica_id].running.pop(action.lease_id, None)
        for grant in _grants_of(actions):
            inference = self.core.state.inferences[grant.request_id]
            assert inference.true_output_tokens is not None
            running = _RunningInference(inference.prompt_tokens, inference.true_output_tokens)
            replicas[grant.replica_id].running[grant.lease_id] = running
            self._granted.append(inference.application_id)

    # --- applications

    def _answer_grants(self) -> None:
        """Submit an inference for each grant, or end its application and open another."""
        applications = self.core.state.applications
        while self._granted:
            application_id = self._granted.popleft()
            application = applications.get(application_id)
            if application is None or not application.state.takes_inferences:
                continue
            if self._random.random() >= _LAST_GRANT:
                self._submit_inferences(application_id, 1)
                continue
            for inference in application.waiting.values():
                self._time_event(CANCEL, ev.InferenceCancelled(inference.request_id))
            self._time_event(CLOSE, ev.ApplicationClosed(application_id))
            self._submit_inferences(self._open_application(), WAITING_EACH)

    def _open_application(self) -> ApplicationId:
        application_id = self._new_id("app")
        prompt, output = sum(_PROMPTS) // 2, sum(_OUTPUTS) // 2
        cost = WAITING_EACH * kv_token_time(prompt, output) * self._random.uniform(0.3, 3.0)
        tenant = self._draw_tenant()
        weight = self._random.choice((1.0, 1.0, 2.0))
        event = ev.ApplicationArrived(application_id, "class", tenant, weight, cost, "ingress-0")
        self._time_event(ARRIVAL, event)
        return application_id

    def _draw_tenant(self) -> ClientId:
        if self._leaves is None:
            return f"tenant-{self._random.randrange(_TENANTS)}"
        leaf = self._random.randrange(self._leaves)
        width = max(2, round(self._leaves ** (1 / _DEPTH)))
        parts = [str(leaf // width**level % width) for level in range(_DEPTH - 1)]
        return SEPARATOR.join([*parts, str(leaf // width ** (_DEPTH - 1))])

    def _submit_inferences(self, application_id: ApplicationId, count: int) -> None:
        draw = self._random
        for _ in range(count):
            output = draw.randint(*_OUTPUTS)
            inference_id = self._new_id("inference")
            prompt = draw.randint(*_PROMPTS)
            event = ev.InferenceSubmitted(
                request_id=self._new_id("request"),
                application_id=application_id,
                inference_id=inference_id,
                ingress_id="ingress-0",
                prompt_tokens=prompt,
                predicted_output_tokens=max(1, round(output * draw.uniform(0.5, 2.0))),
                max_output_tokens=_MOST_OUTPUT,
                true_output_tokens=output,
                prefixes=self._packed_prefixes(application_id, inference_id, prompt),
            )
            self._time_event(SUBMIT, event)

    def _capacity(self, capacity: ReplicaCapacity) -> ReplicaCapacity:
        return replace(capacity, caches_prefixes=self._beginnings is not None)

    def _packed_prefixes(
        self, application_id: ApplicationId, inference_id: str, prompt: Tokens
    ) -> bytes:
        named = [*zip(_SHARED_TOKENS, ("", application_id, application_id), strict=True)]
        block = _LARGE.block_size
        named.append((prompt // block * block, inference_id))
        return pack_prefixes(
            Prefix(tokens, blake2b(text.encode(), digest_size=DIGEST_BYTES).digest())
            for tokens, text in named[: self._beginnings or 0]
        )

    def _new_id(self, prefix: str) -> str:
        """Return a new application id with the length of the service's ids."""
        self._named += 1
        return f"{prefix}-{self._named:032x}"

    # --- the clock

    def _time_event(self, kind: str, event: ev.Event) -> None:
        actions, elapsed_ns = self._handle_as_actor(event)
        self.timings[kind].add(elapsed_ns, 1 + len(_grants_of(actions)))
        self._apply_actions(actions)

    def _handle_as_actor(self, event: ev.Event) -> tuple[list[Action], int]:
        """Handle an event as the scheduler actor does; return its actions and nanoseconds."""
        started = self._clock_ns()
        actions = self.core.handle(event, self._now)
        self.core.next_deadline()
        return actions, self._clock_ns() - started


def _grants_of(actions: Sequence[Action]) -> list[Grant]:
    return [action for action in actions if isinstance(action, Grant)]
