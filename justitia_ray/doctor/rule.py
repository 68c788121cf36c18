"""The doctor's forms: a look at a service, a rule that a service keeps, and a finding."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, ParamSpec

from justitia_ray.protocol.inspection import (
    ApplicationFacts,
    Inspection,
    SchedulerReport,
    SilenceLimits,
    StoreFacts,
)
from justitia_ray.store.scheduler_store import StoredState
from justitia_ray.units import ApplicationId


class Severity(StrEnum):
    """How urgent a finding is."""

    WRONG = "wrong"
    """A fault: something is lost or stuck, or a scheduler does not lead."""
    RISK = "risk"
    """Service goes on, and the next failure would cost more than it should."""
    NOTE = "note"
    """Nothing is wrong; good to know."""


RESTART_SCHEDULER = (
    "to build its state anew, kill the scheduler's process (`pid` in `justitia status --json`): Ray"
    " starts it again, it reads the tags from Redis, and ingresses submit again what they wait for"
)
"""Advice against a state that cannot be; nothing is lost by it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A breach of a rule, as it is reported."""

    rule: str
    severity: Severity
    subject: str
    """Id of what the finding is about: the same in both looks if the thing is the same."""
    what: str
    do: str
    """Advice to the operator."""


@dataclass(frozen=True, slots=True)
class Look:
    """A service at one time: its own words, and those of its Redis."""

    seen: Inspection
    predictor_trouble: str | None = None
    """Why the predictor gave no answer."""
    predictor_learns: bool = True
    """Whether the predictor that answered is the one that learns."""
    stored: StoredState | None = None
    """None if Redis was not looked at, or could not be read."""
    redis_away: str | None = None
    """Why Redis could not be reached."""
    redis_damage: str | None = None
    """Why what Redis holds could not be read."""
    answer: Mapping[str, Any] = field(default_factory=dict)
    """The service's own words, as it gave them."""

    @property
    def leader(self) -> SchedulerReport | None:
        """The scheduler, if it answered and leads."""
        scheduler = self.seen.scheduler
        return scheduler if scheduler is not None and scheduler.ready else None

    @property
    def saw_redis(self) -> bool:
        """Whether Redis was looked at, be it in vain."""
        return (self.stored, self.redis_away, self.redis_damage) != (None, None, None)

    @property
    def applications(self) -> dict[ApplicationId, ApplicationFacts]:
        """Live applications; none if no scheduler leads."""
        return {} if self.leader is None else self.leader.applications

    @property
    def store(self) -> StoreFacts | None:
        """The store, as the leader describes it."""
        return None if self.leader is None else self.leader.store


@dataclass(frozen=True, slots=True)
class LeaderLook:
    """A look at a service whose scheduler leads."""

    seen: Inspection
    stored: StoredState | None
    leader: SchedulerReport
    limits: SilenceLimits


Breach = tuple[str, Mapping[str, object]]
"""The subject, and the words of the rule's texts."""
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Rule(Generic[P]):
    """A row of the doctor's table: a rule, how a breach is found, what is said of it."""

    name: str
    severity: Severity
    holds: str
    """The rule, as a sentence that is true of a healthy service."""
    breaches: Callable[P, Iterable[Breach]]
    """Finds the breaches in one look, or in two."""
    what: str
    """The finding; `{subject}` and the breach's words are filled in."""
    do: str
    """The advice; filled in likewise."""

    def findings(self, *looks: P.args, **named: P.kwargs) -> Iterator[Finding]:
        """Yield a finding for each breach."""
        for subject, words in self.breaches(*looks, **named):
            what, do = (text.format(subject=subject, **words) for text in (self.what, self.do))
            yield Finding(self.name, self.severity, subject, what, do)


def breach(subject: str, **words: object) -> Breach:
    """Return a breach of a rule.

    Args:
        subject: Id of what breaks the rule.
        words: What the rule's texts name beside `subject`.
    """
    return subject, words


def breach_if(wrong: object, subject: str, **words: object) -> Iterator[Breach]:
    """Yield one breach if there is something wrong; for rules of a thing that exists once."""
    if wrong:
        yield breach(subject, **words)


def led(
    breaches: Callable[[LeaderLook], Iterable[Breach]],
) -> Callable[[Look], Iterable[Breach]]:
    """Return a search that finds nothing where no scheduler leads."""

    def find(look: Look) -> Iterable[Breach]:
        leader = look.leader
        if leader is None or leader.limits is None:  # a leader always says its limits
            return ()
        return breaches(LeaderLook(look.seen, look.stored, leader, leader.limits))

    return find
