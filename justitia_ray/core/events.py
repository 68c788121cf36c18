"""Events: the facts that the driver reports to the scheduler.

Sizes are in tokens, times in seconds.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from justitia_ray.core.actions import EndsStored
from justitia_ray.core.entities import FailureCause, Outcome, ReplicaCapacity
from justitia_ray.core.stages import ExpectedStage
from justitia_ray.core.tenants import DEFAULT_TIER, TIERS, TenantTree, Tier
from justitia_ray.cost import PrefillCost
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


@dataclass(frozen=True, slots=True)
class ApplicationArrived:
    """An application was opened. This event may be repeated.

    Raises:
        ValueError: If the idle time is not above 0: a record with it could not be restored.
    """

    application_id: ApplicationId
    application_class: str
    tenant: str
    weight: float
    predicted_kv_token_time: KvTokenTime
    ingress_id: IngressId
    predicted_cost: float | None = None
    """Predicted cost in the unit of the policy's cost function; None: unknown, or the unit is KV
    token-time. Without a prediction the application is charged the minimum, and more as it receives
    service.
    """
    true_kv_token_time: KvTokenTime | None = None
    """True service of the application, from which lags are measured; known only in simulators and
    replays.
    """
    charge_kv_token_time: KvTokenTime | None = None
    """Charge of the application in token·iterations; None: the predicted cost."""
    resubmitted: bool = False
    """Whether an earlier scheduler had admitted the application; then no quota rejects it."""
    recognized_by: str = ""
    """Name of the rule by which the ingress recognised the application; empty if unknown."""
    idle_s: Seconds | None = None
    """Seconds without inferences after which the application ends, above 0; None: the default."""
    expected_stages: tuple[ExpectedStage, ...] = ()
    """Predicted stages of the application, from the first; empty if unknown."""
    deadline_s: Seconds | None = None
    """Longest wait in seconds of an inference that has no deadline of its own, above 0."""
    tier: str = DEFAULT_TIER
    """Service tier of the application, whose factor multiplies the weight."""
    is_retry: bool | None = None
    """Whether the caller repeats a refused request; None if the caller does not say."""
    keeps_ends: bool = False
    """Whether the ingress stores records of ended inferences until `EndsStored` confirms them."""
    is_counted: bool = False
    """Whether the application has ended, and the end is counted and stored. The ingress opens it
    again, because answers were lost and some inferences still wait.
    """
    reopens: bool = False
    """Whether the owner opened the application by a call of its own, which may name a recently
    cancelled or closed application.
    """

    def __post_init__(self) -> None:
        for name in ("idle_s", "deadline_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}: a finite number > 0, or None, is allowed")


@dataclass(frozen=True, slots=True)
class ApplicationClosed:
    """The owner of an application submits no more inferences.

    The present inferences run until they end.
    """

    application_id: ApplicationId


@dataclass(frozen=True, slots=True)
class ApplicationCancelled:
    """The owner of an application has cancelled it, and its inferences are stopped."""

    application_id: ApplicationId


@dataclass(frozen=True, slots=True)
class ApplicationReopened:
    """The owner of a closed or cancelled application opens it again.

    A stopped application ends now if no replica can report on it any more; a closed application
    continues.
    """

    application_id: ApplicationId


@dataclass(frozen=True, slots=True)
class WeightChanged:
    """The weight of an application changes from now on."""

    application_id: ApplicationId
    weight: float


@dataclass(frozen=True, slots=True)
class ApplicationDeprioritised:
    """An application has exhausted a deprioritising quota, or that quota is available again."""

    application_id: ApplicationId
    is_deprioritised: bool


@dataclass(frozen=True, slots=True)
class InferenceSubmitted:
    """An inference was submitted. This event may be repeated."""

    request_id: RequestId
    application_id: ApplicationId
    inference_id: InferenceId
    ingress_id: IngressId
    prompt_tokens: Tokens
    predicted_output_tokens: Tokens
    max_output_tokens: Tokens
    choices: int = 1
    resubmitted: bool = False
    """Whether the ingress had submitted the inference to an earlier scheduler."""
    age_s: Seconds = 0.0
    """Seconds since the inference was first submitted."""
    lease_id: LeaseId | None = None
    """Lease of an earlier scheduler under which the inference runs."""
    true_output_tokens: Tokens | None = None
    """True number of output tokens, known only in simulators and replays, for policies that need
    it.
    """
    stage: int | None = None
    """Number of the application's stage, as the ingress counts stages. The ingress learns ends of
    inferences earlier than the scheduler, but may not see all inferences of the application.
    """
    remaining_kv_token_time: KvTokenTime | None = None
    """Predicted service of the application from this stage on, in token·iterations; None: unknown.
    """
    expected_stages: tuple[ExpectedStage, ...] = ()
    """Predicted stages of the application from this stage on; empty if the prediction has not
    changed.
    """
    deadline_s: Seconds | None = None
    """Longest wait of the inference in seconds, from its first submission until it starts. None:
    the application's limit; inf: no limit. The limit does not apply to an inference that already
    has a lease.
    """
    is_retry: bool | None = None
    """Whether the caller repeats a refused request; None if the caller does not say."""
    is_counted: bool | None = None
    """Whether the ended inference is counted and stored; None: the ingress stores no such records.
    """
    outcome: Outcome | None = None
    """How the inference ended under an earlier scheduler; it is then only counted. None: the
    inference has not ended.
    """
    reserve_output_tokens: Tokens | None = None
    """Output tokens reserved from the tenant's quotas for the inference; None: its maximum."""
    least_output_tokens: Tokens = 0
    """Smallest number of output tokens that the inference produces."""
    prefixes: bytes = b""
    """Beginnings that the prompt may share with other prompts (`prefixes.pack_prefixes`)."""
    copies: int = 1
    """Number of choices (`n`) of each prompt, if the engine stores a prompt once for all its
    choices.
    """


@dataclass(frozen=True, slots=True)
class InferenceCancelled:
    """The caller of an inference has disconnected or cancelled it."""

    request_id: RequestId


class NackReason(StrEnum):
    """Reason for which an ingress could not use a lease."""

    LEASE = "lease"
    """The replica does not know the lease, or the engine died during the inference."""
    CONNECTION = "connection"
    """The ingress cannot reach the replica. Other ingresses may reach it, so the replica gets
    leases as before.
    """


@dataclass(frozen=True, slots=True)
class LeaseNacked:
    """An ingress could not use a lease, and the inference waits again."""

    lease_id: LeaseId
    reason: NackReason


class LeaseProgress(NamedTuple):
    """Tokens of a lease so far, summed over its sequences.

    A tuple, because every pull carries one for each lease and a data class pickles slowly.
    """

    lease_id: LeaseId
    prompt_tokens: Tokens
    """Prompt tokens as the engine counts them; 0 if unknown."""
    output_tokens: Tokens
    running: bool
    """Whether the payload of the lease has reached the replica."""
    cached_tokens: Tokens | None = None
    """Prompt tokens found in the engine's prefix cache; None until each sequence has its first
    token.
    """
    recomputed_tokens: Tokens = 0
    """Tokens that the engine computed again after preempting sequences of the lease."""


class LeaseFinished(NamedTuple):
    """A replica's last report of a lease; a tuple for speed, as `LeaseProgress` is."""

    lease_id: LeaseId
    prompt_tokens: Tokens
    """Prompt tokens that the replica computed or found in its cache. After an early end the
    computed part of prompts without output is an estimate.
    """
    output_tokens: Tokens
    outcome: Outcome | None
    """How the inference ended. None: it did not end, because the engine died, the lease was
    aborted, or the ingress lost its connection.
    """
    booked: bool = False
    """Whether an earlier scheduler has already counted the service of the lease."""
    cached_tokens: Tokens | None = None
    """Prompt tokens found in the engine's prefix cache; None: no sequence had a token."""
    recomputed_tokens: Tokens = 0
    """Tokens that the engine computed again after preempting sequences of the lease."""


class LeaseRun(NamedTuple):
    """A lease that was running on an engine when the engine failed."""

    lease_id: LeaseId
    ran_s: Seconds
    """Seconds since the payload of the lease reached the engine."""


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine of a replica failed, and the leases of the replica are requeued.

    The replica is granted no more leases. With the cause `crash` its inferences are suspected of
    having killed the engine. A repeated event has no effect.
    """

    replica_id: ReplicaId
    failure_id: str
    """Name of this engine failure, or the replica's id if its engine can fail only once."""
    cause: FailureCause
    ran: tuple[LeaseRun, ...]
    """Leases whose inferences ran on the engine when it failed."""


@dataclass(frozen=True, slots=True)
class ReplicaCrashed:
    """The process of a replica crashed by itself, for instance with SIGSEGV.

    All inferences leased to the replica are suspects, as after an engine has died by itself.
    """

    replica_id: ReplicaId


@dataclass(frozen=True, slots=True)
class ReplicaPulled:
    """A replica reports to the scheduler and asks for leases."""

    replica_id: ReplicaId
    capacity: ReplicaCapacity
    free_kv_tokens: Tokens
    """Free KV tokens, as the engine reports them."""
    progress: tuple[LeaseProgress, ...] | None = ()
    """Progress of every lease of the replica; a running lease that is missing is lost. None: all
    leases continue.
    """
    finished: tuple[LeaseFinished, ...] = ()
    """Leases that ended. Each is reported again until the scheduler has answered."""
    draining: bool = False
    """Whether the replica is draining and takes no new lease."""
    stalled: bool = False
    """Whether the engine is alive but makes no steps; the replica's leases are then requeued."""
    hangs: bool = False
    """Whether an inference may have caused the engine to stand still: no signal suspends an engine
    process.
    """
    connected: bool = False
    """Whether the replica has a connection to the scheduler. A silent replica with a connection is
    not lost; `ReplicaDisconnected` reports when the connection closes.
    """


@dataclass(frozen=True, slots=True)
class ReplicaReported:
    """A known replica reports progress of leases; leases that the report does not name continue.

    For drivers that lose no messages, such as a simulator. A pull, in contrast, asks for work,
    withdraws idle applications (rule 4), and is checked against the leases that the core has
    recorded as running or ended.
    """

    replica_id: ReplicaId
    progress: tuple[LeaseProgress, ...] = ()
    finished: tuple[LeaseFinished, ...] = ()
    asks: bool = False
    """Whether the replica accepts leases until the next `PullAnswered`."""
    most_prompt_tokens: Tokens | None = None
    """Most prompt tokens that the replica accepts at once; None: no limit."""
    withdraws: bool = False
    """Whether idle applications leave GPS with this report."""
    reserved_kv_tokens: Tokens = 0
    """KV tokens that are neither free nor used by leases."""


@dataclass(frozen=True, slots=True)
class PullAnswered:
    """The scheduler has answered a replica, and grants it nothing until it asks again."""

    replica_id: ReplicaId
    pulls_again: bool = False
    """Whether the replica asks again at once. Until then it may be granted inferences of
    applications whose contexts it has cached.
    """


@dataclass(frozen=True, slots=True)
class ReplicaLost:
    """A replica is dead: it is removed, and its leases are requeued."""

    replica_id: ReplicaId


@dataclass(frozen=True, slots=True)
class ReplicaDisconnected:
    """A replica has lost its last connection; it is lost unless it reports in time."""

    replica_id: ReplicaId


@dataclass(frozen=True, slots=True)
class IngressHeartbeat:
    ingress_id: IngressId


@dataclass(frozen=True, slots=True)
class Resubmitted:
    """An ingress has resubmitted all inferences that earlier schedulers had."""

    ingress_id: IngressId


@dataclass(frozen=True, slots=True)
class StateStored:
    """The store has saved the changes that `SchedulerCore.take_changed` returned last."""


@dataclass(frozen=True, slots=True)
class EndsAcknowledged:
    """An ingress has confirmed that it received an `EndsStored`."""

    told: EndsStored


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """The operator selected another policy; the queue is kept."""

    policy: str
    options: tuple[tuple[str, object], ...] = ()
    admission: str = "peak"


@dataclass(frozen=True, slots=True)
class TenantsChanged:
    """The operator changed tenants or tiers; the service that GPS owes each tenant is kept."""

    tenants: TenantTree
    tiers: Mapping[str, Tier] = field(default_factory=lambda: TIERS)


@dataclass(frozen=True, slots=True)
class PrefillMeasured:
    """A replica has measured the cost of computing prompts.

    Only the first measurement by a release of the service counts.
    """

    cost: PrefillCost
    release: str
    """Version of the service that measured the cost."""


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """A time has come at which the core asked to be called."""


Event: TypeAlias = (
    ApplicationArrived
    | ApplicationClosed
    | ApplicationCancelled
    | ApplicationReopened
    | WeightChanged
    | ApplicationDeprioritised
    | InferenceSubmitted
    | InferenceCancelled
    | LeaseNacked
    | EngineFailed
    | ReplicaCrashed
    | ReplicaPulled
    | ReplicaReported
    | PullAnswered
    | ReplicaLost
    | ReplicaDisconnected
    | IngressHeartbeat
    | Resubmitted
    | StateStored
    | EndsAcknowledged
    | PolicyChanged
    | TenantsChanged
    | PrefillMeasured
    | DeadlinePassed
)
