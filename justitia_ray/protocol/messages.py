"""Messages between ingress, scheduler and replica.

Their contents are the scheduler's events and actions (`core.events`, `core.actions`); this module
defines the envelopes. Every call is idempotent by id. A call with another epoch changes nothing and
returns at once with the current epoch, so that its sender can start over.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from justitia_ray.core.actions import (
    Abort,
    EndApplication,
    EndsStored,
    ForgetApplication,
    Grant,
    Refusal,
    Refuse,
    RefuseApplication,
)
from justitia_ray.core.entities import ReplicaCapacity
from justitia_ray.core.events import (
    ApplicationArrived,
    ApplicationClosed,
    EngineFailed,
    InferenceCancelled,
    InferenceSubmitted,
    LeaseFinished,
    LeaseProgress,
    Resubmitted,
)
from justitia_ray.core.limits import LimitStanding
from justitia_ray.core.prefill_costs import MeasuredPrefill
from justitia_ray.units import (
    ApplicationId,
    ClientId,
    Epoch,
    LeaseId,
    ReplicaId,
    RequestId,
    Seconds,
    Tokens,
    VirtualTime,
)

Submission: TypeAlias = (
    ApplicationArrived | InferenceSubmitted | InferenceCancelled | ApplicationClosed | Resubmitted
)
"""Items that an ingress sends in batches, in order."""
IngressMessage: TypeAlias = (
    Grant | Refuse | RefuseApplication | EndApplication | ForgetApplication | EndsStored
)


@dataclass(frozen=True, slots=True)
class HoldContext:
    """Keep the context that the inference of a lease leaves; sent with the lease."""

    lease_id: LeaseId
    application_id: ApplicationId
    for_s: Seconds
    """Time after the inference's end."""


@dataclass(frozen=True, slots=True)
class ReleaseContexts:
    """Keep the contexts of an application no longer; sent when it has ended."""

    application_id: ApplicationId


ReplicaMessage: TypeAlias = Grant | Abort | HoldContext | ReleaseContexts
NOT_TAKEN: Epoch = 0
"""Returned instead of an epoch if the call came too late and had no effect."""


@dataclass(frozen=True, slots=True)
class Opened:
    """Answer to `open_application`."""

    epoch: Epoch
    virtual_finish_time: VirtualTime
    refusal: Refusal | None = None
    """Why the application was not opened; the virtual finish time is then meaningless."""
    limit: LimitStanding | None = None
    """The limit that caused the refusal, if any."""
    retry_after_s: Seconds | None = None
    """Time until a retry may succeed; None: unknown."""
    standings: tuple[LimitStanding, ...] = ()
    """Limits of the tenant, if the application was opened."""


@dataclass(frozen=True, slots=True)
class IngressMail:
    """Answer to `submit_many` and `poll_grants`."""

    epoch: Epoch
    messages: tuple[tuple[int, IngressMessage], ...] = ()
    forgotten: bool = False
    """True if the ingress was expired with all its pending calls; nothing was accepted.

    The ingress id stays expired: the ingress has to submit everything again under a new id.
    """
    addresses: Mapping[ReplicaId, str] = field(default_factory=dict)
    """Addresses of the replicas in the grants among the messages."""
    standings: Mapping[ClientId, tuple[LimitStanding, ...]] = field(default_factory=dict)
    """Limits of the tenants in the grants; empty for a tenant without limits."""
    positions: Mapping[RequestId, int] = field(default_factory=dict)
    """Number of applications ahead of each inference submitted with this call."""


@dataclass(frozen=True, slots=True)
class Pull:
    """A replica's call for work, which also reports liveness, usage and completions."""

    replica_id: ReplicaId
    epoch: Epoch
    """Epoch of the leader; 0 in the first pull."""
    number: int
    """Number of the pull, from 1; the scheduler ignores a pull overtaken by a later one."""
    ack: int
    """Number of the last message that the replica has read."""
    capacity: ReplicaCapacity
    free_kv_tokens: Tokens
    progress: tuple[LeaseProgress, ...] | None
    """Progress of all leases that the replica holds, sent every `replica.report_interval_s` and
    whenever an earlier report may be lost; None in other pulls, which report only ends."""
    finished: tuple[LeaseFinished, ...]
    """Ends not yet confirmed by an answer; for a new leader also those of the last minute."""
    preemptions: int
    wait_s: Seconds
    """Longest time that the scheduler may hold the call while there is no message."""
    draining: bool = False
    address: str = ""
    """Host and port at which ingresses can call the replica."""
    stalled: bool = False
    """Whether the engine is alive but makes no steps."""
    hangs: bool = False
    """Whether the engine is stalled and none of its processes is suspended by a signal."""
    failure: EngineFailed | None = None
    """How the engine failed; repeated in every later pull."""
    prefill: MeasuredPrefill | None = None
    """Cost of computing prompts that the replica has measured; None: it measures none."""


@dataclass(frozen=True, slots=True)
class ReplicaMail:
    """Answer to `pull`."""

    epoch: Epoch
    messages: tuple[tuple[int, ReplicaMessage], ...] = ()
    backlog_kv_tokens: Tokens = 0
    """KV tokens that all waiting inferences would need, as a signal for autoscaling."""
