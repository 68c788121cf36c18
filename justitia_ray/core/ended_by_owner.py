"""Recently cancelled or closed applications, whose ids accept no inferences for a while."""

import math

from justitia_ray.core.actions import Refusal
from justitia_ray.units import ApplicationId, Seconds

_MOST = 20_000
"""Maximum number of remembered application ids (a few megabytes); the oldest are dropped first."""


class EndedByOwner:
    """Applications that their owners have cancelled or closed, with the reason for refusals.

    An agent is not informed that its application was cancelled, and continues to submit inferences:
    without this record the next inference would start a new application with the same id. An
    explicit opening makes the id usable again.
    """

    def __init__(self, kept_s: Seconds, most: int = _MOST) -> None:
        """Create an empty record.

        Args:
            kept_s: Time in seconds for which an id is kept.
            most: Maximum number of ids.
        """
        self._kept_s = kept_s
        self._most = most
        self._ended: dict[ApplicationId, tuple[Seconds, Refusal]] = {}
        """Time and reason of each cancelled or closed application, earliest first."""

    def note(self, application_id: ApplicationId, reason: Refusal, now: Seconds) -> None:
        """Record that an owner cancelled or closed an application.

        `reason` is the answer to its next inference.
        """
        self._ended.pop(application_id, None)
        self._ended[application_id] = (now, reason)
        if len(self._ended) > self._most:
            del self._ended[next(iter(self._ended))]

    def reopen(self, application_id: ApplicationId) -> None:
        """Accept inferences of an application again."""
        self._ended.pop(application_id, None)

    def refusal(self, application_id: ApplicationId, now: Seconds) -> Refusal | None:
        """Return why an application id accepts no inferences now, or None."""
        self._drop_expired_ends(now)
        ended_at, reason = self._ended.get(application_id, (-math.inf, None))
        return reason if now - ended_at < self._kept_s else None

    def recent(self, now: Seconds) -> list[tuple[ApplicationId, str, Seconds]]:
        """Return id, reason and age (seconds) of each remembered application, the latest last."""
        self._drop_expired_ends(now)
        return [(name, reason.value, now - at) for name, (at, reason) in self._ended.items()]

    def _drop_expired_ends(self, now: Seconds) -> None:
        while self._ended:
            oldest, (ended_at, _) = next(iter(self._ended.items()))
            if now - ended_at < self._kept_s:
                return
            del self._ended[oldest]
