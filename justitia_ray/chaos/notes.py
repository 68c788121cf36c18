"""What the callers and the strikers noted."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from justitia_ray.chaos.answers import Answer
from justitia_ray.chaos.kinds import Kind
from justitia_ray.units import ApplicationId, Epoch, ReplicaId, Seconds


class Ending(StrEnum):
    """How a call ended."""

    ANSWERED = "answered"
    LEFT = "left"
    """Its caller disconnected."""
    BROKEN = "broken"
    """The connection broke, or the service said that it failed."""
    CUT = "cut"
    """A stream that had begun ended with an error event, or broke off."""
    GIVEN_UP = "given up"
    """No answer in the time that a caller waits, or one that says that there never will be."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one caller."""

    inference: str
    application_id: ApplicationId
    number: int
    """Of this inference's calls, from 1."""
    called_at: Seconds
    ended_at: Seconds
    ending: Ending
    detail: str = ""
    """Why it broke."""
    answer: Answer | None = None
    flaws: tuple[str, ...] = ()
    """What a stream brought that none may bring."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One fault, as it was carried out."""

    kind: Kind
    strike: int
    struck_at: Seconds
    back_at: Seconds
    """When what was stopped went on; the same as `struck_at` if nothing was to be put back."""
    target: str = ""
    """Whom it hit."""
    pid: int | None = None
    """The process that was killed or stopped, where the journal knows it."""
    epoch: Epoch = 0
    """Of the scheduler at the strike."""
    done_at: Seconds | None = None
    """When the striker itself saw the recovery, where no note or sample shows it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What the scheduler said of itself."""

    at: Seconds
    epoch: Epoch
    ready: bool
    degraded: bool
    saves: int
    leases: Mapping[ReplicaId, int]
    """How many it books on each replica that it knows."""


@dataclass(frozen=True, slots=True)
class Tag:
    """The place of an application that had not begun, before and after a scheduler was killed."""

    application_id: ApplicationId
    before: float
    after: float


@dataclass(slots=True)
class Notes:
    """Everything that was noted in a run."""

    calls: list[Call] = field(default_factory=list)
    opened: list[tuple[ApplicationId, Seconds, Seconds]] = field(default_factory=list)
    """Application, when its opening was asked for, when it was open."""
    closed: dict[ApplicationId, tuple[Seconds, Seconds]] = field(default_factory=dict)
    """When its closing was asked for, and when it was closed."""
    ended: dict[ApplicationId, int] = field(default_factory=dict)
    """Inferences that the scheduler had ended of each when nothing was left of it."""
    hits: list[Hit] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    tags: list[Tag] = field(default_factory=list)
