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
    """An application was opened. The event may be repeated.

    Raises:
        ValueError: If the idle time is not above 0: no record with it could be read again.
    """

    application_id: ApplicationId
    application_class: str
    tenant: str
    weight: float
    predicted_kv_token_time: KvTokenTime
    ingress_id: IngressId
    predicted_cost: float | None = None
    """Predicted cost in the unit of the policy's cost function, if that is not KV token-time. None:
    the application is charged the minimum, and more by rule 1 of `fair_share` as it is served.
    """
    true_kv_token_time: KvTokenTime | None = None
    """True service, available in simulators and replays only; the lag is measured with it."""
    charge_kv_token_time: KvTokenTime | None = None
    """Amount charged to the account instead of the prediction (rule 6 of `fair_share`)."""
    resubmitted: bool = False
    """Whether the ingress had it open under an earlier scheduler; then no quota rejects it."""
    recognized_by: str = ""
    """Name of the rule by which the ingress recognised the application; empty if unknown."""
    idle_s: Seconds | None = None
    """How long the application may be idle before it ends; None: `Timeouts.application_s`. Above 0.
    """
    expected_stages: tuple[ExpectedStage, ...] = ()
    """Expected stages of the application, from the first; empty if unknown."""
    deadline_s: Seconds | None = None
    """Limit on the wait of each inference that has no deadline itself (seconds, above 0)."""
    tier: str = DEFAULT_TIER
    """Service tier: the weight is multiplied by its factor."""
    is_retry: bool | None = None
    """Whether the caller repeats a request that was refused; None: the caller does not state it."""
    keeps_ends: bool = False
    """Whether the ingress keeps ends until it receives `EndsStored` for them."""
    is_counted: bool = False
    """Whether the ingress has confirmation that the application is over, counted and stored. It is
    then opened again because answers were lost and some of its inferences still wait.
    """
    reopens: bool = False
    """Whether the owner opened it by an explicit call; this is allowed even under the id of an
    application that was recently cancelled or closed.
    """

    def __post_init__(self) -> None:
        for name in ("idle_s", "deadline_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}: a finite number > 0, or None, is allowed")


@dataclass(frozen=True, slots=True)
class ApplicationClosed:
    """The owner of an application submits no more; its inferences go on to their ends."""

    application_id: ApplicationId


@dataclass(frozen=True, slots=True)
class ApplicationCancelled:
    """The owner of an application has cancelled it: its inferences are stopped."""

    application_id: ApplicationId


@dataclass(frozen=True, slots=True)
class ApplicationReopened:
    """The owner of an application opens its id again.

    A stopped application ends now if no more reports on it can come; a closed one continues.
    """

    application_id: ApplicationId


@dataclass(frozen=True, slots=True)
class WeightChanged:
    """The weight of an application changes from now on."""

    application_id: ApplicationId
    weight: float


@dataclass(frozen=True, slots=True)
class ApplicationDeprioritised:
    """A deprioritising quota of an application is exhausted, or has capacity again."""

    application_id: ApplicationId
    is_deprioritised: bool


@dataclass(frozen=True, slots=True)
class InferenceSubmitted:
    """An inference was submitted. The event may be repeated."""

    request_id: RequestId
    application_id: ApplicationId
    inference_id: InferenceId
    ingress_id: IngressId
    prompt_tokens: Tokens
    predicted_output_tokens: Tokens
    max_output_tokens: Tokens
    choices: int = 1
    resubmitted: bool = False
    """Whether it had been submitted to an earlier scheduler."""
    age_s: Seconds = 0.0
    """Time since it was first submitted."""
    lease_id: LeaseId | None = None
    """Lease of an earlier scheduler that the inference holds."""
    true_output_tokens: Tokens | None = None
    """True output length, available in simulators and replays only, for policies that need it."""
    stage: int | None = None
    """Stage of its application (`stages`), as its ingress counts it. The ingress learns of an end
    before the scheduler does, but may not see all inferences of the application.
    """
    remaining_kv_token_time: KvTokenTime | None = None
    """Service that its application is now expected to need from this stage on, if known."""
    expected_stages: tuple[ExpectedStage, ...] = ()
    """Expected stages of its application from this one on; empty if the expectation has not
    changed.
    """
    deadline_s: Seconds | None = None
    """Limit on its wait from first submission to first lease (seconds); None: the application's
    limit, inf: no limit. It does not apply to an inference that claims a lease.
    """
    is_retry: bool | None = None
    """Whether the caller repeats a request that was refused; None: the caller does not state it."""
    is_counted: bool | None = None
    """Whether its ingress has confirmation that its end is counted and stored; None: the ingress
    keeps no ends.
    """
    outcome: Outcome | None = None
    """How the inference ended for its ingress, under an earlier scheduler. It is then not run
    again, only counted if it has not been. None: it has not ended.
    """
    reserve_output_tokens: Tokens | None = None
    """Output that its tenant's quotas reserve for it; None: its maximum."""
    least_output_tokens: Tokens = 0
    """Output that it certainly produces."""
    prefixes: bytes = b""
    """Beginnings that its prompt may share with other prompts (`prefixes.pack_prefixes`)."""
    copies: int = 1
    """Number of choices of each prompt, if the engine stores their common part once."""


@dataclass(frozen=True, slots=True)
class InferenceCancelled:
    """The caller of an inference has disconnected or cancelled it."""

    request_id: RequestId


class NackReason(StrEnum):
    """Why an ingress could not use a lease."""

    LEASE = "lease"
    """The replica does not hold the lease, or its engine died during the call."""
    CONNECTION = "connection"
    """The ingress cannot reach the replica. Other ingresses may, so the replica gets leases as
    before.
    """


@dataclass(frozen=True, slots=True)
class LeaseNacked:
    """The ingress could not use a lease; its inference waits again."""

    lease_id: LeaseId
    reason: NackReason


class LeaseProgress(NamedTuple):
    """Tokens of a lease so far, summed over its sequences.

    A tuple, because every pull carries one for each lease and a data class pickles slowly.
    """

    lease_id: LeaseId
    prompt_tokens: Tokens
    """Prompt tokens as the engine counts them; 0 while unknown."""
    output_tokens: Tokens
    running: bool
    """Whether the payload has reached the replica."""
    cached_tokens: Tokens | None = None
    """Prompt tokens that its sequences found in the engine's cache; None until each has its first
    token.
    """
    recomputed_tokens: Tokens = 0
    """Tokens that the engine computed again after it had preempted its sequences."""


class LeaseFinished(NamedTuple):
    """The final report of a lease; a tuple for the reason of `LeaseProgress`."""

    lease_id: LeaseId
    prompt_tokens: Tokens
    """Prompt tokens. If the lease was cut short: those of sequences that had their first token, and
    an estimate of what was read of the others.
    """
    output_tokens: Tokens
    outcome: Outcome | None
    """How the inference ended; None: the engine died under it, and it waits again."""
    booked: bool = False
    """Whether an earlier scheduler has confirmed this end: its service is in the restored accounts.
    """
    cached_tokens: Tokens | None = None
    """Prompt tokens that its sequences found in the engine's cache; None: no sequence had a token.
    """
    recomputed_tokens: Tokens = 0
    """Tokens that the engine computed again after it had preempted its sequences."""


class LeaseRun(NamedTuple):
    """A lease that was running on an engine when it failed."""

    lease_id: LeaseId
    ran_s: Seconds
    """Time since the payload reached the engine."""


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine of a replica failed; its leases are requeued.

    The replica is granted nothing more. With the cause `crash` the inferences are suspects.
    Repeating it is harmless.
    """

    replica_id: ReplicaId
    failure_id: str
    """Name of this failure: the replica's id, if its engine can fail only once."""
    cause: FailureCause
    ran: tuple[LeaseRun, ...]
    """Leases that had reached the engine and had not ended."""


@dataclass(frozen=True, slots=True)
class ReplicaCrashed:
    """The process of a replica crashed by itself, for instance with SIGSEGV.

    All that is leased to it is suspect, as with an engine that has died by itself.
    """

    replica_id: ReplicaId


@dataclass(frozen=True, slots=True)
class ReplicaPulled:
    """A replica pulls for work: heartbeat, metering and completions in one event."""

    replica_id: ReplicaId
    capacity: ReplicaCapacity
    free_kv_tokens: Tokens
    """Free KV by the engine's gauge."""
    progress: tuple[LeaseProgress, ...] | None = ()
    """Progress of every lease that it holds; a running lease that is missing is lost. None: the
    pull says nothing about them, and all continue.
    """
    finished: tuple[LeaseFinished, ...] = ()
    """Ends of leases, each repeated until the answer to a pull that contained it has arrived."""
    draining: bool = False
    """Whether it takes no new lease."""
    stalled: bool = False
    """Whether its engine is alive but makes no steps; its leases are requeued."""
    hangs: bool = False
    """Whether it is stalled although no engine process is suspended by a signal: one of its
    inferences may be the cause.
    """
    connected: bool = False
    """Whether it has a connection, so that its silence does not mean that it is lost;
    `ReplicaDisconnected` reports the end of the connection.
    """


@dataclass(frozen=True, slots=True)
class ReplicaReported:
    """A known replica reports progress; leases that it does not name continue.

    For drivers that lose no messages, such as a simulator. A pull, in contrast, asks for work,
    withdraws idle applications (rule 4), and is checked against the leases and ends that the core
    has recorded.
    """

    replica_id: ReplicaId
    progress: tuple[LeaseProgress, ...] = ()
    finished: tuple[LeaseFinished, ...] = ()
    asks: bool = False
    """Whether it takes work until the next `PullAnswered`."""
    most_prompt_tokens: Tokens | None = None
    """Most prompt tokens that it accepts at once; None: no limit."""
    withdraws: bool = False
    """Whether idle applications are withdrawn: they submit nothing more at this instant."""
    reserved_kv_tokens: Tokens = 0
    """KV that is neither free nor held by leases."""


@dataclass(frozen=True, slots=True)
class PullAnswered:
    """The answer to a replica's pull was sent: no more grants until it pulls again."""

    replica_id: ReplicaId
    pulls_again: bool = False
    """Whether it pulls again as soon as it has the answer. Until then it may be granted inferences
    of applications whose contexts it holds.
    """


@dataclass(frozen=True, slots=True)
class ReplicaLost:
    """A replica is dead."""

    replica_id: ReplicaId


@dataclass(frozen=True, slots=True)
class ReplicaDisconnected:
    """The last connection of a replica closed; the replica is lost if it does not pull in time."""

    replica_id: ReplicaId


@dataclass(frozen=True, slots=True)
class IngressHeartbeat:
    """An ingress sent a heartbeat."""

    ingress_id: IngressId


@dataclass(frozen=True, slots=True)
class Resubmitted:
    """An ingress has resubmitted everything that it had from earlier schedulers."""

    ingress_id: IngressId


@dataclass(frozen=True, slots=True)
class StateStored:
    """The changes that the last `SchedulerCore.take_changed` returned are stored."""


@dataclass(frozen=True, slots=True)
class EndsAcknowledged:
    """An ingress has confirmed an `EndsStored`."""

    told: EndsStored


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """The operator selected another policy; the queue is kept."""

    policy: str
    options: tuple[tuple[str, object], ...] = ()
    admission: str = "peak"


@dataclass(frozen=True, slots=True)
class TenantsChanged:
    """The operator changed the tenants or tiers; debts are kept."""

    tenants: TenantTree
    tiers: Mapping[str, Tier] = field(default_factory=lambda: TIERS)


@dataclass(frozen=True, slots=True)
class PrefillMeasured:
    """A replica has measured the cost of computing prompts; the first of a release counts."""

    cost: PrefillCost
    release: str
    """Release of the service that measured it."""


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """A deadline was reached without another event."""


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
