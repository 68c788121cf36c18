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
    """Reason for which the scheduler refuses an inference or an application."""

    UNKNOWN_APPLICATION = "unknown_application"
    APPLICATION_CLOSED = "application_closed"
    APPLICATION_CANCELLED = "application_cancelled"
    APPLICATION_EXPIRED = "application_expired"
    APPLICATION_ENDING = "application_ending"
    """The application has ended, but ingresses may still resubmit inferences from an earlier
    scheduler. The application id may be opened again later.
    """
    QUEUE_FULL = "queue_full"
    """The quota of waiting inferences, in total or of the tenant, is used up for now."""
    TOO_MANY_APPLICATIONS = "too_many_applications"
    """The quota of open applications is used up for now."""
    NOT_STORED = "not_stored"
    """The store did not answer in time; opening the application later may succeed."""
    SUPERSEDED = "superseded"
    """Another scheduler has become the leader, and this ingress cannot reach that scheduler."""
    QUOTA_EXHAUSTED = "quota_exhausted"
    """A quota of the tenant, or of a node above the tenant, is exhausted for the quota's period."""
    CAP_REACHED = "cap_reached"
    """The application has reached a limit on its own usage (a cap), and takes no more inferences.
    """
    DEADLINE = "deadline"
    """The inference cannot start before its deadline, or has missed the deadline."""
    ENGINE_KILLER = "engine_killer"
    """Several engines died while they ran the inference, each time without another inference that
    may be the cause; it is not run again.
    """


@dataclass(frozen=True, slots=True)
class Grant:
    """Tell an ingress and a replica that an inference may run there under a lease."""

    request_id: RequestId
    ingress_id: IngressId
    lease_id: LeaseId
    replica_id: ReplicaId
    priority: int
    """Priority of the inference in the engine; a lower number is served first."""
    kv_need_tokens: Tokens
    """Largest number of KV tokens that the inference is expected to hold."""
    waited_s: Seconds


@dataclass(frozen=True, slots=True)
class Abort:
    """Revoke a lease, so that the replica stops the sequences of its inference."""

    replica_id: ReplicaId
    lease_id: LeaseId


@dataclass(frozen=True, slots=True)
class Refuse:
    """Notify an ingress that an inference will not run."""

    request_id: RequestId
    ingress_id: IngressId
    reason: Refusal
    limit: LimitStanding | None = None
    """Exhausted limit that caused the refusal; None if another reason caused the refusal."""
    retry_after_s: Seconds | None = None
    """Seconds until the refusing limit is expected to admit another inference; None: unknown, or
    never.
    """


@dataclass(frozen=True, slots=True)
class RefuseApplication:
    """Notify an ingress that an application was not opened."""

    application_id: ApplicationId
    ingress_id: IngressId
    reason: Refusal = Refusal.TOO_MANY_APPLICATIONS
    limit: LimitStanding | None = None
    """Exhausted limit that caused the refusal; None if another reason caused the refusal."""
    retry_after_s: Seconds | None = None
    """Seconds until the refusing limit is expected to admit another application; None: unknown, or
    never.
    """


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the last start of an application was behind GPS, with the upper bound on this lag."""

    kv_token_time: KvTokenTime
    """Service of all replicas from the time at which GPS finished the application until its last
    start, in token·iterations. If GPS has not finished the application yet, the service is counted
    from now on, which gives an upper limit of the lag.
    """
    seconds: Seconds
    """Time in seconds in which replicas delivered the service `kv_token_time`."""
    bound_kv_token_time: KvTokenTime | None
    """Largest lag that the order guarantees, in token·iterations; None: no bound. It includes the
    service of one report (`lag.bound`).
    """
    bound_s: Seconds | None
    """Seconds that the service of `bound_kv_token_time` takes; None: no bound, or no service yet.
    They are measured up to the lag, and for the rest computed by the mean rate since the
    application arrived.
    """


@dataclass(frozen=True, slots=True)
class EndApplication:
    """Log and count the end of an application, and tell its ingress."""

    application_id: ApplicationId
    application_class: str
    tenant: str
    ingress_id: IngressId
    outcome: Outcome
    predicted_kv_token_time: KvTokenTime
    kv_token_time: KvTokenTime
    """Service that the application received, in token·iterations."""
    virtual_finish_time: VirtualTime
    arrived_at: Seconds
    first_dispatched_at: Seconds | None
    ended_at: Seconds
    inferences: int
    failed: int
    output_tokens: Tokens
    settlements: int
    prompt_tokens: Tokens = 0
    """Prompt tokens of the application's inferences whose computation had begun."""
    lag: Lag | None = None
    """Lag of the application behind fair sharing; None if no inference started, or if this
    scheduler does not know the lag.
    """
    stages: tuple[StageServed, ...] = ()
    """Number and sizes of the inferences in each stage of the application; empty if this scheduler
    has not seen all stages.
    """
    recognized_by: str = ""
    """Name of the rule by which the ingress recognised the application; empty if unknown."""
    cached_tokens: Tokens = 0
    """Prompt tokens of the application that were in an engine's prefix cache."""


@dataclass(frozen=True, slots=True)
class ForgetApplication:
    """Notify every other ingress of an application that the application has ended."""

    application_id: ApplicationId
    ingress_id: IngressId


@dataclass(frozen=True, slots=True)
class EndsStored:
    """Notify an ingress that records of ended inferences are stored.

    The ingress can drop its copies.
    """

    ingress_id: IngressId
    request_ids: tuple[RequestId, ...] = ()
    """Ids of inferences that have ended."""
    application_ids: tuple[ApplicationId, ...] = ()
    """Ids of applications that have ended."""


Action: TypeAlias = (
    Grant | Abort | Refuse | RefuseApplication | EndApplication | ForgetApplication | EndsStored
)
