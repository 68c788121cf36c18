"""How long the scheduler's decisions take, in steps of a quarter of their size."""

import math
from collections import Counter
from typing import Any

from justitia_ray.units import Seconds

_STEPS_A_DECADE = 10
"""So that each power of ten is the end of a step."""
STEP = 10 ** (1 / _STEPS_A_DECADE)
"""How much longer the end of a step is than its beginning."""
_LEAST_S: Seconds = 1e-6
"""Shorter ones count as that."""
_LAST = 9 * _STEPS_A_DECADE
"""At most 1,000 s: a bound on the table, not on a decision."""


class DecisionMeter:
    """Counts decisions by their duration; only grows, so that readings can be subtracted."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.total_s: Seconds = 0.0
        """What all of them took."""

    def note(self, duration_s: Seconds) -> None:
        """Count one event that the core has handled."""
        decades = math.log10(max(duration_s, _LEAST_S) / _LEAST_S)
        self._counts[min(math.ceil(decades * _STEPS_A_DECADE), _LAST)] += 1
        self.total_s += duration_s

    def within(self, bound_s: Seconds) -> int:
        """Return how many took at most so long; exact where a step ends there."""
        if bound_s == math.inf:
            return self._counts.total()
        last = round(math.log10(bound_s / _LEAST_S) * _STEPS_A_DECADE)
        return sum(count for step, count in self._counts.items() if step <= last)

    def totals(self) -> dict[str, Any]:
        """Return the count, the seconds in all, and `[[at most so many seconds, count], …]`."""
        return {
            "count": self._counts.total(),
            "total_s": self.total_s,
            "at_most_s": [[_ends_at(step), self._counts[step]] for step in sorted(self._counts)],
        }


def _ends_at(step: int) -> Seconds:
    return _LEAST_S * STEP**step
