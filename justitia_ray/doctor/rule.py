"""Types of the doctor: a snapshot of a service (a look), a rule for it, and a finding."""

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
    WRONG = "wrong"
    """A fault: state is lost, work is stuck, or no scheduler leads."""
    RISK = "risk"
    """No fault yet, but the next failure would cost more than it should."""
    NOTE = "note"
    """No fault, but worth knowing."""


RESTART_SCHEDULER = (
    "to build its state anew, kill the scheduler's process (`pid` in `justitia status --json`): Ray"
    " starts it again, it reads the tags from Redis, and ingresses submit again what they wait for"
)
"""Advice for a state that should be impossible; a restart loses nothing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault or risk of the service, as reported to the operator."""

    rule: str
    severity: Severity
    subject: str
    """Id of the faulty object; both snapshots use the same id for the same object."""
    what: str
    do: str
    """Advice to the operator, as an instruction."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Snapshot of one model of a service: the service's reports, and the content of its Redis."""

    seen: Inspection
    predictor_trouble: str | None = None
    """Reason why the predictor did not answer; None if it answered."""
    predictor_learns: bool = True
    """Whether the predictor that answered is the replica that learns."""
    stored: StoredState | None = None
    """Content of Redis; None if Redis was not read."""
    redis_away: str | None = None
    """Reason why Redis could not be reached; None if it was reached, or was not tried."""
    redis_damage: str | None = None
    """Reason why the content of Redis could not be parsed; None if it could be parsed."""
    answer: Mapping[str, Any] = field(default_factory=dict)
    """Answer of the service, unparsed."""

    @property
    def leader(self) -> SchedulerReport | None:
        """Report of the scheduler that leads; None if none has answered."""
        scheduler = self.seen.scheduler
        return scheduler if scheduler is not None and scheduler.ready else None

    @property
    def contacted_redis(self) -> bool:
        """Whether Redis was contacted, successfully or not."""
        return (self.stored, self.redis_away, self.redis_damage) != (None, None, None)

    @property
    def applications(self) -> dict[ApplicationId, ApplicationFacts]:
        """Live applications; empty if no scheduler leads."""
        return {} if self.leader is None else self.leader.applications

    @property
    def store(self) -> StoreFacts | None:
        """Report of the leader on its store; None without a leader."""
        return None if self.leader is None else self.leader.store


@dataclass(frozen=True, slots=True)
class LeaderSnapshot:
    """Snapshot of a service with a leading scheduler."""

    seen: Inspection
    stored: StoredState | None
    leader: SchedulerReport
    limits: SilenceLimits


Breach = tuple[str, Mapping[str, object]]
"""Object that breaks a rule, with values for the placeholders in the rule's texts."""
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Rule(Generic[P]):
    """Rule of the doctor: how breaches are found, and how they are reported."""

    name: str
    severity: Severity
    holds: str
    """Sentence that is true of a healthy service."""
    breaches: Callable[P, Iterable[Breach]]
    """Function that returns the breaches of the rule in one snapshot, or in two snapshots."""
    what: str
    """Text that describes a breach, with `{subject}` and the breach's values as placeholders."""
    do: str
    """Advice to the operator, with the placeholders of `what`."""

    def findings(self, *looks: P.args, **named: P.kwargs) -> Iterator[Finding]:
        """Yield a finding for each breach in the snapshots."""
        for subject, words in self.breaches(*looks, **named):
            what, do = (text.format(subject=subject, **words) for text in (self.what, self.do))
            yield Finding(self.name, self.severity, subject, what, do)


def breach(subject: str, **words: object) -> Breach:
    """Return a breach of a rule with its subject and values.

    Args:
        subject: Id of the object that breaks the rule.
        words: Values for the other placeholders of the rule's texts.
    """
    return subject, words


def breach_if(wrong: object, subject: str, **words: object) -> Iterator[Breach]:
    """Yield a breach if `wrong` is true; for rules that concern a single object."""
    if wrong:
        yield breach(subject, **words)


def for_leader(
    breaches: Callable[[LeaderSnapshot], Iterable[Breach]],
) -> Callable[[Snapshot], Iterable[Breach]]:
    """Return a version of a search for breaches that finds none while no scheduler leads."""

    def find_breaches(look: Snapshot) -> Iterable[Breach]:
        leader = look.leader
        if leader is None or leader.limits is None:  # leaders report their limits
            return ()
        return breaches(LeaderSnapshot(look.seen, look.stored, leader, leader.limits))

    return find_breaches
