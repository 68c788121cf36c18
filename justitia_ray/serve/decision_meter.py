"""How long the scheduler's decisions take, in steps of a quarter of their size."""

import math
from collections import Counter
from typing import Any

from justitia_ray.units import Seconds

STEP = 1.25
_LEAST_S: Seconds = 1e-6
"""Shorter ones count as that."""
_LAST = 90
"""1 µs times 1.25 to the 90th is 530 s: a bound on the table, not on a decision."""


class DecisionMeter:
    """Counts decisions by their duration; only grows, so that readings can be subtracted."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._total_s: Seconds = 0.0

    def note(self, duration_s: Seconds) -> None:
        """Count one event that the core has handled."""
        steps = math.ceil(math.log(max(duration_s, _LEAST_S) / _LEAST_S, STEP))
        self._counts[min(steps, _LAST)] += 1
        self._total_s += duration_s

    def totals(self) -> dict[str, Any]:
        """Return the count, the seconds in all, and `[[at most so many seconds, count], …]`."""
        return {
            "count": self._counts.total(),
            "total_s": self._total_s,
            "at_most_s": [
                [_LEAST_S * STEP**step, self._counts[step]] for step in sorted(self._counts)
            ],
        }
