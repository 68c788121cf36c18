"""The messages between ingress, scheduler and replica.

The scheduler's events and actions are the vocabulary (`core.events`, `core.actions`); these are the
envelopes. Every call is idempotent by id. A call of another epoch changes nothing and returns at
once, with the epoch in force, so that its sender can start over.
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
from justitia_ray.units import ClientId, Epoch, ReplicaId, RequestId, Seconds, Tokens, VirtualTime

Submission: TypeAlias = (
    ApplicationArrived | InferenceSubmitted | InferenceCancelled | ApplicationClosed | Resubmitted
)
"""Items that an ingress sends in batches, in order."""
IngressMessage: TypeAlias = (
    Grant | Refuse | RefuseApplication | EndApplication | ForgetApplication | EndsStored
)
ReplicaMessage: TypeAlias = Grant | Abort
NOT_TAKEN: Epoch = 0
"""In place of an epoch: the call came too late to count, and changed nothing."""


@dataclass(frozen=True, slots=True)
class Opened:
    """Answer to `open_application`."""

    epoch: Epoch
    virtual_finish_time: VirtualTime
    refusal: Refusal | None = None
    """Why the application was not opened; the tag means nothing then."""
    limit: LimitStanding | None = None
    """The limit that binds, if it is one."""
    retry_after_s: Seconds | None = None
    """When it may be opened; None: not known."""
    standings: tuple[LimitStanding, ...] = ()
    """The limits of its tenant, if it was opened."""


@dataclass(frozen=True, slots=True)
class IngressMail:
    """Answer to `submit_many` and `poll_grants`."""

    epoch: Epoch
    messages: tuple[tuple[int, IngressMessage], ...] = ()
    forgotten: bool = False
    """The ingress was expired with all that it had pending; nothing was taken.

    The ingress id stays expired: the ingress has to submit everything under another one.
    """
    addresses: Mapping[ReplicaId, str] = field(default_factory=dict)
    """Where the replicas of the grants among the messages can be called."""
    standings: Mapping[ClientId, tuple[LimitStanding, ...]] = field(default_factory=dict)
    """The limits of the tenants of these grants, none for a tenant that has none any more."""
    positions: Mapping[RequestId, int] = field(default_factory=dict)
    """Number of applications before each inference that came with this call."""
    tells_stored: bool = False
    """Whether the scheduler says which ends are stored (`EndsStored`) to ingresses that keep them,
    and awaits their `Resubmitted`: one of an earlier version does neither."""


@dataclass(frozen=True, slots=True)
class Pull:
    """A replica's call for work: heartbeat, metering and completions in one."""

    replica_id: ReplicaId
    epoch: Epoch
    """0 at the first pull."""
    number: int
    """Number of the pull, from 1: a pull that a later one has overtaken is not taken."""
    ack: int
    """Number of the last message read."""
    capacity: ReplicaCapacity
    free_kv_tokens: Tokens
    progress: tuple[LeaseProgress, ...] | None
    """Every lease that the replica holds, once in `replica.report_interval_s`, and whenever the
    scheduler may not know what an earlier pull said of them; else None, and ends come alone."""
    finished: tuple[LeaseFinished, ...]
    """Ends not yet confirmed by an answer; to a new leader, those of the last minute too."""
    preemptions: int
    wait_s: Seconds
    """How long the scheduler may keep the call while there is no message."""
    draining: bool = False
    address: str = ""
    """Host and port at which ingresses can call the replica."""
    stalled: bool = False
    """Whether the engine is alive and makes no steps."""
    hangs: bool = False
    """Whether it is stalled and none of its processes is suspended by a signal."""
    failure: EngineFailed | None = None
    """How its engine failed, with each pull after that."""


@dataclass(frozen=True, slots=True)
class ReplicaMail:
    """Answer to `pull`."""

    epoch: Epoch
    messages: tuple[tuple[int, ReplicaMessage], ...] = ()
    backlog_kv_tokens: Tokens = 0
    """KV that everything waiting would need: a signal for autoscaling."""
