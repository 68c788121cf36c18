"""What ingress, scheduler and replica say to each other.

The scheduler's events and actions are the vocabulary (`core.events`, `core.actions`); these are the
envelopes. Every call is idempotent by id. A call of another epoch changes nothing and returns at
once, with the epoch in force, so that its sender can start over.
"""

from dataclasses import dataclass
from typing import TypeAlias

from justitia_ray.core.actions import (
    Abort,
    EndApplication,
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
    InferenceCancelled,
    InferenceSubmitted,
    LeaseFinished,
    LeaseProgress,
)
from justitia_ray.units import Epoch, ReplicaId, Seconds, Tokens, VirtualTime

Submission: TypeAlias = (
    ApplicationArrived | InferenceSubmitted | InferenceCancelled | ApplicationClosed
)
"""What an ingress sends in batches, in order."""
IngressMessage: TypeAlias = Grant | Refuse | RefuseApplication | EndApplication | ForgetApplication
ReplicaMessage: TypeAlias = Grant | Abort
NOT_TAKEN: Epoch = 0
"""In place of an epoch: the call came too late to count, and changed nothing."""


@dataclass(frozen=True, slots=True)
class Opened:
    """Answer to `open_application`."""

    epoch: Epoch
    virtual_finish_time: VirtualTime
    refusal: Refusal | None = None
    """If set, the application was not opened, and the tag means nothing."""


@dataclass(frozen=True, slots=True)
class IngressMail:
    """Answer to `submit_many` and `poll_grants`."""

    epoch: Epoch
    messages: tuple[tuple[int, IngressMessage], ...] = ()
    forgotten: bool = False
    """The ingress was silent for too long and what it had outstanding was ended; nothing was taken.

    Its name is not taken back: it has to begin again under another one.
    """


@dataclass(frozen=True, slots=True)
class Pull:
    """A replica asks for work: heartbeat, metering and completions in one."""

    replica_id: ReplicaId
    epoch: Epoch
    """0 at the first pull."""
    number: int
    """Rises by one with each pull: of two that overtake each other the older one is not taken."""
    ack: int
    """Number of the last message read."""
    capacity: ReplicaCapacity
    free_kv_tokens: Tokens
    progress: tuple[LeaseProgress, ...]
    """Every lease that it holds."""
    finished: tuple[LeaseFinished, ...]
    """Not yet confirmed by an answer; to a new scheduler, those of the last minute too."""
    preemptions: int
    wait_s: Seconds
    """How long the scheduler may keep the call if it has nothing to say."""
    draining: bool = False


@dataclass(frozen=True, slots=True)
class ReplicaMail:
    """Answer to `pull`."""

    epoch: Epoch
    messages: tuple[tuple[int, ReplicaMessage], ...] = ()
    draining: bool = False
    """The replica is to take no new lease."""
    backlog_kv_tokens: Tokens = 0
    """KV that everything waiting would need: a signal for autoscaling."""
