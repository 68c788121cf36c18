"""Applications, inferences, leases and replicas: their data."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from justitia_ray.core.contexts import Context, Contexts
from justitia_ray.core.footprints import Extension, Footprint, Footprints
from justitia_ray.core.own_contexts import OwnContexts
from justitia_ray.core.prefill import Prefill
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
from justitia_ray.cost import CostFunction, PrefillCost, choices_cost
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
    """The end of an inference or an application; a metric label."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"
    """The engine answered with an error that a retry would repeat."""
    EXPIRED = "expired"
    """The application, or the ingress, was silent for too long."""


class FailureCause(StrEnum):
    """Whether a call may be to blame for the failure of an engine; a metric label."""

    CRASH = "crash"
    """The engine failed by itself: one of its inferences may have killed it."""
    KILL = "kill"
    """The engine was ended from outside."""


_ENDED = InferenceState.ENDED
_STORY_KEPT = 7
"""Number of earlier states that an application's story keeps."""


@dataclass(slots=True)
class HolderWait:
    """Wait of an inference for the replica that holds its context (`holder_waits`)."""

    replica_id: ReplicaId
    since: Seconds
    until: Seconds
    """Time at which the wait ends; it may be ended earlier, and never begins again."""
    full_until: Seconds = 0.0
    """Time until which the replica is expected to be full, as last computed."""


@dataclass(slots=True, eq=False)
class Inference:
    """An LLM call in the queue: its sizes, summed over its sequences, without its text."""

    request_id: RequestId
    application_id: ApplicationId
    inference_id: InferenceId
    ingress_id: IngressId
    prompt_tokens: Tokens
    """Prompt tokens; corrected by the replica's count."""
    predicted_output_tokens: Tokens
    """Predicted output, at most `max_output_tokens`."""
    max_output_tokens: Tokens
    choices: int
    """Number of its sequences (prompts times n)."""
    submitted_at: Seconds
    sequence: int
    state: InferenceState = InferenceState.WAITING
    lease_id: LeaseId | None = None
    output_tokens: Tokens = 0
    """Output so far, the maximum over all attempts: recomputed tokens are not service."""
    attained: KvTokenTime = 0
    """Service metered so far, h(p, output_tokens), without prefill; never falls."""
    attempts: int = 0
    resubmitted: bool = False
    """Whether an earlier scheduler had it, and may have booked a part of its service."""
    true_output_tokens: Tokens | None = None
    """True output length, available in simulators and replays only."""
    passes: int = 0
    """Number of inferences started before it while it was first in line."""
    avoided: frozenset[ReplicaId] = frozenset()
    """Replicas to which it is not leased now; see `dispatch`."""
    unreached: frozenset[ReplicaId] = frozenset()
    """Avoided replicas that its ingress could not reach; the others are due to `suspects`."""
    kept_off: frozenset[ReplicaId] = frozenset()
    stage: int = 0
    """Stage of its application to which it belongs (`stages`)."""
    starts_by: Seconds | None = None
    """Deadline of its first lease; None: no deadline."""
    is_counted: bool | None = None
    """Whether its ingress reports that an earlier scheduler has counted its end; None: the ingress
    keeps no ends.
    """
    outcome: Outcome | None = None
    """How it ended for its ingress under an earlier scheduler; None: it has not ended."""
    read_tokens: Tokens | None = None
    """Prompt tokens that engines had read when its last attempt was cut short; None: none was."""
    copies: int = 1
    """Number of choices of each prompt, if the engine stores their common part once."""
    prefixes: tuple[Prefix, ...] = ()
    """Beginnings that its prompt may share with others, the shortest first."""
    shares: bool = False
    """Whether it may hold less KV on a replica than its prompt's length, because of shared parts.
    """
    found_tokens: Tokens | None = None
    """Prompt tokens that its last lease found in the engine's cache; None: not known yet."""
    cached_tokens: Tokens | None = None
    """Least prompt tokens that any of its leases found in a cache: the others were computed."""
    holder_wait: HolderWait | None = None
    """Its wait for the replica that holds its context; None: it has not waited for one."""
    prefill: Prefill | None = None
    """Cost of its prompt; None: computing a prompt costs nothing."""

    def repeated_tokens(self, block_size: Tokens) -> Tokens:
        """Return the prompt tokens that its choices share and an engine holds once, in blocks.

        The engine never takes the last token of a prompt from its cache.
        """
        each, prompts = self.prompt_tokens // self.copies, self.choices // self.copies
        return (self.copies - 1) * max(0, each - prompts * block_size)

    def found_before(self, block_size: Tokens) -> Tokens | None:
        """Return the tokens that its last lease found, without those shared among its own choices.

        None: not known yet.
        """
        found = self.found_tokens
        return None if found is None else found - self.repeated_tokens(block_size)

    @property
    def begun_prompt_tokens(self) -> Tokens:
        """Prompt tokens to charge: all after the first token, or those read before a cut."""
        if self.read_tokens is not None:
            return self.read_tokens
        return self.prompt_tokens if self.output_tokens else 0

    @property
    def begun_computed_tokens(self) -> Tokens:
        """Prompt tokens to charge that engines had to compute.

        Cached tokens of sequences without a first token are unknown. The value falls if an engine
        finds tokens that a lease which was cut short had read.
        """
        if self.cached_tokens is None and self.choices > 1 and self.state is not _ENDED:
            return 0
        return max(0, self.begun_prompt_tokens - (self.cached_tokens or 0))

    def miss(self, unreached: frozenset[ReplicaId]) -> None:
        """Avoid the replicas that its ingress could not reach."""
        self.unreached = unreached
        self.avoided = unreached | self.kept_off

    def keep_off(self, replicas: frozenset[ReplicaId]) -> None:
        """Avoid replicas where it might kill another suspect's engine, or be killed with it."""
        self.kept_off = replicas
        self.avoided = self.unreached | replicas

    def cost(self, h: CostFunction, output_tokens: Tokens) -> KvTokenTime:
        """Return the cost h of all its sequences, with `output_tokens` in total over them."""
        return choices_cost(h, self.prompt_tokens, output_tokens, self.choices)

    @property
    def expected_output(self) -> Tokens:
        """Predicted output, or the output so far if that is more."""
        return max(self.predicted_output_tokens, self.output_tokens)

    @property
    def received(self) -> KvTokenTime:
        """Service metered so far, with prefill."""
        prefill = self.prefill
        return self.attained if prefill is None else self.attained + prefill.paid + prefill.forgiven

    @property
    def expected_prefill(self) -> KvTokenTime:
        """Amount that its tag is still expected to pay for prefill."""
        return 0 if self.prefill is None else self.prefill.expected

    def expected_remaining(self, output_tokens: Tokens = 0) -> Tokens:
        """Return the output still expected after `output_tokens`.

        An inference that has outlived its prediction is expected to make as much again as it has
        made, up to its maximum: doubling finds any length in a logarithmic number of steps.
        """
        expected = self.predicted_output_tokens
        while expected <= output_tokens:
            expected = max(1, expected) * 2
        return max(0, min(expected, self.max_output_tokens) - output_tokens)

    def expected_footprint(self, output_tokens: Tokens = 0) -> Footprint:
        """Return the KV that it holds on a replica after `output_tokens`, and will hold."""
        choices = self.choices
        iterations = -(-self.expected_remaining(output_tokens) // choices)
        return Footprint(
            iterations, choices, self.prompt_tokens + output_tokens, self.application_id
        )

    def kv_need_tokens(self, block_size: Tokens = 1) -> Tokens:
        """Return the most KV that it is expected to hold, in whole blocks."""
        total = self.prompt_tokens + self.expected_remaining()
        if self.copies > 1:
            total -= self.repeated_tokens(block_size)
        return total + self.choices * (block_size - 1)

    @property
    def order(self) -> tuple[Seconds, int]:
        """Sort key inside its application: first submitted first; requeued ones keep theirs."""
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
    """An ingress that has an application open, here or under an earlier scheduler."""

    hears_end: bool = False
    """Whether it opened the application with this scheduler, and is notified of its end."""
    keeps_ends: bool = False
    """Whether it keeps ends until they are stored (`kept_ends`)."""
    is_awaited: bool = False
    """Whether it may yet resubmit inferences that an earlier scheduler had."""


@dataclass(slots=True, eq=False)
class Application:
    """A set of inferences whose result is wanted together."""

    application_id: ApplicationId
    application_class: str
    tenant: str
    weight: float
    predicted_kv_token_time: KvTokenTime
    ingress_id: IngressId
    """The ingress that opened it last, and is told how it ended."""
    arrived_at: Seconds
    sequence: int
    state: ApplicationState = ApplicationState.OPENING
    story: tuple[tuple[Seconds, ApplicationState], ...] = ()
    """Last states of the application, each with the time at which it began."""
    waiting: WaitingLine = field(default_factory=WaitingLine)
    in_flight: set[RequestId] = field(default_factory=set)
    """Inferences leased or running."""
    held_back: dict[RequestId, Inference] = field(default_factory=dict)
    """Inferences that are suspended or claimed."""
    idle_since: Seconds | None = None
    """Instant since which it has no inferences; None: it has some."""
    inferences: int = 0
    """Number of ended inferences."""
    output_tokens: Tokens = 0
    """Output of ended inferences."""
    first_dispatched_at: Seconds | None = None
    last_start: Start | None = None
    """Service so far and time of its last lease by this scheduler."""
    failed: int = 0
    kv_token_time: KvTokenTime = 0
    """Service received."""
    unfinished_kv_token_time: KvTokenTime = 0
    """Part of the service that was for unfinished inferences."""
    booked_before: KvTokenTime = 0
    """Part of `unfinished_kv_token_time` booked by an earlier scheduler, which is not booked again.
    """
    predicted_cost: float | None = None
    """Predicted cost in the policy's cost function, if a driver knows it."""
    true_kv_token_time: KvTokenTime | None = None
    """True service, available in simulators and replays only."""
    replicas: dict[ReplicaId, None] = field(default_factory=dict)
    """Replicas that have finished an inference of it, the last one last: they may have its contexts
    cached.
    """
    stages: StageSums = field(default_factory=StageSums)
    ingresses: dict[IngressId, Opener] = field(default_factory=dict)
    """Ingresses that have it open, here or under an earlier scheduler; several may submit to it."""
    leaving: dict[LeaseId, None] = field(default_factory=dict)
    """Aborted leases without a last report from the replica."""
    ended_leases: dict[LeaseId, None] = field(default_factory=dict)
    """Leases counted as ended that their replicas may report again."""
    recognized_by: str = ""
    """Name of the rule by which its ingress recognised it; empty if unknown."""
    idle_s: Seconds | None = None
    """How long it may be idle before it ends; None: `Timeouts.application_s`."""
    expected_stages: tuple[ExpectedStage, ...] = ()
    """Expected stages, from the first, as last predicted; may be empty."""
    tier: str = DEFAULT_TIER
    """Service tier, whose factor is in the weight."""
    deadline_s: Seconds | None = None
    """Limit on the wait of each inference without a deadline of its own; None: no limit."""
    prompt_tokens: Tokens = 0
    """Prompt tokens of ended inferences that had begun."""
    cached_tokens: Tokens = 0
    """Prompt tokens of ended inferences that were in an engine's prefix cache."""
    is_deprioritised: bool = False
    """Whether it runs beyond a quota that deprioritises."""
    reuse: int = 0
    """Number of its contexts that engines found less those that they missed, within bounds."""
    own_contexts: OwnContexts | None = None
    """Its last contexts; None: computing a prompt costs nothing, or none was computed."""
    prefill_cost: PrefillCost | None = None
    """Cost of computing its prompts, that in force when it arrived; None: nothing."""
    prefill_token_time: KvTokenTime = 0
    """Service received for computing prompts, as far as its tag pays; not in `kv_token_time`."""
    predicted_prefill: KvTokenTime = 0
    """Prefill expected on arrival; its charge contains at least this for prefill."""
    charged_prefill: KvTokenTime = 0
    """Part of its charge that is for prefill."""
    pending_prefill: KvTokenTime = 0
    """Expected prefill of its submitted prompts that are not computed."""
    pending_before: KvTokenTime = 0
    """Part of `pending_prefill` charged by an earlier scheduler, which is not charged again."""
    unfinished_prefill: KvTokenTime = 0
    """Prefill of unfinished inferences that its tag has paid."""
    paid_before: KvTokenTime = 0
    """Part of `unfinished_prefill` booked by an earlier scheduler, which is not booked again."""
    unfinished_forgiven: KvTokenTime = 0
    """Prefill of unfinished inferences that its tag does not pay."""
    forgiven_before: KvTokenTime = 0
    """Part of `unfinished_forgiven` booked by an earlier scheduler, which is not booked again."""

    def move(self, finish: ApplicationState, now: Seconds) -> None:
        """Move to another state.

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
        """Return the entry of an ingress; add one if there is none."""
        return self.ingresses.setdefault(ingress_id, Opener())

    @property
    def keepers(self) -> list[IngressId]:
        """Ingresses that keep its ends until they are stored."""
        return [name for name, opener in self.ingresses.items() if opener.keeps_ends]

    @property
    def is_awaited(self) -> bool:
        """Whether an ingress may yet resubmit inferences; the application does not end before."""
        return any(opener.is_awaited for opener in self.ingresses.values())

    @property
    def share_weight(self) -> float:
        """Weight of its account if shares are not by tenant."""
        return self.weight * LEAST_WEIGHT if self.is_deprioritised else self.weight

    @property
    def leaf(self) -> ClientId:
        """Leaf of its account if shares are by tenant."""
        return beyond(self.tenant) if self.is_deprioritised else self.tenant

    @property
    def unfinished(self) -> int:
        """Number of its inferences that have not ended."""
        return len(self.waiting) + len(self.in_flight) + len(self.held_back)

    @property
    def waiting_count(self) -> int:
        """Number of its inferences that wait, in the queue or suspended."""
        return len(self.waiting) + len(self.suspended)

    @property
    def suspended(self) -> list[Inference]:
        """Inferences kept out of the queue because their ingress is suspect."""
        return [one for one in self.held_back.values() if one.state is InferenceState.SUSPENDED]

    @property
    def is_idle(self) -> bool:
        """Whether it has no inferences: none waits, is suspended, claimed, leased or leaving."""
        return not (self.waiting or self.in_flight or self.held_back or self.leaving)


@dataclass(slots=True)
class Lease:
    """Right of one inference to run on one replica."""

    lease_id: LeaseId
    request_id: RequestId
    replica_id: ReplicaId
    granted_at: Seconds
    priority: int
    """Priority in the engine; lower is served first."""
    state: LeaseState = LeaseState.GRANTED
    context: Context | None = None
    """Context on its replica that it continues, or has created (`locality`)."""
    begun_with: Tokens = 0
    """Tokens of that context when the lease began to hold it."""
    uncomputed_tokens: Tokens = 0
    """Prompt tokens that its engine has to compute before its first token; 0 afterwards."""


@dataclass(frozen=True, slots=True)
class Departure:
    """A stopped inference, until its replica reports how much of it ran."""

    inference: Inference
    replica_id: ReplicaId
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class ReplicaCapacity:
    """KV memory and seats of a replica."""

    kv_tokens: Tokens
    block_size: Tokens = 1
    max_num_seqs: int = 256
    caches_prefixes: bool = False
    """Whether prompts with a common beginning share its KV."""
    holds_contexts: bool = False
    """Whether it evicts the contexts of applications that may submit again last."""
    host_kv_tokens: Tokens = 0
    """KV tokens that fit into its host memory, which has copies of all contexts; 0: it has none."""

    @property
    def cache_tokens(self) -> Tokens:
        """KV tokens of contexts that fit into the larger one of its memories."""
        return max(self.kv_tokens, self.host_kv_tokens)


class Refusals(NamedTuple):
    """Inferences refused by a replica for lack of memory, while it is in one state."""

    state: tuple[object, ...]
    inferences: set[tuple[RequestId, Tokens]]
    """Refused inferences by id and prompt length, because a replica may correct the length."""


@dataclass(slots=True)
class KnownReplica:
    """State of a replica in the scheduler."""

    replica_id: ReplicaId
    capacity: ReplicaCapacity
    last_seen_at: Seconds
    draining: bool = False
    drains_since: Seconds | None = None
    stalled_since: Seconds | None = None
    """Time of the first pull that reported an engine without steps; None: it makes steps."""
    stall_id: str = ""
    """Name of the stall, if its inferences are suspected of it; empty otherwise."""
    connected: bool = False
    """Whether it has a connection to the scheduler, so that its silence does not mean that it is
    lost.
    """
    is_silent: bool = False
    """Whether it has been silent so long that it would be lost without a connection."""
    takes_leases: bool = True
    """Whether it may be granted leases: it is not draining, stalled or silent."""
    pulls_again_by: Seconds = 0.0
    """Time until which its next pull is expected, after the answer to the last one."""
    prompt_budget: Tokens | None = None
    """Prompt tokens that it still accepts at once; None: no limit."""
    leases: Footprints = field(default_factory=Footprints)
    unaccounted_tokens: Tokens = 0
    """KV in use by its gauge that its leases do not explain, for instance of an aborted call not
    yet freed.
    """
    grown_tokens: Tokens = 0
    """KV that its leases have added by its gauge since their last progress: the forecast starts
    there.
    """
    ended: dict[LeaseId, ApplicationId | None] = field(default_factory=dict)
    """Ends that its last pull reported, each with its application if that was known."""
    unreached: dict[RequestId, Seconds] = field(default_factory=dict)
    """Inferences whose ingresses have lost the connection since its last pull, with the times of
    their grants; a crash of its process is reported later than that.
    """
    refusals: Refusals = field(default_factory=lambda: Refusals((), set()))
    """Inferences refused for lack of memory in its present state."""
    contexts: Contexts = field(default_factory=Contexts)
    """Contexts in its prefix cache; empty without a cache."""
    uncomputed_tokens: Tokens = 0
    """Sum of the uncomputed tokens of its leases; 0 without a prefix cache."""

    @property
    def shown_state(self) -> str:
        """State as users see it: `serving`, `draining`, `silent` or `stalled`."""
        if self.stalled_since is not None:
            return "stalled"
        if self.is_silent:
            return "silent"
        return "draining" if self.draining else "serving"

    @property
    def leasable_tokens(self) -> Tokens:
        """KV that all its leases together may use."""
        return self.capacity.kv_tokens - self.unaccounted_tokens - self.grown_tokens

    @property
    def unleased_tokens(self) -> Tokens:
        """KV that no lease uses, available to idle contexts in its prefix cache."""
        return self.capacity.cache_tokens - self.context_tokens

    @property
    def context_tokens(self) -> Tokens:
        """KV held by its leases, whole blocks."""
        return self.leases.context_tokens + self.leases.sequences * (self.capacity.block_size - 1)

    def footprint_alone(self, inference: Inference, output_tokens: Tokens = 0) -> Footprint:
        """Return the KV that an inference would hold here if nothing else ran."""
        footprint = inference.expected_footprint(output_tokens)
        if inference.copies == 1 or not self.capacity.caches_prefixes:
            return footprint
        once = inference.repeated_tokens(self.capacity.block_size)
        if inference.found_tokens is not None and inference.lease_id is not None:
            once = min(once, inference.found_tokens)
        return footprint.less(once)

    def footprint_beside(self, inference: Inference) -> Footprint:
        """Return the KV that an inference would add to what is held here."""
        footprint = self.footprint_alone(inference)
        if not inference.prefixes or not self.capacity.caches_prefixes:
            return footprint
        shared = self.leases.shared_with(inference.prefixes)
        return footprint.less(shared) if shared else footprint

    def note_found(self, lease_id: LeaseId, inference: Inference) -> None:
        """Correct a lease's shared tokens by those that its first tokens report as found."""
        found = inference.found_before(self.capacity.block_size)
        if inference.prefixes and found is not None:
            self.leases.note_found(lease_id, found)

    def extension_by(self, inference: Inference) -> Extension:
        """Return the shared beginnings that an inference would keep beyond their ends here."""
        if not inference.prefixes or not self.capacity.caches_prefixes:
            return ()
        iterations = inference.expected_footprint().iterations
        return self.leases.extension(inference.prefixes, iterations)
