"""Applications that their owners have ended lately: their ids take no inferences for a while."""

import math

from justitia_ray.core.actions import Refusal
from justitia_ray.units import ApplicationId, Seconds

_MOST = 20_000
"""Ids that are kept, a few megabytes; the oldest go first."""


class EndedByOwner:
    """Applications that were cancelled or closed by a call, and how; their ids may be long gone.

    An agent whose application was cancelled does not know it, and goes on to call: without this
    its next call would begin an application of the same id. Whoever wants the id again opens it.
    """

    def __init__(self, kept_s: Seconds, most: int = _MOST) -> None:
        """Begin empty.

        Args:
            kept_s: How long an id is kept.
            most: Maximum ids.
        """
        self._kept_s = kept_s
        self._most = most
        self._ended: dict[ApplicationId, tuple[Seconds, Refusal]] = {}
        """When and how each was ended, those that were ended first in front."""

    def note(self, application_id: ApplicationId, reason: Refusal, now: Seconds) -> None:
        """Note that an application was ended; `reason` is what its next inference is told."""
        self._ended.pop(application_id, None)
        self._ended[application_id] = (now, reason)
        if len(self._ended) > self._most:
            del self._ended[next(iter(self._ended))]

    def reopen(self, application_id: ApplicationId) -> None:
        """Let the id take inferences again."""
        self._ended.pop(application_id, None)

    def refusal(self, application_id: ApplicationId, now: Seconds) -> Refusal | None:
        """Return why the id takes no inferences now; None: it does."""
        self._drop_old(now)
        ended_at, reason = self._ended.get(application_id, (-math.inf, None))
        return reason if now - ended_at < self._kept_s else None

    def recent(self, now: Seconds) -> list[tuple[ApplicationId, str, Seconds]]:
        """Return what is kept: id, reason, and how long ago it was ended; the latest last."""
        self._drop_old(now)
        return [(name, reason.value, now - at) for name, (at, reason) in self._ended.items()]

    def _drop_old(self, now: Seconds) -> None:
        while self._ended:
            oldest, (ended_at, _) = next(iter(self._ended.items()))
            if now - ended_at < self._kept_s:
                return
            del self._ended[oldest]
