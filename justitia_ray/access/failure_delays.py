"""Delays for answers to wrong credentials, which make guessing slow.

The answers to the first failures of a key id, and of all callers together, are not delayed; each
further answer is delayed twice as long as the one before, up to a limit. Calls with a valid
credential are never delayed.
"""

import math
from collections import OrderedDict

from justitia_ray.units import Seconds

_UNDELAYED_PER_KEY = 5
"""Number of consecutive authentication failures with one key id that are answered without delay."""
_UNDELAYED_PER_S = 100
"""Authentication failures per second, over all key ids, that are answered without delay."""
_FIRST_S: Seconds = 0.1
_LONGEST_S: Seconds = 3.0
_FORGOTTEN_S: Seconds = 60.0
"""Seconds after which an authentication failure no longer counts."""
_MOST_KEY_IDS = 4_096
"""Maximum number of key ids with counted failures; the oldest ids are dropped."""


class FailureDelays:
    """Delays for callers with wrong credentials, by key id and in total."""

    def __init__(self) -> None:
        self._by_id: OrderedDict[str, tuple[int, Seconds]] = OrderedDict()
        """Number of consecutive failures and time of the last one, by key id."""
        self._level = 0.0
        """Level of a leaky bucket: each failed authentication adds 1, and `_UNDELAYED_PER_S` leak
        out per second.
        """
        self._at: Seconds = -math.inf

    def note_failure(self, public_id: str, now: Seconds) -> Seconds:
        """Count a failed authentication; return the delay of its answer in seconds.

        Args:
            public_id: Id of the key that was sent, known or unknown.
            now: Time of a monotonic clock.
        """
        times, at = self._by_id.pop(public_id, (0, now))
        times = 1 if now - at > _FORGOTTEN_S else times + 1
        self._by_id[public_id] = (times, now)
        if len(self._by_id) > _MOST_KEY_IDS:
            self._by_id.popitem(last=False)
        self._level = max(0.0, self._level - _UNDELAYED_PER_S * (now - self._at)) + 1
        self._at = now
        return max(
            _delay_s(times - _UNDELAYED_PER_KEY),
            _delay_s(math.ceil(self._level / _UNDELAYED_PER_S) - 1),
        )


def _delay_s(beyond: int) -> Seconds:
    if beyond <= 0:
        return 0.0
    return min(_LONGEST_S, _FIRST_S * 2.0 ** min(beyond - 1, 10))
