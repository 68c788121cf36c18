"""When to look at each replica next: an instant for each, the earliest first."""

import math

from justitia_ray.core.lazy_heap import LazyHeap
from justitia_ray.units import Seconds


class Timetable:
    """One instant a replica; setting it again moves it."""

    def __init__(self, replicas: int) -> None:
        self._names = [str(index) for index in range(replicas)]
        self._instants = LazyHeap()

    def set(self, index: int, at: Seconds | None) -> None:
        """Look at a replica at an instant, and not at the one set before; None: not at all."""
        if at is None:
            self._instants.drop(self._names[index])
        else:
            self._instants.put(self._names[index], (at, index))

    def clear(self) -> None:
        """Look at none."""
        self._instants = LazyHeap()

    def has(self, index: int) -> bool:
        """Return whether a replica is to be looked at."""
        return self._names[index] in self._instants

    def next(self) -> Seconds:
        """Return the earliest instant; inf if there is none."""
        name = self._instants.first()
        return math.inf if name is None else self._instants.key(name)[0]

    def take(self, now: Seconds) -> list[int]:
        """Return the replicas to be looked at by now, by index, and forget their instants."""
        taken = []
        while (name := self._instants.first()) is not None and self._instants.key(name)[0] <= now:
            self._instants.drop(name)
            taken.append(int(name))
        return sorted(taken)
