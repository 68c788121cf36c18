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
    """Predicted cost in the unit of the policy's cost function, if that unit is not KV token-time.
    None: the application is charged the minimum, and more by rule 1 of `fair_share` when it
    receives service.
    """
    true_kv_token_time: KvTokenTime | None = None
    """True service of the application, available in simulators and replays only; the lag is
    measured with it.
    """
    charge_kv_token_time: KvTokenTime | None = None
    """Amount charged to the account instead of the prediction (rule 6 of `fair_share`)."""
    resubmitted: bool = False
    """Whether the ingress had the application open under an earlier scheduler; then no quota
    rejects the application.
    """
    recognized_by: str = ""
    """Name of the rule by which the ingress recognised the application; empty if unknown."""
    idle_s: Seconds | None = None
    """Seconds for which the application may be idle before it ends, above 0; None:
    `Timeouts.application_s`.
    """
    expected_stages: tuple[ExpectedStage, ...] = ()
    """Expected stages of the application, from the first; empty if unknown."""
    deadline_s: Seconds | None = None
    """Limit on the wait of each inference without a deadline of its own (seconds, above 0)."""
    tier: str = DEFAULT_TIER
    """Service tier of the application, whose factor multiplies the weight."""
    is_retry: bool | None = None
    """Whether the caller repeats a refused request; None: the caller does not state this."""
    keeps_ends: bool = False
    """Whether the ingress keeps records of ended inferences until `EndsStored` confirms them."""
    is_counted: bool = False
    """Whether the ingress knows that the ended application is counted and stored. The ingress then
    opens the application again, because answers were lost and some inferences still wait.
    """
    reopens: bool = False
    """Whether the owner opened the application by an explicit call. This call is allowed even with
    the id of an application that was recently cancelled or closed.
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
    """The owner of an application has cancelled it: its inferences are stopped."""

    application_id: ApplicationId


@dataclass(frozen=True, slots=True)
class ApplicationReopened:
    """The owner of an application makes the application's id usable again.

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
    """A quota that deprioritises is exhausted for an application, or has capacity again."""

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
    """Lease from an earlier scheduler that the inference holds."""
    true_output_tokens: Tokens | None = None
    """True number of output tokens, available in simulators and replays only, for policies that
    need it.
    """
    stage: int | None = None
    """Stage of the application (`stages`), as the ingress counts stages. The ingress learns earlier
    than the scheduler that an inference has ended, but may not see all inferences of the
    application.
    """
    remaining_kv_token_time: KvTokenTime | None = None
    """Service that the application is now expected to need from this stage on; None: unknown."""
    expected_stages: tuple[ExpectedStage, ...] = ()
    """Expected stages of the application from this stage on; empty if the expectation has not
    changed.
    """
    deadline_s: Seconds | None = None
    """Limit on the inference's wait from first submission to first lease (seconds); None: the
    application's limit, inf: no limit. The limit does not apply to an inference that claims a
    lease.
    """
    is_retry: bool | None = None
    """Whether the caller repeats a refused request; None: the caller does not state this."""
    is_counted: bool | None = None
    """Whether the ingress knows that the ended inference is counted and stored; None: the ingress
    keeps no such records.
    """
    outcome: Outcome | None = None
    """Outcome that the ingress recorded under an earlier scheduler. The inference is then not run
    again, only counted if it has not been counted. None: the inference has not ended.
    """
    reserve_output_tokens: Tokens | None = None
    """Output tokens that the tenant's quotas reserve for the inference; None: its maximum."""
    least_output_tokens: Tokens = 0
    """Number of output tokens that the inference produces at least."""
    prefixes: bytes = b""
    """Beginnings that the prompt may share with other prompts (`prefixes.pack_prefixes`)."""
    copies: int = 1
    """Number of choices of each prompt, if the engine stores the prompt once for all its
    choices.
    """


@dataclass(frozen=True, slots=True)
class InferenceCancelled:
    """The caller of an inference has disconnected or cancelled the inference."""

    request_id: RequestId


class NackReason(StrEnum):
    """Why an ingress could not use a lease."""

    LEASE = "lease"
    """The replica does not hold the lease, or the engine died during the inference."""
    CONNECTION = "connection"
    """The ingress cannot reach the replica. Other ingresses may reach the replica, so the replica
    gets leases as before.
    """


@dataclass(frozen=True, slots=True)
class LeaseNacked:
    """The ingress could not use a lease, whose inference waits again."""

    lease_id: LeaseId
    reason: NackReason


class LeaseProgress(NamedTuple):
    """Tokens of a lease so far, summed over the lease's sequences.

    A tuple, because every pull carries one for each lease and a data class pickles slowly.
    """

    lease_id: LeaseId
    prompt_tokens: Tokens
    """Prompt tokens as the engine counts them; 0 while unknown."""
    output_tokens: Tokens
    running: bool
    """Whether the payload of the lease has reached the replica."""
    cached_tokens: Tokens | None = None
    """Prompt tokens that the lease's sequences found in the engine's cache; None until each
    sequence has its first token.
    """
    recomputed_tokens: Tokens = 0
    """Tokens that the engine computed again after a preemption of the lease's sequences."""


class LeaseFinished(NamedTuple):
    """Final report of a lease; a tuple for speed, as `LeaseProgress` is."""

    lease_id: LeaseId
    prompt_tokens: Tokens
    """Prompt tokens of the lease. If the lease was cut short: the prompts of sequences that had
    their first token, and an estimate of the computed part of the other prompts.
    """
    output_tokens: Tokens
    outcome: Outcome | None
    """How the inference ended; None: it did not end, because the engine died, the lease was
    aborted, or the connection to its ingress was lost.
    """
    booked: bool = False
    """Whether an earlier scheduler has confirmed that the lease ended: its service is in the
    restored accounts.
    """
    cached_tokens: Tokens | None = None
    """Prompt tokens that the lease's sequences found in the engine's cache; None: no sequence had a
    token.
    """
    recomputed_tokens: Tokens = 0
    """Tokens that the engine computed again after a preemption of the lease's sequences."""


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
    """Name of the engine failure: the replica's id if the replica's engine can fail only once."""
    cause: FailureCause
    ran: tuple[LeaseRun, ...]
    """Leases that had reached the engine and had not ended."""


@dataclass(frozen=True, slots=True)
class ReplicaCrashed:
    """The process of a replica crashed by itself, for instance with SIGSEGV.

    All inferences leased to the replica are suspects, as after an engine has died by itself.
    """

    replica_id: ReplicaId


@dataclass(frozen=True, slots=True)
class ReplicaPulled:
    """A replica pulls for work, and reports its heartbeat, progress of leases and ended leases."""

    replica_id: ReplicaId
    capacity: ReplicaCapacity
    free_kv_tokens: Tokens
    """Free KV tokens by the engine's gauge."""
    progress: tuple[LeaseProgress, ...] | None = ()
    """Progress of every lease that the replica holds; a running lease that is missing is lost.
    None: the pull reports no progress, and all leases continue.
    """
    finished: tuple[LeaseFinished, ...] = ()
    """Leases that ended. Each is reported again until the answer to a pull with it has arrived."""
    draining: bool = False
    """Whether the replica is draining and takes no new lease."""
    stalled: bool = False
    """Whether the replica's engine is alive but makes no steps; the leases of the replica are
    requeued.
    """
    hangs: bool = False
    """Whether the replica is stalled although no engine process is suspended by a signal; then one
    of its inferences may be the cause.
    """
    connected: bool = False
    """Whether the replica has a connection to the scheduler. A connected replica is not lost
    because it is silent; `ReplicaDisconnected` reports that the connection closed.
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
    """Largest number of prompt tokens that the replica accepts at once; None: no limit."""
    withdraws: bool = False
    """Whether idle applications are withdrawn, because they submit no more inferences at this
    time.
    """
    reserved_kv_tokens: Tokens = 0
    """KV tokens that are neither free nor held by leases."""


@dataclass(frozen=True, slots=True)
class PullAnswered:
    """The answer to a replica's pull was sent: no more grants to the replica until it pulls."""

    replica_id: ReplicaId
    pulls_again: bool = False
    """Whether the replica pulls again as soon as it has the answer. Until then it may be granted
    inferences of applications whose contexts it holds.
    """


@dataclass(frozen=True, slots=True)
class ReplicaLost:
    """A replica is dead: it is removed, and its leases are requeued."""

    replica_id: ReplicaId


@dataclass(frozen=True, slots=True)
class ReplicaDisconnected:
    """A replica's last connection closed; the replica is lost unless it pulls in time."""

    replica_id: ReplicaId


@dataclass(frozen=True, slots=True)
class IngressHeartbeat:
    """An ingress sent a heartbeat."""

    ingress_id: IngressId


@dataclass(frozen=True, slots=True)
class Resubmitted:
    """An ingress has resubmitted all inferences that it had submitted to earlier schedulers."""

    ingress_id: IngressId


@dataclass(frozen=True, slots=True)
class StateStored:
    """The changes that the last `SchedulerCore.take_changed` returned are stored."""


@dataclass(frozen=True, slots=True)
class EndsAcknowledged:
    """An ingress has confirmed that it received an `EndsStored`."""

    told: EndsStored


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """The operator selected another policy; the queue stays."""

    policy: str
    options: tuple[tuple[str, object], ...] = ()
    admission: str = "peak"


@dataclass(frozen=True, slots=True)
class TenantsChanged:
    """The operator changed the tenants or the tiers. What GPS owes each tenant stays the same."""

    tenants: TenantTree
    tiers: Mapping[str, Tier] = field(default_factory=lambda: TIERS)


@dataclass(frozen=True, slots=True)
class PrefillMeasured:
    """A replica has measured the cost of computing prompts.

    Only the first measurement by a release of the service counts.
    """

    cost: PrefillCost
    release: str
    """Release of the service that measured the cost."""


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """A deadline of the core has passed without another event."""


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
