"""Types of the doctor: a look at a service, a rule for it, and a finding."""

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
    """Urgency of a finding."""

    WRONG = "wrong"
    """A fault: something is lost or stuck, or a scheduler does not lead."""
    RISK = "risk"
    """Service continues, but the next failure would cost more than it should."""
    NOTE = "note"
    """No fault, but worth knowing."""


RESTART_SCHEDULER = (
    "to build its state anew, kill the scheduler's process (`pid` in `justitia status --json`): Ray"
    " starts it again, it reads the tags from Redis, and ingresses submit again what they wait for"
)
"""Advice for an impossible state; following it loses nothing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A reported breach of a rule."""

    rule: str
    severity: Severity
    subject: str
    """Id of the faulty object; equal in both looks for the same object."""
    what: str
    do: str
    """Advice to the operator."""


@dataclass(frozen=True, slots=True)
class Look:
    """State of a service at one time: the service's reports, and the content of its Redis."""

    seen: Inspection
    predictor_trouble: str | None = None
    """Reason why the predictor did not answer; None: it did."""
    predictor_learns: bool = True
    """Whether the predictor that answered is the one that learns."""
    stored: StoredState | None = None
    """Content of Redis; None if it was not looked at, or could not be read."""
    redis_away: str | None = None
    """Reason why Redis could not be reached; None: it could, or was not looked at."""
    redis_damage: str | None = None
    """Reason why the content of Redis could not be read; None: it could."""
    answer: Mapping[str, Any] = field(default_factory=dict)
    """The service's answer, unchanged."""

    @property
    def leader(self) -> SchedulerReport | None:
        """The scheduler's report if it answered and leads; otherwise None."""
        scheduler = self.seen.scheduler
        return scheduler if scheduler is not None and scheduler.ready else None

    @property
    def saw_redis(self) -> bool:
        """Whether Redis was looked at, successfully or not."""
        return (self.stored, self.redis_away, self.redis_damage) != (None, None, None)

    @property
    def applications(self) -> dict[ApplicationId, ApplicationFacts]:
        """Live applications; empty if no scheduler leads."""
        return {} if self.leader is None else self.leader.applications

    @property
    def store(self) -> StoreFacts | None:
        """The store as the leader describes it; None without a leader."""
        return None if self.leader is None else self.leader.store


@dataclass(frozen=True, slots=True)
class LeaderLook:
    """A look at a service whose scheduler leads."""

    seen: Inspection
    stored: StoredState | None
    leader: SchedulerReport
    limits: SilenceLimits


Breach = tuple[str, Mapping[str, object]]
"""Subject of a breach, and the words for the rule's texts."""
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Rule(Generic[P]):
    """A rule of the doctor: how a breach is found, and how it is reported."""

    name: str
    severity: Severity
    holds: str
    """The rule as a sentence that is true of a healthy service."""
    breaches: Callable[P, Iterable[Breach]]
    """Function that returns the breaches in one look, or in two."""
    what: str
    """Text of the finding; `{subject}` and the breach's words are filled in."""
    do: str
    """Text of the advice; the same words are filled in."""

    def findings(self, *looks: P.args, **named: P.kwargs) -> Iterator[Finding]:
        """Yield a finding for each breach."""
        for subject, words in self.breaches(*looks, **named):
            what, do = (text.format(subject=subject, **words) for text in (self.what, self.do))
            yield Finding(self.name, self.severity, subject, what, do)


def breach(subject: str, **words: object) -> Breach:
    """Return a breach of a rule.

    Args:
        subject: Id of the object that breaks the rule.
        words: Further words for the rule's texts.
    """
    return subject, words


def breach_if(wrong: object, subject: str, **words: object) -> Iterator[Breach]:
    """Yield one breach if `wrong` is true; for rules of a thing that exists once."""
    if wrong:
        yield breach(subject, **words)


def led(
    breaches: Callable[[LeaderLook], Iterable[Breach]],
) -> Callable[[Look], Iterable[Breach]]:
    """Return a search that finds nothing if no scheduler leads."""

    def find(look: Look) -> Iterable[Breach]:
        leader = look.leader
        if leader is None or leader.limits is None:  # a leader always reports its limits
            return ()
        return breaches(LeaderLook(look.seen, look.stored, leader, leader.limits))

    return find
