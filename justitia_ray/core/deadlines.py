"""The next instants at which something may lapse, if nothing renews it before."""

import heapq
import math
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
    """A heap of (instant, what, id). Renewing is lazy: whoever pops one asks if it still holds.

    What is set again for later keeps its one entry, which moves on when it comes up: an application
    that falls idle a hundred times in ten minutes must not leave a hundred.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Seconds, int, Lapse, str]] = []
        self._sequence = 0
        self._set: dict[tuple[Lapse, str], Seconds] = {}
        """The instant last set for each that is in the heap."""

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, at: Seconds, lapse: Lapse, name: str) -> None:
        """Wake at `at`, and no more at an instant set before, to look at `name`; inf is never."""
        if at == math.inf:
            self._set.pop((lapse, name), None)
            return
        before = self._set.get((lapse, name))
        self._set[lapse, name] = at
        if before is None or at < before:
            self._push(at, lapse, name)

    def next(self) -> Seconds | None:
        """Return an instant by which to look, or None: the earliest, or one set before."""
        return self._heap[0][0] if self._heap else None

    def due(self, now: Seconds) -> Iterator[tuple[Lapse, str]]:
        """Take what is due by `now`, in order; what is set meanwhile for later is left."""
        while self._heap and self._heap[0][0] <= now:
            at, _, lapse, name = heapq.heappop(self._heap)
            wanted = self._set.get((lapse, name))
            if wanted == at:
                del self._set[lapse, name]
                yield lapse, name
            elif wanted is not None and wanted > at:
                self._push(wanted, lapse, name)

    def _push(self, at: Seconds, lapse: Lapse, name: str) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (at, self._sequence, lapse, name))
