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
    """The application is over, but for what ingresses of an earlier scheduler may have to tell:
    later its id may be opened again."""
    QUEUE_FULL = "queue_full"
    """The quota of waiting inferences is used up, in all or of its tenant: later it may run."""
    TOO_MANY_APPLICATIONS = "too_many_applications"
    """The quota of open applications is used up: later its application may be opened."""
    NOT_STORED = "not_stored"
    """The store did not answer in time: later its application may be opened."""
    SUPERSEDED = "superseded"
    """Another scheduler leads, which this ingress cannot reach."""
    QUOTA_EXHAUSTED = "quota_exhausted"
    """A quota of its tenant, or of a node above, has nothing left in its period."""
    CAP_REACHED = "cap_reached"
    """The application has used up what one application may use: it takes no more inferences."""
    DEADLINE = "deadline"
    """The inference cannot make its deadline, or has missed it."""
    ENGINE_KILLER = "engine_killer"
    """Engines died under the inference, and under no other each time: it is not run again."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Lease the inference to the replica, and tell its ingress and the replica."""

    request_id: RequestId
    ingress_id: IngressId
    lease_id: LeaseId
    replica_id: ReplicaId
    priority: int
    """Priority for the engine: lower is served first."""
    kv_need_tokens: Tokens
    """The most KV that the inference is expected to hold."""
    waited_s: Seconds


@dataclass(frozen=True, slots=True)
class Abort:
    """Tell the replica that the lease holds no more; what runs under it is stopped."""

    replica_id: ReplicaId
    lease_id: LeaseId


@dataclass(frozen=True, slots=True)
class Refuse:
    """Tell the ingress that the inference will not run."""

    request_id: RequestId
    ingress_id: IngressId
    reason: Refusal
    limit: LimitStanding | None = None
    """The limit that binds, if it is one."""
    retry_after_s: Seconds | None = None
    """When the scope that refuses is expected to take one more; None: not known, or never."""


@dataclass(frozen=True, slots=True)
class RefuseApplication:
    """Tell the ingress that the application was not opened."""

    application_id: ApplicationId
    ingress_id: IngressId
    reason: Refusal = Refusal.TOO_MANY_APPLICATIONS
    limit: LimitStanding | None = None
    """The limit that binds, if it is one."""
    retry_after_s: Seconds | None = None
    """When the scope that refuses is expected to take one more; None: not known, or never."""


@dataclass(frozen=True, slots=True)
class Lag:
    """Lag: how far behind GPS an application was started last, and might have been."""

    kv_token_time: KvTokenTime
    """S(e) − S(f̄), token·iterations. If V has not reached its tag: S(e) − S(now), and it is less
    than that in the end."""
    seconds: Seconds
    """The time between those two levels of S."""
    bound_kv_token_time: KvTokenTime | None
    """The bound that the order promises (`lag.bound`), and one report; None if there is none."""
    bound_s: Seconds | None
    """The time in which that much is served: measured as far as the lag goes, and beyond it at the
    rate since the application arrived. None if there is no bound, or no service yet."""


@dataclass(frozen=True, slots=True)
class EndApplication:
    """The application is over: log it, count it, tell the ingress that opened it."""

    application_id: ApplicationId
    application_class: str
    tenant: str
    ingress_id: IngressId
    outcome: Outcome
    predicted_kv_token_time: KvTokenTime
    kv_token_time: KvTokenTime
    """Service that it really took."""
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
    """None if nothing of it was started, or it was late before this scheduler became leader."""
    stages: tuple[StageServed, ...] = ()
    """Sums of each stage; none if this scheduler has not seen all of them."""
    recognized_by: str = ""
    """Name of the rule by which its ingress recognised it; empty if that is not known."""
    cached_tokens: Tokens = 0
    """Prompt tokens that were in an engine's prefix cache."""


@dataclass(frozen=True, slots=True)
class ForgetApplication:
    """Tell another ingress that has the application open, too, that it is over."""

    application_id: ApplicationId
    ingress_id: IngressId


@dataclass(frozen=True, slots=True)
class EndsStored:
    """Tell an ingress that ends are counted and stored: it need not keep them any more."""

    ingress_id: IngressId
    request_ids: tuple[RequestId, ...] = ()
    """Inferences that have ended."""
    application_ids: tuple[ApplicationId, ...] = ()
    """Applications that are over."""


Action: TypeAlias = (
    Grant | Abort | Refuse | RefuseApplication | EndApplication | ForgetApplication | EndsStored
)
