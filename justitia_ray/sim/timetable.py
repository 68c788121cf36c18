"""When to look at each replica next: an instant for each, the earliest first."""

import heapq
import math

from justitia_ray.units import Seconds


class Timetable:
    """One instant a replica; setting it again moves it."""

    def __init__(self, replicas: int) -> None:
        self._at: list[Seconds] = [math.inf] * replicas
        self._heap: list[tuple[Seconds, int]] = []

    def set(self, index: int, at: Seconds | None) -> None:
        """Look at a replica at an instant, and not at the one set before; None: not at all."""
        self._at[index] = math.inf if at is None else at
        if at is not None:
            heapq.heappush(self._heap, (at, index))

    def next(self) -> Seconds:
        """Return the earliest instant; inf if there is none."""
        while self._heap:
            at, index = self._heap[0]
            if self._at[index] == at:
                return at
            heapq.heappop(self._heap)
        return math.inf

    def take(self, now: Seconds) -> list[int]:
        """Return the replicas to be looked at by now, by index, and forget their instants."""
        taken = set()
        while self.next() <= now:
            _, index = heapq.heappop(self._heap)
            self._at[index] = math.inf
            taken.add(index)
        return sorted(taken)
