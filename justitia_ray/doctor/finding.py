"""What a check says."""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad it is."""

    WRONG = "wrong"
    """It must not be so: something is lost, stuck or out of office."""
    RISK = "risk"
    """It works, and the next failure would cost more than it should."""
    NOTE = "note"
    """Nothing is wrong, and it is good to know."""


RESTART_SCHEDULER = (
    "to build its state anew, kill the scheduler's process (`pid` in `justitia status --json`): Ray"
    " starts it again, it reads the tags from Redis, and ingresses submit again what they wait for"
)
"""What helps against a state that cannot be; nothing is lost by it."""


@dataclass(frozen=True, slots=True)
class Fact:
    """What one check found of one thing."""

    severity: Severity
    subject: str
    """The thing, by id: the same in both looks if it is the same thing."""
    what: str
    do: str
    """What an operator does about it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact, and the rule that found it."""

    rule: str
    severity: Severity
    subject: str
    what: str
    do: str
