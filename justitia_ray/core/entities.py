"""Applications, inferences, leases and replicas: their data."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from justitia_ray.core.contexts import Context, Contexts
from justitia_ray.core.footprints import Extension, Footprint, Footprints
from justitia_ray.core.prefill import Prefill
from justitia_ray.core.prefill_account import PrefillAccount
from justitia_ray.core.prefixes import Prefix
from justitia_ray.core.queue import WaitingLine
from justitia_ray.core.service_history import Start
from justitia_ray.core.stages import ExpectedStage, StageSums
from justitia_ray.core.states import (
    APPLICATION_TRANSITIONS,
    TRANSITIONS,
    ApplicationState,
    InferenceState,
    InvalidTransition,
    LeaseState,
)
from justitia_ray.core.tenants import DEFAULT_TIER, LEAST_WEIGHT, beyond
from justitia_ray.cost import CostFunction, choices_cost
from justitia_ray.units import (
    ApplicationId,
    ClientId,
    InferenceId,
    IngressId,
    KvTokenTime,
    LeaseId,
    ReplicaId,
    RequestId,
    Seconds,
    Tokens,
)


class Outcome(StrEnum):
    """How an inference or an application ended; the value of a metric label."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"
    """The engine answered with an error that a retry would repeat."""
    EXPIRED = "expired"
    """No report on the application or its ingress came for too long."""


class FailureCause(StrEnum):
    """Whether an inference may have made an engine fail; the value of a metric label."""

    CRASH = "crash"
    """The engine failed by itself, and an inference that ran on it may be the cause."""
    KILL = "kill"
    """The engine was ended from outside, for instance by a signal."""


_ENDED = InferenceState.ENDED
_STORY_KEPT = 7
"""Number of an application's earlier states that error messages show."""


@dataclass(slots=True)
class HolderWait:
    """Wait of an inference for the replica that has its context in the prefix cache."""

    replica_id: ReplicaId
    since: Seconds
    until: Seconds
    """Latest time at which the wait ends. An inference never waits twice."""
    full_until: Seconds = 0.0
    """Time until which the replica probably lacks memory for the inference, by the last
    computation.
    """


@dataclass(slots=True, eq=False)
class Inference:
    """An LLM call in the queue. It may have several sequences, over which its sizes are summed."""

    request_id: RequestId
    application_id: ApplicationId
    inference_id: InferenceId
    ingress_id: IngressId
    prompt_tokens: Tokens
    """Prompt tokens of the inference, corrected by the replica's count."""
    predicted_output_tokens: Tokens
    """Predicted output tokens of the inference, at most `max_output_tokens`."""
    max_output_tokens: Tokens
    choices: int
    """Number of the inference's sequences: prompts times choices (`n`)."""
    submitted_at: Seconds
    sequence: int
    state: InferenceState = InferenceState.WAITING
    lease_id: LeaseId | None = None
    output_tokens: Tokens = 0
    """Output tokens so far: the maximum over all attempts, because recomputed tokens are not
    counted as service.
    """
    attained: KvTokenTime = 0
    """Service of the inference so far in token·iterations, h(p, output_tokens), without prefill;
    never falls.
    """
    attempts: int = 0
    resubmitted: bool = False
    """Whether an earlier scheduler knew the inference, and may have counted a part of its service.
    """
    true_output_tokens: Tokens | None = None
    """True number of output tokens, available in simulators and replays only."""
    passes: int = 0
    """Number of inferences that started before this inference while it was first in the order."""
    avoided: frozenset[ReplicaId] = frozenset()
    """Replicas to which the inference is not leased now, because its ingress cannot reach them or
    it may kill their engines.
    """
    unreached: frozenset[ReplicaId] = frozenset()
    """Replicas that the inference's ingress could not reach."""
    kept_off: frozenset[ReplicaId] = frozenset()
    stage: int = 0
    """Number of the application's stage to which the inference belongs."""
    starts_by: Seconds | None = None
    """Latest time at which the inference may start; None: no deadline."""
    is_counted: bool | None = None
    """Whether an earlier scheduler has counted the finished inference, as its ingress says. None:
    the ingress does not store finished inferences.
    """
    outcome: Outcome | None = None
    """How the inference ended under an earlier scheduler; None: it has not ended."""
    read_tokens: Tokens | None = None
    """Prompt tokens that were computed when the inference's last attempt was cut short; None: no
    attempt was cut short.
    """
    copies: int = 1
    """Number of choices (`n`) of each prompt, if the engine stores a prompt once for all its
    choices.
    """
    prefixes: tuple[Prefix, ...] = ()
    """Beginnings that the prompt may share with other prompts, the shortest first."""
    shares: bool = False
    """Whether the inference may hold less KV on a replica than its own length, because parts are
    shared.
    """
    found_tokens: Tokens | None = None
    """Prompt tokens that the last attempt found in the engine's prefix cache; None: not known yet.
    """
    cached_tokens: Tokens | None = None
    """Fewest prompt tokens that any attempt of the inference found in a prefix cache."""
    holder_wait: HolderWait | None = None
    """Wait for the replica that has the inference's context; None: the inference has not waited for
    one.
    """
    prefill: Prefill | None = None
    """Cost of computing the inference's prompt; None: computing a prompt costs nothing."""

    def repeated_tokens(self, block_size: Tokens) -> Tokens:
        """Return the prompt tokens that an inference's choices share in an engine.

        The engine never takes the last token of a prompt from its cache.
        """
        each, prompts = self.prompt_tokens // self.copies, self.choices // self.copies
        return (self.copies - 1) * max(0, each - prompts * block_size)

    def previously_cached_tokens(self, block_size: Tokens) -> Tokens | None:
        """Return the last attempt's cached prompt tokens, without tokens that its choices share.

        None: not known yet.
        """
        found = self.found_tokens
        return None if found is None else found - self.repeated_tokens(block_size)

    @property
    def begun_prompt_tokens(self) -> Tokens:
        """Return the prompt tokens to charge: after the first output token all of them.

        Before it, those that were computed.
        """
        if self.read_tokens is not None:
            return self.read_tokens
        return self.prompt_tokens if self.output_tokens else 0

    @property
    def begun_computed_tokens(self) -> Tokens:
        """Return the prompt tokens to charge that were not in a prefix cache.

        Cached tokens of sequences without a first token are unknown. The value falls if an engine
        finds cached tokens that a lease had computed before it was cut short.
        """
        if self.cached_tokens is None and self.choices > 1 and self.state is not _ENDED:
            return 0
        return max(0, self.begun_prompt_tokens - (self.cached_tokens or 0))

    def miss(self, unreached: frozenset[ReplicaId]) -> None:
        """Exclude replicas that the ingress of the inference could not reach."""
        self.unreached = unreached
        self.avoided = unreached | self.kept_off

    def exclude_suspect_replicas(self, replicas: frozenset[ReplicaId]) -> None:
        """Exclude replicas on which this inference or another suspect could kill the engine."""
        self.kept_off = replicas
        self.avoided = self.unreached | replicas

    def cost(self, h: CostFunction, output_tokens: Tokens) -> KvTokenTime:
        """Return the cost of all sequences if they produce `output_tokens` in total."""
        return choices_cost(h, self.prompt_tokens, output_tokens, self.choices)

    @property
    def expected_output(self) -> Tokens:
        """Return the predicted output tokens, or the output so far if that is more."""
        return max(self.predicted_output_tokens, self.output_tokens)

    @property
    def received(self) -> KvTokenTime:
        """Return the service so far in token·iterations, computing the prompt included."""
        prefill = self.prefill
        return self.attained if prefill is None else self.attained + prefill.paid + prefill.forgiven

    @property
    def expected_prefill(self) -> KvTokenTime:
        """Return the cost of prompts that the application's tag is still expected to pay."""
        return 0 if self.prefill is None else self.prefill.expected

    def expected_remaining(self, output_tokens: Tokens = 0) -> Tokens:
        """Return the number of output tokens that are still expected after `output_tokens`.

        An inference that is longer than predicted is expected to produce as many tokens again as it
        has produced, up to its maximum: doubling finds any length in a logarithmic number of steps.
        """
        expected = self.predicted_output_tokens
        while expected <= output_tokens:
            expected = max(1, expected) * 2
        return max(0, min(expected, self.max_output_tokens) - output_tokens)

    def expected_footprint(self, output_tokens: Tokens = 0) -> Footprint:
        """Return the KV memory of the inference on a replica, now and later."""
        choices = self.choices
        iterations = -(-self.expected_remaining(output_tokens) // choices)
        return Footprint(
            iterations, choices, self.prompt_tokens + output_tokens, self.application_id
        )

    def kv_need_tokens(self, block_size: Tokens = 1) -> Tokens:
        """Return the most KV tokens that the inference is expected to hold, in whole blocks."""
        total = self.prompt_tokens + self.expected_remaining()
        if self.copies > 1:
            total -= self.repeated_tokens(block_size)
        return total + self.choices * (block_size - 1)

    @property
    def order(self) -> tuple[Seconds, int]:
        """Return the sort key inside the application: the time of the first submission."""
        return (self.submitted_at, self.sequence)


def move(inference: Inference, finish: InferenceState) -> None:
    """Move an inference to another state.

    Raises:
        InvalidTransition: If the table has no such move.
    """
    if (inference.state, finish) not in TRANSITIONS:
        raise InvalidTransition(
            f"inference {inference.request_id} of application {inference.application_id} cannot go "
            f"from {inference.state} to {finish}"
        )
    inference.state = finish


@dataclass(slots=True)
class Opener:
    """An ingress that has an application open, under this scheduler or an earlier one."""

    hears_end: bool = False
    """Whether this scheduler notifies the ingress of the application's end."""
    keeps_ends: bool = False
    """Whether the ingress stores records of ended inferences until the scheduler has stored them.
    """
    is_awaited: bool = False
    """Whether the ingress may still resubmit inferences from an earlier scheduler."""


@dataclass(slots=True, eq=False)
class Application:
    """A set of inferences whose results are needed together."""

    application_id: ApplicationId
    application_class: str
    tenant: str
    weight: float
    predicted_kv_token_time: KvTokenTime
    ingress_id: IngressId
    """Ingress that opened the application last; this ingress learns how the application ended."""
    arrived_at: Seconds
    sequence: int
    state: ApplicationState = ApplicationState.OPENING
    story: tuple[tuple[Seconds, ApplicationState], ...] = ()
    """Last states of the application, with the time at which each began."""
    waiting: WaitingLine = field(default_factory=WaitingLine)
    in_flight: set[RequestId] = field(default_factory=set)
    """Ids of the application's inferences that are leased or running."""
    held_back: dict[RequestId, Inference] = field(default_factory=dict)
    """Inferences of the application that are suspended, or wait for a replica to confirm their
    lease.
    """
    idle_since: Seconds | None = None
    """Time since which the application has no inferences; None while it has some."""
    inferences: int = 0
    """Number of the application's inferences that have ended."""
    output_tokens: Tokens = 0
    """Output tokens of ended inferences."""
    first_dispatched_at: Seconds | None = None
    last_start: Start | None = None
    """Total service until the application's last start under this scheduler, and the time of this
    start.
    """
    failed: int = 0
    kv_token_time: KvTokenTime = 0
    """Service that the application received, in token·iterations."""
    unfinished_kv_token_time: KvTokenTime = 0
    """Part of `kv_token_time` that unfinished inferences have received."""
    booked_before: KvTokenTime = 0
    """Part of `unfinished_kv_token_time` that an earlier scheduler has already counted."""
    predicted_cost: float | None = None
    """Predicted cost of the application in the unit of the policy's cost function; None if unknown.
    """
    true_kv_token_time: KvTokenTime | None = None
    """True service that the application needs, available in simulators and replays only."""
    replicas: dict[ReplicaId, None] = field(default_factory=dict)
    """Replicas that have finished an inference of the application, the latest last. They may have
    its contexts in their prefix caches.
    """
    stages: StageSums = field(default_factory=StageSums)
    ingresses: dict[IngressId, Opener] = field(default_factory=dict)
    """Ingresses that have the application open, under this scheduler or an earlier one; several may
    submit to one application.
    """
    leaving: dict[LeaseId, None] = field(default_factory=dict)
    """Aborted leases of the application that await the replica's last report."""
    ended_leases: dict[LeaseId, None] = field(default_factory=dict)
    """Ended leases of the application that replicas may report a second time."""
    recognized_by: str = ""
    """Name of the rule by which the ingress recognised the application; empty if unknown."""
    idle_s: Seconds | None = None
    """Seconds without inferences after which the application ends; None: the default
    `Timeouts.application_s`.
    """
    expected_stages: tuple[ExpectedStage, ...] = ()
    """Predicted stages of the application, from the first stage; may be empty."""
    tier: str = DEFAULT_TIER
    """Service tier of the application; its factor is part of the application's weight."""
    deadline_s: Seconds | None = None
    """Longest wait in seconds of an inference that has no deadline of its own; None: no limit."""
    prompt_tokens: Tokens = 0
    """Prompt tokens of ended inferences whose computation had begun."""
    cached_tokens: Tokens = 0
    """Prompt tokens of ended inferences that were in an engine's prefix cache."""
    is_deprioritised: bool = False
    """Whether the application is beyond its quota, and runs only when no application within quota
    waits.
    """
    reuse: int = 0
    """Number of the application's contexts found in prefix caches, less the number that was missed;
    limited to a range.
    """
    prefill: PrefillAccount | None = None
    """Account of the application's computed prompts; None: computing prompts costs nothing."""

    def move(self, finish: ApplicationState, now: Seconds) -> None:
        """Move the application to another state.

        Raises:
            InvalidTransition: If the table has no such move.
        """
        if (self.state, finish) not in APPLICATION_TRANSITIONS:
            story = ", ".join(f"{state} at {at:.3f}" for at, state in self.story)
            raise InvalidTransition(
                f"application {self.application_id} cannot go from {self.state} to {finish} at "
                f"{now:.3f}; its last states: {story or 'none'}"
            )
        self.state = finish
        self.story = (*self.story[-_STORY_KEPT:], (now, finish))

    def opener(self, ingress_id: IngressId) -> Opener:
        """Return the entry of an ingress that has this application open, added if missing."""
        return self.ingresses.setdefault(ingress_id, Opener())

    @property
    def keepers(self) -> list[IngressId]:
        """Return the ingresses that keep records of ended inferences until these are stored."""
        return [name for name, opener in self.ingresses.items() if opener.keeps_ends]

    @property
    def is_awaited(self) -> bool:
        """Return whether an ingress may still resubmit inferences of the application.

        Until then the application does not end.
        """
        return any(opener.is_awaited for opener in self.ingresses.values())

    @property
    def prefill_token_time(self) -> KvTokenTime:
        """Return the service received for computing prompts, not part of `kv_token_time`."""
        return 0 if self.prefill is None else self.prefill.paid

    @property
    def share_weight(self) -> float:
        """Return the weight of the application's GPS account when tenants do not share."""
        return self.weight * LEAST_WEIGHT if self.is_deprioritised else self.weight

    @property
    def leaf(self) -> ClientId:
        """Return the leaf of the tenant tree to which the application belongs."""
        return beyond(self.tenant) if self.is_deprioritised else self.tenant

    @property
    def unfinished(self) -> int:
        return len(self.waiting) + len(self.in_flight) + len(self.held_back)

    @property
    def waiting_count(self) -> int:
        """Return the number of inferences that are queued or suspended."""
        return len(self.waiting) + len(self.suspended)

    @property
    def suspended(self) -> list[Inference]:
        """Return the inferences that are not in the queue because their ingress may be lost."""
        return [one for one in self.held_back.values() if one.state is InferenceState.SUSPENDED]

    @property
    def is_idle(self) -> bool:
        """Return whether the application has no inference in any state."""
        return not (self.waiting or self.in_flight or self.held_back or self.leaving)


@dataclass(slots=True)
class Lease:
    """Right of one inference to run on one replica."""

    lease_id: LeaseId
    request_id: RequestId
    replica_id: ReplicaId
    granted_at: Seconds
    priority: int
    """Priority of the lease in the engine; a lower number is served first."""
    state: LeaseState = LeaseState.GRANTED
    context: Context | None = None
    """Context in the replica's prefix cache that the lease continues or has created."""
    begun_with: Tokens = 0
    """Tokens of the context when the lease began to use it."""
    uncomputed_tokens: Tokens = 0
    """Prompt tokens that the engine has to compute before the lease's first token; 0 afterwards."""


@dataclass(frozen=True, slots=True)
class Departure:
    """A stopped inference whose replica has not yet reported how many tokens it computed."""

    inference: Inference
    replica_id: ReplicaId
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class ReplicaCapacity:
    """KV memory and number of sequences of a replica."""

    kv_tokens: Tokens
    block_size: Tokens = 1
    max_num_seqs: int = 256
    caches_prefixes: bool = False
    """Whether prompts with a common beginning share the KV of this beginning."""
    holds_contexts: bool = False
    """Whether the replica evicts contexts of applications that may submit again after all other
    cached blocks.
    """
    host_kv_tokens: Tokens = 0
    """KV tokens in the replica's host memory, which stores copies of all contexts; 0: no copies."""

    @property
    def cache_tokens(self) -> Tokens:
        """Return the KV tokens of contexts that fit into the larger memory, GPU or host."""
        return max(self.kv_tokens, self.host_kv_tokens)


class Refusals(NamedTuple):
    """Inferences for which a replica has no memory, remembered until the replica changes."""

    state: tuple[object, ...]
    inferences: set[tuple[RequestId, Tokens]]
    """Inferences without memory, by id and prompt length, because a replica may correct the length.
    """


@dataclass(slots=True)
class KnownReplica:
    """Capacity, leases, cached contexts and state of a replica, as the scheduler knows them."""

    replica_id: ReplicaId
    capacity: ReplicaCapacity
    last_seen_at: Seconds
    draining: bool = False
    drains_since: Seconds | None = None
    stalled_since: Seconds | None = None
    """Time of the first report that the engine makes no steps; None: the engine makes steps."""
    stall_id: str = ""
    """Name of the engine's standstill, if inferences are suspected of causing it; otherwise empty.
    """
    connected: bool = False
    """Whether the replica has a connection to the scheduler. Silence of a connected replica does
    not mean that it is lost.
    """
    is_silent: bool = False
    """Whether the replica has not reported for so long that it would be lost without a connection.
    """
    takes_leases: bool = True
    """Whether the replica may be granted leases: it is not draining, stalled or silent."""
    pulls_again_by: Seconds = 0.0
    """Time by which the replica should ask for leases again after an answer."""
    prompt_budget: Tokens | None = None
    """Prompt tokens that the replica may be leased before it has computed some; None: no limit."""
    leases: Footprints = field(default_factory=Footprints)
    unaccounted_tokens: Tokens = 0
    """KV tokens in use by the engine that belong to no lease, for instance to an aborted call."""
    grown_tokens: Tokens = 0
    """KV tokens that the engine has filled since the last progress report of the leases."""
    ended: dict[LeaseId, ApplicationId | None] = field(default_factory=dict)
    """Leases that ended by the replica's last report, each with its application if known."""
    unreached: dict[RequestId, Seconds] = field(default_factory=dict)
    """Inferences whose ingresses have lost the connection to the replica since its last report,
    each with the time of its lease. A crash of the replica's process is reported later.
    """
    refusals: Refusals = field(default_factory=lambda: Refusals((), set()))
    """Inferences for which the replica has no memory in its present state."""
    contexts: Contexts = field(default_factory=Contexts)
    """Contexts in the replica's prefix cache; empty if it has none."""
    uncomputed_tokens: Tokens = 0
    """Prompt tokens that the replica's leases still have to compute; 0 without a prefix cache."""

    @property
    def shown_state(self) -> str:
        """Return the state that users see: `serving`, `draining`, `silent` or `stalled`."""
        if self.stalled_since is not None:
            return "stalled"
        if self.is_silent:
            return "silent"
        return "draining" if self.draining else "serving"

    @property
    def leasable_tokens(self) -> Tokens:
        """Return the KV tokens that all leases of the replica together may use."""
        return self.capacity.kv_tokens - self.unaccounted_tokens - self.grown_tokens

    @property
    def unleased_tokens(self) -> Tokens:
        """Return the KV tokens that are not leased, so that idle contexts may fill them."""
        return self.capacity.cache_tokens - self.context_tokens

    @property
    def context_tokens(self) -> Tokens:
        """Return the KV tokens that leases use on the replica, in whole blocks."""
        return self.leases.context_tokens + self.leases.sequences * (self.capacity.block_size - 1)

    def footprint_alone(self, inference: Inference, output_tokens: Tokens = 0) -> Footprint:
        """Return the KV memory of an inference if it ran on this replica alone."""
        footprint = inference.expected_footprint(output_tokens)
        if inference.copies == 1 or not self.capacity.caches_prefixes:
            return footprint
        once = inference.repeated_tokens(self.capacity.block_size)
        if inference.found_tokens is not None and inference.lease_id is not None:
            once = min(once, inference.found_tokens)
        return footprint.less(once)

    def footprint_beside(self, inference: Inference) -> Footprint:
        """Return the KV memory that an inference would add on this replica."""
        footprint = self.footprint_alone(inference)
        if not inference.prefixes or not self.capacity.caches_prefixes:
            return footprint
        shared = self.leases.longest_shared_beginning(inference.prefixes)
        return footprint.less(shared) if shared else footprint

    def note_found(self, lease_id: LeaseId, inference: Inference) -> None:
        """Correct a lease's shared tokens by the cached tokens that the engine reports."""
        found = inference.previously_cached_tokens(self.capacity.block_size)
        if inference.prefixes and found is not None:
            self.leases.note_found(lease_id, found)

    def extension_by(self, inference: Inference) -> Extension:
        """Return the shared KV that an inference would keep longer than the present leases."""
        if not inference.prefixes or not self.capacity.caches_prefixes:
            return ()
        iterations = inference.expected_footprint().iterations
        return self.leases.extension(inference.prefixes, iterations)
