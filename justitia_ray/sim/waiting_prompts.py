"""The shortest prompt among those that wait."""

import heapq
from collections import Counter

from justitia_ray.units import Tokens


class WaitingPrompts:
    """Counts lengths; asking for the least is O(log of how many lengths), amortised."""

    def __init__(self) -> None:
        self._counts: Counter[Tokens] = Counter()
        self._lengths: list[Tokens] = []

    def add(self, tokens: Tokens) -> None:
        """One more waits."""
        if not self._counts[tokens]:
            heapq.heappush(self._lengths, tokens)
        self._counts[tokens] += 1

    def remove(self, tokens: Tokens) -> None:
        """One of that length waits no more."""
        self._counts[tokens] -= 1

    def least(self) -> Tokens | None:
        """Return the length of the shortest, or None if none waits."""
        while self._lengths and not self._counts[self._lengths[0]]:
            heapq.heappop(self._lengths)
        return self._lengths[0] if self._lengths else None
