"""Failure delays: answers to wrong credentials are held back, so that guessing is slow.

The first failures of a key id, and of all callers together, cost nothing; from then on each costs
twice as long as the one before, up to a bound. A right credential never waits.
"""

import math
from collections import OrderedDict

from justitia_ray.units import Seconds

_FREE = 5
"""Failures in a row of one key id that are answered at once: a deployment with an old key."""
_FREE_IN_ALL = 100
"""Failures a second, of all key ids, that are answered at once."""
_FIRST_S: Seconds = 0.1
_LONGEST_S: Seconds = 3.0
_FORGOTTEN_S: Seconds = 60.0
"""A failure counts for so long."""
_MOST_KNOWN = 4_096
"""Key ids that are counted; beyond it the oldest go."""


class FailureDelays:
    """Counts failures by key id and in total."""

    def __init__(self) -> None:
        """Begin without failures."""
        self._by_id: OrderedDict[str, tuple[int, Seconds]] = OrderedDict()
        """Failures in a row and the instant of the last one, by key id."""
        self._level = 0.0
        """Failures of all, as a bucket that loses `_FREE_IN_ALL` a second."""
        self._at: Seconds = -math.inf

    def note_failure(self, public_id: str, now: Seconds) -> Seconds:
        """Count a failure; return how long its answer is to be held back.

        Args:
            public_id: Id of the key that was shown, known or not.
            now: Instant on a clock that never goes back.
        """
        times, at = self._by_id.pop(public_id, (0, now))
        times = 1 if now - at > _FORGOTTEN_S else times + 1
        self._by_id[public_id] = (times, now)
        if len(self._by_id) > _MOST_KNOWN:
            self._by_id.popitem(last=False)
        self._level = max(0.0, self._level - _FREE_IN_ALL * (now - self._at)) + 1
        self._at = now
        return max(_delay(times - _FREE), _delay(math.ceil(self._level / _FREE_IN_ALL) - 1))


def _delay(beyond: int) -> Seconds:
    """Return the delay of the so-manieth failure beyond those that are free."""
    if beyond <= 0:
        return 0.0
    return min(_LONGEST_S, _FIRST_S * 2.0 ** min(beyond - 1, 10))
