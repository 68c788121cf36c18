"""The next instants at which something may lapse, if nothing renews it before."""

import heapq
from collections.abc import Iterator
from enum import StrEnum

from justitia_ray.units import Seconds


class Lapse(StrEnum):
    """What may lapse."""

    LEASE = "lease"
    REPLICA = "replica"
    INGRESS = "ingress"
    APPLICATION = "application"
    RECOVERY = "recovery"
    CLAIM = "claim"
    RETURN = "return"


class Deadlines:
    """A heap of (instant, what, id). Renewing is lazy: whoever pops one asks if it still holds."""

    def __init__(self) -> None:
        self._heap: list[tuple[Seconds, int, Lapse, str]] = []
        self._sequence = 0

    def set(self, at: Seconds, lapse: Lapse, name: str) -> None:
        """Wake at `at` to look at `name`."""
        self._sequence += 1
        heapq.heappush(self._heap, (at, self._sequence, lapse, name))

    def next(self) -> Seconds | None:
        """Return the earliest instant, or None."""
        return self._heap[0][0] if self._heap else None

    def due(self, now: Seconds) -> Iterator[tuple[Lapse, str]]:
        """Take what is due by `now`, in order; what is set meanwhile for later is left."""
        while self._heap and self._heap[0][0] <= now:
            _, _, lapse, name = heapq.heappop(self._heap)
            yield lapse, name
