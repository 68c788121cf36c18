"""Actions: the commands of the scheduler, which the driver of the core carries out in order."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from justitia_ray.core.entities import Outcome
from justitia_ray.core.limits import LimitStanding
from justitia_ray.core.stages import StageServed
from justitia_ray.units import (
    ApplicationId,
    IngressId,
    KvTokenTime,
    LeaseId,
    ReplicaId,
    RequestId,
    Seconds,
    Tokens,
    VirtualTime,
)


class Refusal(StrEnum):
    """Why an inference will not run."""

    UNKNOWN_APPLICATION = "unknown_application"
    APPLICATION_CLOSED = "application_closed"
    APPLICATION_CANCELLED = "application_cancelled"
    APPLICATION_EXPIRED = "application_expired"
    APPLICATION_ENDING = "application_ending"
    """The application is over, but ingresses may still resubmit inferences from an earlier
    scheduler. The id may be opened again later.
    """
    QUEUE_FULL = "queue_full"
    """The quota of waiting inferences is used up, in all or for its tenant; a later attempt may
    succeed.
    """
    TOO_MANY_APPLICATIONS = "too_many_applications"
    """The quota of open applications is used up; a later attempt may succeed."""
    NOT_STORED = "not_stored"
    """The store did not answer in time; a later attempt to open the application may succeed."""
    SUPERSEDED = "superseded"
    """Another scheduler is the leader, and this ingress cannot reach it."""
    QUOTA_EXHAUSTED = "quota_exhausted"
    """A quota of its tenant, or of a node above, is exhausted for its period."""
    CAP_REACHED = "cap_reached"
    """The application has reached its cap, and takes no more inferences."""
    DEADLINE = "deadline"
    """The inference cannot make its deadline, or has missed it."""
    ENGINE_KILLER = "engine_killer"
    """Engines died under the inference, each time without another suspect; it is not run again."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Grant the lease to the inference: notify its ingress and the replica."""

    request_id: RequestId
    ingress_id: IngressId
    lease_id: LeaseId
    replica_id: ReplicaId
    priority: int
    """Priority in the engine; a lower number is served first."""
    kv_need_tokens: Tokens
    """The most KV that the inference is expected to hold."""
    waited_s: Seconds


@dataclass(frozen=True, slots=True)
class Abort:
    """Revoke the lease at its replica, which stops its sequences."""

    replica_id: ReplicaId
    lease_id: LeaseId


@dataclass(frozen=True, slots=True)
class Refuse:
    """Notify the ingress that the inference will not run."""

    request_id: RequestId
    ingress_id: IngressId
    reason: Refusal
    limit: LimitStanding | None = None
    """The exhausted limit, if one is the reason."""
    retry_after_s: Seconds | None = None
    """Time until the refusing limit is expected to have a free place; None: unknown, or never."""


@dataclass(frozen=True, slots=True)
class RefuseApplication:
    """Notify the ingress that the application was not opened."""

    application_id: ApplicationId
    ingress_id: IngressId
    reason: Refusal = Refusal.TOO_MANY_APPLICATIONS
    limit: LimitStanding | None = None
    """The exhausted limit, if one is the reason."""
    retry_after_s: Seconds | None = None
    """Time until the refusing limit is expected to have a free place; None: unknown, or never."""


@dataclass(frozen=True, slots=True)
class Lag:
    """Lag: how far behind GPS the last start of an application was, with the bound on it."""

    kv_token_time: KvTokenTime
    """S(e) − S(f̄), token·iterations. While V has not reached the tag: S(e) − S(now), an upper
    limit.
    """
    seconds: Seconds
    """Time between these two levels of S."""
    bound_kv_token_time: KvTokenTime | None
    """Bound that the order guarantees (`lag.bound`), plus one report; None: no bound."""
    bound_s: Seconds | None
    """Time in which that amount is served: measured up to the lag, and beyond it at the mean rate
    since the application arrived. None: no bound, or no service yet.
    """


@dataclass(frozen=True, slots=True)
class EndApplication:
    """End the application: log it, count it, notify the ingress that opened it."""

    application_id: ApplicationId
    application_class: str
    tenant: str
    ingress_id: IngressId
    outcome: Outcome
    predicted_kv_token_time: KvTokenTime
    kv_token_time: KvTokenTime
    """Service that it received."""
    virtual_finish_time: VirtualTime
    arrived_at: Seconds
    first_dispatched_at: Seconds | None
    ended_at: Seconds
    inferences: int
    failed: int
    output_tokens: Tokens
    settlements: int
    prompt_tokens: Tokens = 0
    """Prompt tokens of its inferences that had begun."""
    lag: Lag | None = None
    """Lag; None if it had no start, or was already late before this scheduler became leader."""
    stages: tuple[StageServed, ...] = ()
    """Sums of each stage; empty if this scheduler has not seen all of them."""
    recognized_by: str = ""
    """Name of the rule by which its ingress recognised it; empty if unknown."""
    cached_tokens: Tokens = 0
    """Prompt tokens that were in an engine's prefix cache."""


@dataclass(frozen=True, slots=True)
class ForgetApplication:
    """Tell another ingress with this application open that the application has ended."""

    application_id: ApplicationId
    ingress_id: IngressId


@dataclass(frozen=True, slots=True)
class EndsStored:
    """Notify an ingress that ends are counted and stored, so that it can drop them."""

    ingress_id: IngressId
    request_ids: tuple[RequestId, ...] = ()
    """Inferences that have ended."""
    application_ids: tuple[ApplicationId, ...] = ()
    """Applications that are over."""


Action: TypeAlias = (
    Grant | Abort | Refuse | RefuseApplication | EndApplication | ForgetApplication | EndsStored
)
