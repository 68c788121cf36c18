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
from justitia_ray.protocol.engine import KeptKv
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
"""Items that an ingress sends in order in a batch."""
IngressMessage: TypeAlias = (
    Grant | Refuse | RefuseApplication | EndApplication | ForgetApplication | EndsStored
)


@dataclass(frozen=True, slots=True)
class HoldContext:
    """Order to keep the context that the inference of a lease leaves; sent with the lease."""

    lease_id: LeaseId
    application_id: ApplicationId
    for_s: Seconds
    """Time after the inference's end for which the context is kept."""


@dataclass(frozen=True, slots=True)
class ReleaseContexts:
    """Order to stop keeping an application's contexts; sent when the application has ended."""

    application_id: ApplicationId


ReplicaMessage: TypeAlias = Grant | Abort | HoldContext | ReleaseContexts
NOT_TAKEN: Epoch = 0
"""Value that a pull returns instead of an epoch if it had no effect: a later pull has overtaken it,
or it is the first pull of an unknown replica and does not name the replica's leases. The replica
ignores the value as a lower epoch, and names its leases in its next pull.
"""


@dataclass(frozen=True, slots=True)
class Opened:
    """Answer to `open_application`."""

    epoch: Epoch
    virtual_finish_time: VirtualTime
    refusal: Refusal | None = None
    """Reason why the application was not opened; the virtual finish time then has no meaning."""
    limit: LimitStanding | None = None
    """The limit that caused the refusal, if any."""
    retry_after_s: Seconds | None = None
    """Seconds until a retry may succeed; None: unknown."""
    standings: tuple[LimitStanding, ...] = ()
    """State of the tenant's limits, if the application was opened."""
    is_known: bool = False
    """Whether the application was open before the call, and keeps its class, weight and charge."""


@dataclass(frozen=True, slots=True)
class IngressMail:
    """Answer to `submit_many` and `poll_grants`."""

    epoch: Epoch
    messages: tuple[tuple[int, IngressMessage], ...] = ()
    forgotten: bool = False
    """Whether the ingress has expired with all its pending calls, so that nothing was accepted. It
    has to submit everything again under a new id."""
    addresses: Mapping[ReplicaId, str] = field(default_factory=dict)
    """Addresses of the replicas in the messages' grants."""
    standings: Mapping[ClientId, tuple[LimitStanding, ...]] = field(default_factory=dict)
    """State of the limits of the tenants in the grants; empty for a tenant without limits."""
    positions: Mapping[RequestId, int] = field(default_factory=dict)
    """Number of applications ahead of each inference submitted with this call."""


@dataclass(frozen=True, slots=True)
class Pull:
    """Call of a replica for work; it also reports progress, ended inferences and failures."""

    replica_id: ReplicaId
    epoch: Epoch
    """Epoch of the leader; 0 in the first pull."""
    number: int
    """Number of the pull, from 1; the scheduler ignores a pull that arrives after a later one."""
    ack: int
    """Number of the last message that the replica has read."""
    capacity: ReplicaCapacity
    free_kv_tokens: Tokens
    progress: tuple[LeaseProgress, ...] | None
    """Progress of all leases that the replica holds, sent every `replica.report_interval_s` and
    when an earlier report may be lost; None in other pulls, which report only ends."""
    finished: tuple[LeaseFinished, ...]
    """Ended inferences that no answer has confirmed; for a new leader also those of the last
    minute.
    """
    preemptions: int
    wait_s: Seconds
    """Longest time in seconds for which the scheduler may hold the call without a message."""
    draining: bool = False
    address: str = ""
    """Host and port at which ingresses can call the replica."""
    stalled: bool = False
    """Whether the engine is alive but makes no steps."""
    hangs: bool = False
    """Whether the engine is stalled and none of its processes is suspended by a signal."""
    failure: EngineFailed | None = None
    """Failure of the engine; repeated in every later pull."""
    prefill: MeasuredPrefill | None = None
    """Measured cost of computing prompts; None if the replica does not measure it."""
    kept: KeptKv | None = None
    """Held contexts and use of the host memory; None: the engine has neither."""


@dataclass(frozen=True, slots=True)
class ReplicaMail:
    """Answer to `pull`."""

    epoch: Epoch
    messages: tuple[tuple[int, ReplicaMessage], ...] = ()
    backlog_kv_tokens: Tokens = 0
    """KV tokens that all waiting inferences need."""
