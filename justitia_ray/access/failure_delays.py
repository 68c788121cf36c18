"""Delays for answers to wrong credentials, which make guessing slow.

The first failures of a key id, and of all callers together, are not delayed; each further one is
delayed twice as long as the one before, up to a limit. Calls with a valid credential are never
delayed.
"""

import math
from collections import OrderedDict

from justitia_ray.units import Seconds

_FREE = 5
"""Consecutive failures of one key id without a delay, e.g. of a deployment with an old key."""
_FREE_IN_ALL = 100
"""Failures per second, over all key ids, without a delay."""
_FIRST_S: Seconds = 0.1
_LONGEST_S: Seconds = 3.0
_FORGOTTEN_S: Seconds = 60.0
"""Time after which a failure is forgotten."""
_MOST_KNOWN = 4_096
"""Maximum number of key ids that are counted; the oldest are dropped."""


class FailureDelays:
    """Counts failures by key id and in total."""

    def __init__(self) -> None:
        self._by_id: OrderedDict[str, tuple[int, Seconds]] = OrderedDict()
        """By key id: the number of consecutive failures and the time of the last one."""
        self._level = 0.0
        """Level of a leaky bucket of all failures, which drains by `_FREE_IN_ALL` per second."""
        self._at: Seconds = -math.inf

    def note_failure(self, public_id: str, now: Seconds) -> Seconds:
        """Count a failure; return the delay of its answer in seconds.

        Args:
            public_id: Id of the key that was sent, known or unknown.
            now: Time of a monotonic clock.
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
    """Return the delay for the given number of failures beyond the free ones."""
    if beyond <= 0:
        return 0.0
    return min(_LONGEST_S, _FIRST_S * 2.0 ** min(beyond - 1, 10))
