"""What applications were opened with, for the queues of other models that they come to later.

Only where several models are served: an application is opened in each queue by its first inference
there, which names class and tenant at most. The ingress process that it was opened at knows the
rest, its input and weight among it; at another one what the headers say has to do.
"""

from collections import OrderedDict
from dataclasses import replace

from justitia_ray.serve.opening import Opening
from justitia_ray.units import ApplicationId, Seconds

_MOST_CHARACTERS = 16 * 2**20
"""Of all inputs kept: some tens of megabytes. The oldest go first."""


class Openings:
    """Openings by application; what nobody asks for is forgotten."""

    def __init__(
        self, idle_s: Seconds, most: int, *, most_characters: int = _MOST_CHARACTERS
    ) -> None:
        """Begin empty.

        Args:
            idle_s: One that is not asked for so long is forgotten, as its application is.
            most: Openings kept; beyond it the oldest go.
            most_characters: Characters of their inputs in all.
        """
        self._idle_s = idle_s
        self._most = most
        self._most_characters = most_characters
        self._characters = 0
        self._kept: OrderedDict[ApplicationId, tuple[Opening, Seconds]] = OrderedDict()

    def remember(self, application_id: ApplicationId, opening: Opening, now: Seconds) -> None:
        """Keep it until it is forgotten; one that was kept already stays as it was.

        Of one whose input is longer than all that is kept, the rest is kept.
        """
        if len(opening.input) > self._most_characters:
            opening = replace(opening, input="")
        if self.get(application_id, now) is None:
            self._kept[application_id] = (opening, now)
            self._characters += len(opening.input)
            while len(self._kept) > self._most or self._characters > self._most_characters:
                self.forget(next(iter(self._kept)))

    def get(self, application_id: ApplicationId, now: Seconds) -> Opening | None:
        """Return what an application was opened with, if that is known here."""
        self._forget_idle(now)
        found = self._kept.get(application_id)
        if found is None:
            return None
        self._kept[application_id] = (found[0], now)
        self._kept.move_to_end(application_id)
        return found[0]

    def forget(self, application_id: ApplicationId) -> bool:
        """Keep it no longer; return whether it was kept."""
        found = self._kept.pop(application_id, None)
        if found is None:
            return False
        self._characters -= len(found[0].input)
        return True

    def _forget_idle(self, now: Seconds) -> None:
        while self._kept:
            oldest, (_, asked_at) = next(iter(self._kept.items()))
            if now - asked_at < self._idle_s:
                return
            self.forget(oldest)
