"""Applications, inferences, leases and replicas: data and the enums of their states."""

from dataclasses import dataclass, field
from enum import StrEnum

from justitia_ray.core.footprints import Footprints
from justitia_ray.core.stages import StageSums
from justitia_ray.core.waiting_line import WaitingLine
from justitia_ray.cost import CostFunction, choices_cost
from justitia_ray.units import (
    ApplicationId,
    InferenceId,
    IngressId,
    KvTokenTime,
    LeaseId,
    ReplicaId,
    RequestId,
    Seconds,
    Tokens,
)


class InferenceState(StrEnum):
    """Where an inference is; the moves between them are in `transitions`."""

    WAITING = "waiting"
    LEASED = "leased"
    RUNNING = "running"
    ENDED = "ended"


class ApplicationState(StrEnum):
    """Whether an application takes inferences."""

    OPEN = "open"
    CLOSING = "closing"
    """Closed by its owner while inferences still wait or run."""


class LeaseState(StrEnum):
    """What is known of a lease."""

    GRANTED = "granted"
    RUNNING = "running"
    """The payload reached the replica."""


class Outcome(StrEnum):
    """How an inference or an application ended; a metric label."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"
    """The engine answered with an error that a retry would repeat."""
    EXPIRED = "expired"
    """Its application, or its ingress, was not heard of for too long."""


@dataclass(slots=True, eq=False)
class Inference:
    """One LLM call as the queue sees it: sizes, not text."""

    request_id: RequestId
    application_id: ApplicationId
    inference_id: InferenceId
    ingress_id: IngressId
    prompt_tokens: Tokens
    """Over all its sequences; corrected by the replica's count."""
    predicted_output_tokens: Tokens
    """Over all its sequences, at most `max_output_tokens`."""
    max_output_tokens: Tokens
    choices: int
    """Sequences it runs (prompts times n)."""
    submitted_at: Seconds
    sequence: int
    state: InferenceState = InferenceState.WAITING
    lease_id: LeaseId | None = None
    output_tokens: Tokens = 0
    """High-water mark over all attempts: tokens recomputed are not service."""
    attained: KvTokenTime = 0
    """Service metered so far, h(p, output_tokens); never falls."""
    attempts: int = 0
    again: bool = False
    """An earlier scheduler had it, and may have booked a part of its service."""
    true_output_tokens: Tokens | None = None
    """Where it is known: in simulators and replays."""
    passes: int = 0
    """How often another inference was started before it while it was first in line."""
    stage: int = 0
    """Where it stands in its application (`stages`)."""

    def cost(self, h: CostFunction, output_tokens: Tokens) -> KvTokenTime:
        """Return h of all its sequences, with so many output tokens over them all."""
        return choices_cost(h, self.prompt_tokens, output_tokens, self.choices)

    @property
    def order(self) -> tuple[Seconds, int]:
        """Place inside its application: first submitted first, a re-queued one where it was."""
        return (self.submitted_at, self.sequence)


@dataclass(slots=True, eq=False)
class Application:
    """A set of inferences whose result is wanted together."""

    application_id: ApplicationId
    application_class: str
    tenant: str
    weight: float
    predicted_kv_token_time: KvTokenTime
    ingress_id: IngressId
    """Who opened it last, and is told how it ended."""
    arrived_at: Seconds
    sequence: int
    state: ApplicationState = ApplicationState.OPEN
    waiting: WaitingLine = field(default_factory=WaitingLine)
    in_flight: set[RequestId] = field(default_factory=set)
    """Leased or running."""
    claimed: set[RequestId] = field(default_factory=set)
    """Said to hold a lease of an earlier scheduler, which no replica has confirmed yet."""
    kept_out: dict[RequestId, Inference] = field(default_factory=dict)
    """Would wait, but their ingress is silent (`ingresses`)."""
    idle_since: Seconds | None = None
    inferences: int = 0
    """Ended so far."""
    output_tokens: Tokens = 0
    """Of ended inferences."""
    first_dispatched_at: Seconds | None = None
    failed: int = 0
    kv_token_time: KvTokenTime = 0
    """Service it has received."""
    unfinished_kv_token_time: KvTokenTime = 0
    """The part of it that was for inferences that have not ended."""
    booked_before: KvTokenTime = 0
    """What of that an earlier scheduler booked, and is not to be booked again."""
    predicted_cost: float | None = None
    """In the unit of another cost function than KV token-time, where a driver knows it."""
    true_kv_token_time: KvTokenTime | None = None
    """Where it is known: in simulators and replays."""
    replicas: dict[ReplicaId, None] = field(default_factory=dict)
    """That have finished an inference of it: they may hold prefixes of its prompts."""
    stages: StageSums = field(default_factory=StageSums)
    openers: dict[IngressId, None] = field(default_factory=dict)
    """Every ingress that has it open: an application's inferences may come by several."""
    ended_leases: dict[LeaseId, None] = field(default_factory=dict)
    """Counted as ended, though their replicas may not know that yet, and report them again."""

    @property
    def waiting_count(self) -> int:
        """How many of its inferences wait, in the queue or kept out of it."""
        return len(self.waiting) + len(self.kept_out)

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it waits, is leased or runs, and nothing is kept out."""
        return not (self.waiting or self.in_flight or self.claimed or self.kept_out)


@dataclass(slots=True)
class Lease:
    """The right of one inference to run on one replica."""

    lease_id: LeaseId
    request_id: RequestId
    replica_id: ReplicaId
    granted_at: Seconds
    priority: int
    """For the engine: lower is served first."""
    state: LeaseState = LeaseState.GRANTED


@dataclass(frozen=True, slots=True)
class ReplicaCapacity:
    """What a replica can hold."""

    kv_tokens: Tokens
    block_size: Tokens = 1
    max_num_seqs: int = 256


@dataclass(slots=True)
class Replica:
    """A replica as the scheduler knows it."""

    replica_id: ReplicaId
    capacity: ReplicaCapacity
    heard_at: Seconds
    draining: bool = False
    drains_since: Seconds | None = None
    prompt_budget: Tokens | None = None
    """Prompt tokens that it still takes at once; None is no limit."""
    leases: Footprints = field(default_factory=Footprints)
    unaccounted_tokens: Tokens = 0
    """KV in use by its gauge beyond what its leases explain, e.g. an aborted call not yet freed."""
    ended: dict[LeaseId, ApplicationId | None] = field(default_factory=dict)
    """The ends that its last pull reported, and of which application, if that was known."""

    @property
    def sequences(self) -> int:
        """Sequences under lease."""
        return self.leases.sequences

    @property
    def context_tokens(self) -> Tokens:
        """KV held by its leases, whole blocks."""
        return self.leases.context_tokens + self.sequences * (self.capacity.block_size - 1)
