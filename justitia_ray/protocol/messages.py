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
"""Items that an ingress submits to the scheduler in one ordered batch."""
IngressMessage: TypeAlias = (
    Grant | Refuse | RefuseApplication | EndApplication | ForgetApplication | EndsStored
)


@dataclass(frozen=True, slots=True)
class HoldContext:
    """Order to a replica to keep the context of an inference after its end; sent with the lease."""

    lease_id: LeaseId
    application_id: ApplicationId
    for_s: Seconds
    """Seconds for which a context is kept after the end of its inference."""


@dataclass(frozen=True, slots=True)
class ReleaseContexts:
    """Order to a replica to drop an application's cached contexts, because it has ended."""

    application_id: ApplicationId


ReplicaMessage: TypeAlias = Grant | Abort | HoldContext | ReleaseContexts
NOT_TAKEN: Epoch = 0
"""Answer, in place of an epoch, to a replica's report that had no effect: a later report overtook
it, or an unknown replica did not name its leases. The replica then names all its leases.
"""


@dataclass(frozen=True, slots=True)
class Opened:
    """Answer of the scheduler to `open_application`."""

    epoch: Epoch
    virtual_finish_time: VirtualTime
    refusal: Refusal | None = None
    """Reason why the application was not opened. The virtual finish time then has no meaning."""
    limit: LimitStanding | None = None
    """Quota or other limit that caused the refusal, if any."""
    retry_after_s: Seconds | None = None
    """Seconds until a retry may succeed; None: unknown."""
    standings: tuple[LimitStanding, ...] = ()
    """State of the tenant's quotas, if the application was opened."""
    is_known: bool = False
    """Whether the application was already open, so that its class, weight and charge did not
    change.
    """


@dataclass(frozen=True, slots=True)
class IngressMail:
    """Answer of the scheduler to `submit_many` and `poll_grants`."""

    epoch: Epoch
    messages: tuple[tuple[int, IngressMessage], ...] = ()
    forgotten: bool = False
    """Whether the ingress was unknown to the scheduler, so that nothing was accepted. The ingress
    must submit everything again under a new id.
    """
    addresses: Mapping[ReplicaId, str] = field(default_factory=dict)
    """Addresses of the replicas that granted leases refer to."""
    standings: Mapping[ClientId, tuple[LimitStanding, ...]] = field(default_factory=dict)
    """State of the quotas of tenants with granted leases; empty for a tenant without quotas."""
    positions: Mapping[RequestId, int] = field(default_factory=dict)
    """Number of applications ahead of each inference submitted with this call."""


@dataclass(frozen=True, slots=True)
class Pull:
    """Call of a replica to the scheduler, to fetch leases and to report progress and ends."""

    replica_id: ReplicaId
    epoch: Epoch
    """Epoch of the leading scheduler; 0 in the replica's first call."""
    number: int
    """Number of the replica's call, from 1; the scheduler ignores a call that arrives after a later
    one.
    """
    ack: int
    """Number of the last message that the replica has read."""
    capacity: ReplicaCapacity
    free_kv_tokens: Tokens
    progress: tuple[LeaseProgress, ...] | None
    """Token counts of all leases on the replica, sent every `replica.report_interval_s`; None in
    calls that report only ends.
    """
    finished: tuple[LeaseFinished, ...]
    """Ended inferences that the scheduler has not confirmed; a new leader also gets the inferences
    of the last minute.
    """
    preemptions: int
    wait_s: Seconds
    """Longest time in seconds for which the scheduler may wait for a message before it answers."""
    draining: bool = False
    address: str = ""
    """Host and port at which ingresses can call the replica."""
    stalled: bool = False
    """Whether the engine is alive but makes no steps."""
    hangs: bool = False
    """Whether the engine is stalled although none of its processes is suspended by a signal."""
    failure: EngineFailed | None = None
    """Failure of the engine, repeated in every later call."""
    prefill: MeasuredPrefill | None = None
    """Measured cost of computing prompts; None if the replica does not measure it."""
    kept: KeptKv | None = None
    """Cached contexts and use of the host memory; None: the engine has neither."""


@dataclass(frozen=True, slots=True)
class ReplicaMail:
    """Answer of the scheduler to a replica's `pull`."""

    epoch: Epoch
    messages: tuple[tuple[int, ReplicaMessage], ...] = ()
    backlog_kv_tokens: Tokens = 0
    """KV tokens that all waiting inferences need."""
