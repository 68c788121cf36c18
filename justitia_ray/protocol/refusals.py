"""HTTP headers of refusals: why a call was dropped, and whether and when to retry it.

The clients of OpenAI and Anthropic prefer `retry-after-ms` to `Retry-After`, and `x-should-retry`
to the status. OpenAI's client does not retry if it would have to wait more than two minutes;
Anthropic's client waits for any time. So the headers never request a wait of more than two minutes,
and forbid a retry if a quota stays exhausted for longer.
"""

import math
from collections.abc import Callable
from enum import StrEnum

from justitia_ray.errors import (
    AdmissionError,
    ApplicationBudgetExhausted,
    ApplicationCancelled,
    ApplicationExpired,
    ApplicationIsClosed,
    ApplicationIsEnding,
    AttemptsExhausted,
    DeadlineMissed,
    EngineError,
    JustitiaError,
    KillsEngines,
    NoReplicaAnswers,
    NotStored,
    QueueFull,
    QuotaExhausted,
    SchedulerSuperseded,
    TooManyApplications,
    UnknownApplication,
)
from justitia_ray.units import Seconds

DROPPED_REASON_HEADER = "x-justitia-dropped-reason"
SHOULD_RETRY_HEADER = "x-should-retry"
RETRY_AFTER_HEADER = "retry-after"
RETRY_AFTER_MS_HEADER = "retry-after-ms"

LONGEST_RETRY_S: Seconds = 120.0
"""Largest `Retry-After` in seconds that OpenAI's client obeys."""
_JITTER = 0.1
_SHORTEST_RETRY_MS = 100
HOUR_S: Seconds = 3_600.0
"""Longest period in seconds of a quota that counts as a rate limit; longer periods count as
budgets.
"""


class DropReason(StrEnum):
    """Reason for dropping a call during or after its admission."""

    QUEUE_FULL = "queue_full"
    """Too many inferences wait: in total, of the tenant, or at the ingress."""
    TOO_MANY_APPLICATIONS = "too_many_applications"
    """Too many applications are open: in total or of the tenant."""
    QUOTA = "quota"
    """A quota of the tenant, or of an ancestor, is exhausted for this period."""
    CAP = "cap"
    """The application has used up the budget that its tenant allows one application."""
    DEADLINE = "deadline"
    """The call could not meet its deadline, or missed it."""
    CANCELLED = "cancelled"
    """The application was cancelled."""
    CLOSED = "closed"
    """The application is closed."""
    EXPIRED = "expired"
    """The application was idle for too long."""
    ENDING = "ending"
    """A new scheduler does not know yet whether the application has ended."""
    UNKNOWN = "unknown"
    """No application with this id is open."""
    NOT_STORED = "not_stored"
    """Redis did not store the application in time."""
    SUPERSEDED = "superseded"
    """Another scheduler is the leader, and this ingress cannot reach it."""
    NO_REPLICA = "no_replica"
    """No replica answered."""
    ATTEMPTS = "attempts"
    """The call was tried the maximum number of times without being completed."""
    ENGINE_KILLER = "engine_killer"
    """Engines died repeatedly while they ran this call, and no other call ran on all of them."""
    ENGINE = "engine"
    """The engine is dead, or ended the call without an answer."""


DROPPED: dict[type[JustitiaError], DropReason] = {
    QueueFull: DropReason.QUEUE_FULL,
    TooManyApplications: DropReason.TOO_MANY_APPLICATIONS,
    QuotaExhausted: DropReason.QUOTA,
    ApplicationBudgetExhausted: DropReason.CAP,
    DeadlineMissed: DropReason.DEADLINE,
    ApplicationCancelled: DropReason.CANCELLED,
    ApplicationExpired: DropReason.EXPIRED,
    ApplicationIsClosed: DropReason.CLOSED,
    ApplicationIsEnding: DropReason.ENDING,
    UnknownApplication: DropReason.UNKNOWN,
    NotStored: DropReason.NOT_STORED,
    SchedulerSuperseded: DropReason.SUPERSEDED,
    NoReplicaAnswers: DropReason.NO_REPLICA,
    AttemptsExhausted: DropReason.ATTEMPTS,
    KillsEngines: DropReason.ENGINE_KILLER,
    EngineError: DropReason.ENGINE,
}
"""Reason for dropping a call, by the class of its error."""


def drop_reason(error: JustitiaError) -> DropReason | None:
    """Return the reason for dropping a call; None for an error before its admission."""
    return next((DROPPED[kind] for kind in type(error).__mro__ if kind in DROPPED), None)


def is_rate(error: QuotaExhausted) -> bool:
    """Return whether an exhausted quota has a known period of at most an hour."""
    period_s = None if error.limit is None else error.limit.get("period_s")
    return period_s is not None and period_s <= HOUR_S


def is_spent(error: AdmissionError) -> bool:
    """Return whether a refusal is final: the client should not retry by itself.

    That is so for an exhausted budget, for a quota that is reset later than clients wait, and for a
    missed deadline without a known time for a retry.
    """
    wait_s = error.retry_after_s
    if isinstance(error, ApplicationBudgetExhausted):
        return True
    if isinstance(error, QuotaExhausted):
        return not is_rate(error) or wait_s is None or wait_s > LONGEST_RETRY_S
    return isinstance(error, DeadlineMissed) and wait_s is None


def retry_headers(error: AdmissionError, draw: Callable[[], float]) -> dict[str, str]:
    """Return headers that tell a client whether and when to retry a refused call.

    Args:
        error: The refusal.
        draw: Draws a number from 0 to 1, to spread the retries of callers that are told the same
            wait.
    """
    wait_s = error.retry_after_s
    if is_spent(error):
        headers = {SHOULD_RETRY_HEADER: "false"}
        if wait_s is not None:
            headers[RETRY_AFTER_HEADER] = str(max(1, math.ceil(wait_s)))
        return headers
    factor = 1 + _JITTER * (2 * draw() - 1)
    longest_s = LONGEST_RETRY_S / (1 + _JITTER)
    jittered_s = min(wait_s if wait_s is not None else 1.0, longest_s) * factor
    return {
        RETRY_AFTER_HEADER: str(max(1, math.ceil(jittered_s))),
        RETRY_AFTER_MS_HEADER: str(max(_SHORTEST_RETRY_MS, math.ceil(1_000 * jittered_s))),
    }
