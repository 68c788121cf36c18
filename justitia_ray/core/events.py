"""What can happen to the scheduler, as facts. All are frozen; sizes in tokens, times in seconds."""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from justitia_ray.core.entities import Outcome, ReplicaCapacity
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
    """An application was opened. Repeating it is harmless."""

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
    """Where it is known (simulators, replays): what its lag is measured with."""
    charge_kv_token_time: KvTokenTime | None = None
    """What its account is charged, if that is not the prediction (rule 6 of `fair_share`)."""
    again: bool = False
    """It was open already, by what its ingress knows: no limit keeps it out."""


@dataclass(frozen=True, slots=True)
class ApplicationClosed:
    """Its owner will submit no more; what waits or runs goes on to its end."""

    application_id: ApplicationId


@dataclass(frozen=True, slots=True)
class ApplicationCancelled:
    """Its owner wants nothing of it any more."""

    application_id: ApplicationId


@dataclass(frozen=True, slots=True)
class WeightChanged:
    """The application's weight is another from now on."""

    application_id: ApplicationId
    weight: float


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
    again: bool = False
    """It had been submitted to an earlier scheduler."""
    age_s: Seconds = 0.0
    """How long ago it was first submitted."""
    lease_id: LeaseId | None = None
    """The lease it holds from an earlier scheduler."""
    true_output_tokens: Tokens | None = None
    """Where it is known (simulators, replays): for policies that are told the truth."""
    stage: int | None = None
    """Where it stands in its application (`stages`), as its ingress sees it. An ingress hears of an
    end before the scheduler does, but may not have all inferences of the application."""
    remaining_kv_token_time: KvTokenTime | None = None
    """What its application is now expected to need from this stage on, if that is known."""


@dataclass(frozen=True, slots=True)
class InferenceCancelled:
    """Its caller is gone."""

    request_id: RequestId


@dataclass(frozen=True, slots=True)
class LeaseRefused:
    """The ingress could not use a lease."""

    lease_id: LeaseId
    replica_id: ReplicaId
    replica_gone: bool
    """The replica takes no calls any more: nothing else is leased to it."""


class LeaseProgress(NamedTuple):
    """What a lease has used so far, over all its sequences.

    A tuple, because every pull carries one for each lease and a data class pickles slowly.
    """

    lease_id: LeaseId
    prompt_tokens: Tokens
    """As the engine counts them; 0 while it does not know."""
    output_tokens: Tokens
    running: bool
    """Its payload has reached the replica."""


class LeaseFinished(NamedTuple):
    """The last word on a lease; a tuple for the same reason."""

    lease_id: LeaseId
    prompt_tokens: Tokens
    output_tokens: Tokens
    outcome: Outcome | None
    """None: the engine died under it, and the inference waits again."""
    booked: bool = False
    """An earlier scheduler has confirmed it: its service is in the accounts that it has left."""


@dataclass(frozen=True, slots=True)
class ReplicaPulled:
    """A replica asks for work: heartbeat, metering and completions in one."""

    replica_id: ReplicaId
    capacity: ReplicaCapacity
    free_kv_tokens: Tokens
    """By its own gauge."""
    progress: tuple[LeaseProgress, ...] = ()
    """Every lease that it holds."""
    finished: tuple[LeaseFinished, ...] = ()
    """Each is reported again until the answer to such a pull has arrived."""
    draining: bool = False
    """It will take no new lease."""


@dataclass(frozen=True, slots=True)
class ReplicaReported:
    """What a known replica has done; leases that are not named go on as they were.

    For drivers that lose no messages, such as a simulator: a pull names every lease, asks, and has
    withdrawn what is idle (rule 4).
    """

    replica_id: ReplicaId
    progress: tuple[LeaseProgress, ...] = ()
    finished: tuple[LeaseFinished, ...] = ()
    asks: bool = False
    """It takes work until the next `PullAnswered`."""
    most_prompt_tokens: Tokens | None = None
    """Prompt tokens that it takes at once; None is no limit."""
    withdraws: bool = False
    """What is idle now submits nothing more at this instant."""
    reserved_kv_tokens: Tokens = 0
    """KV that is no lease's, and not free."""


@dataclass(frozen=True, slots=True)
class PullAnswered:
    """The answer to a replica's pull is on its way; it is asked no more until it pulls again."""

    replica_id: ReplicaId


@dataclass(frozen=True, slots=True)
class ReplicaLost:
    """A replica is known to be dead."""

    replica_id: ReplicaId


@dataclass(frozen=True, slots=True)
class IngressHeard:
    """An ingress called."""

    ingress_id: IngressId


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """The order is another from now on; the queue stays."""

    policy: str
    options: tuple[tuple[str, object], ...] = ()
    admission: str = "peak"


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """Time went by and nothing else happened."""


Event: TypeAlias = (
    ApplicationArrived
    | ApplicationClosed
    | ApplicationCancelled
    | WeightChanged
    | InferenceSubmitted
    | InferenceCancelled
    | LeaseRefused
    | ReplicaPulled
    | ReplicaReported
    | PullAnswered
    | ReplicaLost
    | IngressHeard
    | PolicyChanged
    | DeadlinePassed
)
