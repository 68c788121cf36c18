"""Events: the facts that the scheduler is told. Sizes are in tokens, times in seconds."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from justitia_ray.core.actions import EndsStored
from justitia_ray.core.entities import FailureCause, Outcome, ReplicaCapacity
from justitia_ray.core.stages import ExpectedStage
from justitia_ray.core.tenants import DEFAULT_TIER, TIERS, TenantTree, Tier
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
    """An application was opened. Repeating it is harmless.

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
    """In the unit of the policy's cost function, if that is not KV token-time. Not known: the
    application is charged the least, and by rule 1 of `fair_share` as it is served."""
    true_kv_token_time: KvTokenTime | None = None
    """Known in simulators and replays only: its lag is measured with it."""
    charge_kv_token_time: KvTokenTime | None = None
    """Charge of its account, if that is not the prediction (rule 6 of `fair_share`)."""
    resubmitted: bool = False
    """Whether it was open before, as its ingress knows: no quota rejects it."""
    recognized_by: str = ""
    """Name of the rule by which its ingress recognised it; empty if that is not known."""
    idle_s: Seconds | None = None
    """How long it may be idle before it ends, if not `Timeouts.application_s`; above 0."""
    expected_stages: tuple[ExpectedStage, ...] = ()
    """Stages that it is expected to have, from the first; none if nothing is known of them."""
    deadline_s: Seconds | None = None
    """Limit on the wait of each of its inferences that has none of its own; above 0."""
    tier: str = DEFAULT_TIER
    """Service tier: the weight is multiplied by its factor."""
    is_retry: bool | None = None
    """Whether its caller has asked before, and was refused; None: it does not say."""
    keeps_ends: bool = False
    """Whether its ingress keeps ends until it hears that they are stored (`EndsStored`)."""
    is_counted: bool = False
    """Whether its ingress has heard that it is over, counted and stored: it is opened for what
    waits of it again, because answers were lost."""
    reopens: bool = False
    """Whether its owner has opened it by a call of its own: also under the id of an application
    that was cancelled or closed lately."""

    def __post_init__(self) -> None:
        for name in ("idle_s", "deadline_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}: a finite number > 0, or None, is allowed")


@dataclass(frozen=True, slots=True)
class ApplicationClosed:
    """The owner of an application submits no more; what waits or runs goes on to its end."""

    application_id: ApplicationId


@dataclass(frozen=True, slots=True)
class ApplicationCancelled:
    """The owner of an application wants nothing of it any more."""

    application_id: ApplicationId


@dataclass(frozen=True, slots=True)
class ApplicationReopened:
    """The owner of an application opens its id once more.

    One that was stopped ends now, if nothing more may come of it; one that was closed goes on.
    """

    application_id: ApplicationId


@dataclass(frozen=True, slots=True)
class WeightChanged:
    """The weight of an application is another from now on."""

    application_id: ApplicationId
    weight: float


@dataclass(frozen=True, slots=True)
class ApplicationDeprioritised:
    """A quota that deprioritises has nothing left for an application, or has something again."""

    application_id: ApplicationId
    is_deprioritised: bool


@dataclass(frozen=True, slots=True)
class InferenceSubmitted:
    """An inference wants to run. Repeating it is harmless."""

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
    """The lease it holds from an earlier scheduler."""
    true_output_tokens: Tokens | None = None
    """Known in simulators and replays only: for policies that are told the truth."""
    stage: int | None = None
    """The stage of its application (`stages`), as its ingress sees it. An ingress hears of an
    end before the scheduler does, but may not have all inferences of the application."""
    remaining_kv_token_time: KvTokenTime | None = None
    """Service that its application is now expected to need from this stage on, if known."""
    expected_stages: tuple[ExpectedStage, ...] = ()
    """Stages that its application is now expected to have, from this one on; none if nothing is
    expected but what was before."""
    deadline_s: Seconds | None = None
    """Limit on its wait, from its first submission to its first lease; None: its application's,
    inf: none. One that is said to hold a lease has none any more."""
    is_retry: bool | None = None
    """Whether its caller has sent it before, and was refused; None: it does not say."""
    is_counted: bool | None = None
    """Whether its ingress has heard that its end is counted and stored; None: its ingress keeps
    no ends."""
    outcome: Outcome | None = None
    """How it has ended, as its ingress saw it: it is not to run again, but to be counted, unless
    it is. None: it has not ended."""
    reserve_output_tokens: Tokens | None = None
    """Output that its tenant's quotas reserve for it; None: all that it may make."""
    least_output_tokens: Tokens = 0
    """Output that it makes for certain."""
    prefixes: bytes = b""
    """Beginnings that its prompt may have in common with others (`prefixes.pack_prefixes`)."""
    copies: int = 1
    """Choices of each prompt, if the engine holds what they have in common once."""


@dataclass(frozen=True, slots=True)
class InferenceCancelled:
    """The caller of an inference is gone."""

    request_id: RequestId


class NackReason(StrEnum):
    """Why an ingress could not use a lease."""

    LEASE = "lease"
    """The replica does not hold the lease, or its engine died under it."""
    CONNECTION = "connection"
    """The ingress cannot reach the replica. Others may: it is leased to as before."""


@dataclass(frozen=True, slots=True)
class LeaseNacked:
    """The ingress could not use a lease: its inference waits again."""

    lease_id: LeaseId
    reason: NackReason


class LeaseProgress(NamedTuple):
    """The tokens of a lease so far, over all its sequences.

    A tuple, because every pull carries one for each lease and a data class pickles slowly.
    """

    lease_id: LeaseId
    prompt_tokens: Tokens
    """Prompt tokens as the engine counts them; 0 while it does not know."""
    output_tokens: Tokens
    running: bool
    """Whether its payload has reached the replica."""
    cached_tokens: Tokens | None = None
    """Prompt tokens that all its sequences found in the engine's cache; None until the first token
    of each."""


class LeaseFinished(NamedTuple):
    """The final report of a lease; a tuple for the reason of `LeaseProgress`."""

    lease_id: LeaseId
    prompt_tokens: Tokens
    """Of what was cut short: those of sequences that had their first token, and what is estimated
    to have been read of the others."""
    output_tokens: Tokens
    outcome: Outcome | None
    """None: the engine died under it, and the inference waits again."""
    booked: bool = False
    """An earlier scheduler has confirmed it: its service is in the accounts that it has left."""
    cached_tokens: Tokens | None = None
    """Prompt tokens that its sequences found in the engine's cache; None: none had a token."""


class LeaseRun(NamedTuple):
    """A lease that ran on an engine as it failed."""

    lease_id: LeaseId
    ran_s: Seconds
    """Time since its payload had reached the engine."""


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine of a replica failed while it ran these leases, which go on elsewhere.

    The replica is granted nothing more. With the cause `crash` the inferences are suspects.
    Repeating it is harmless.
    """

    replica_id: ReplicaId
    failure_id: str
    """Names this failure: the replica's id, if its engine fails only once."""
    cause: FailureCause
    ran: tuple[LeaseRun, ...]
    """The leases that had reached the engine and had not ended."""


@dataclass(frozen=True, slots=True)
class ReplicaCrashed:
    """The process of a replica has met with a fault of its own, such as SIGSEGV, and ends.

    All that is leased to it is suspect, as with an engine that has died by itself.
    """

    replica_id: ReplicaId


@dataclass(frozen=True, slots=True)
class ReplicaPulled:
    """A replica asks for work: heartbeat, metering and completions in one."""

    replica_id: ReplicaId
    capacity: ReplicaCapacity
    free_kv_tokens: Tokens
    """KV that is free by its own gauge."""
    progress: tuple[LeaseProgress, ...] | None = ()
    """Progress of every lease that it holds: one that ran and is not named is lost. None says
    nothing of them: all go on as they were."""
    finished: tuple[LeaseFinished, ...] = ()
    """Ends of leases, each reported again until the answer to such a pull has arrived."""
    draining: bool = False
    """Whether it takes no new lease."""
    stalled: bool = False
    """Whether its engine is alive and makes no steps: its leases go on elsewhere."""
    hangs: bool = False
    """Whether it is stalled and none of the engine's processes is suspended by a signal: what runs
    on it may have done that."""
    connected: bool = False
    """Whether its silence is no sign of its end: that is told by `ReplicaDisconnected`."""


@dataclass(frozen=True, slots=True)
class ReplicaReported:
    """A known replica reports progress; leases that are not named go on as they were.

    For drivers that lose no messages, such as a simulator: a pull asks, has withdrawn what is idle
    (rule 4), and is checked against what the core knows of leases and of ends told before.
    """

    replica_id: ReplicaId
    progress: tuple[LeaseProgress, ...] = ()
    finished: tuple[LeaseFinished, ...] = ()
    asks: bool = False
    """Whether it takes work until the next `PullAnswered`."""
    most_prompt_tokens: Tokens | None = None
    """Prompt tokens that it takes at once; None is no limit."""
    withdraws: bool = False
    """Whether idle applications are withdrawn: they submit nothing more at this instant."""
    reserved_kv_tokens: Tokens = 0
    """KV that is neither a lease's nor free."""


@dataclass(frozen=True, slots=True)
class PullAnswered:
    """The answer to a replica's pull is on its way; it gets no more grants until it pulls again."""

    replica_id: ReplicaId
    pulls_again: bool = False
    """Whether it does so as soon as it has the answer: an application whose context it holds is
    granted to it meanwhile."""


@dataclass(frozen=True, slots=True)
class ReplicaLost:
    """A replica is known to be dead."""

    replica_id: ReplicaId


@dataclass(frozen=True, slots=True)
class ReplicaDisconnected:
    """The last connection of a replica is lost: it is lost if it does not call in time."""

    replica_id: ReplicaId


@dataclass(frozen=True, slots=True)
class IngressHeartbeat:
    """An ingress called."""

    ingress_id: IngressId


@dataclass(frozen=True, slots=True)
class Resubmitted:
    """An ingress has submitted again all that it has of earlier schedulers."""

    ingress_id: IngressId


@dataclass(frozen=True, slots=True)
class StateStored:
    """All is stored that had changed when `SchedulerCore.take_changed` was called last."""


@dataclass(frozen=True, slots=True)
class EndsAcknowledged:
    """An ingress has read that ends are stored."""

    told: EndsStored


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """The operator chose another policy; the queue stays."""

    policy: str
    options: tuple[tuple[str, object], ...] = ()
    admission: str = "peak"


@dataclass(frozen=True, slots=True)
class TenantsChanged:
    """The operator described other tenants or tiers; what is owed stays."""

    tenants: TenantTree
    tiers: Mapping[str, Tier] = field(default_factory=lambda: TIERS)


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """Time went by and nothing else happened."""


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
    | DeadlinePassed
)
