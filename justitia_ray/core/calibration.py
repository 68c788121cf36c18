"""Quantiles of what was expected, calibrated by what came of earlier expectations.

An expectation is a number of seconds; what came of it is a ratio to it. Ratios are kept in decaying
histograms by how far ahead it was said, and the quantiles of a new expectation are those of the
histograms beside it (split conformal prediction, with weights). What is far ahead is known late,
and long waits last: so the levels at which the histograms are read move with each miss, as soon as
it is one (adaptive conformal inference, Gibbs and Candès 2021): in the long run eight in ten fall
between p10 and p90, whatever the load does.
"""

import heapq
import math
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from justitia_ray.units import Seconds

LEAST_S: Seconds = 0.1
"""Shortest time that is told apart from none."""
_BINS = 33
_WIDEST = 4.0
"""Logarithm to base 2 of the largest ratio that is told apart, and of the least, negative."""
_STEP = 2 * _WIDEST / (_BINS - 1)
_HORIZONS = 20
"""Histograms, one each time that the expectation doubles, from `_NEAREST` on."""
_NEAREST = math.log2(LEAST_S)
_REACH = 2.0
"""Doublings from which a histogram says nothing of an expectation."""
_HALF_LIFE = 200
"""Outcomes in which the weight of an outcome halves."""
_PRIOR_WEIGHT = 8.0
"""Outcomes that the prior counts for."""
_PRIOR_DEVIATION = 1.1
"""Standard deviation of the logarithm to base 2: eight in ten are within a factor of 2.7."""
_GAIN = 0.02
"""Change of a level by a miss, and by a ninth of it the other way without one."""
_COMPACT_ABOVE = 16_384
"""Entries of the heap of what may become late at which what is over is taken out of it."""
_MISSES = 0.1
"""Share of the outcomes that are to fall below p10, and above p90."""
_LOWEST_LEVELS, _HIGHEST_LEVELS = (0.01, 0.2), (0.8, 0.99)


class Quantiles(NamedTuple):
    """Quantiles of a time from now, in seconds."""

    p10: Seconds
    p50: Seconds
    p90: Seconds


@dataclass(slots=True)
class Said:
    """An expectation that was told, and has not come true."""

    at: Seconds
    expected_s: Seconds
    quantiles: Quantiles
    is_late: bool = False
    """Whether it has been counted as later than p90."""
    is_over: bool = False


class Calibration:
    """Turns expectations into quantiles, and learns of each what came of it.

    Telling and settling cost O(1), and O(log n) for n expectations that have not come true; the
    state is some 700 numbers.
    """

    def __init__(self) -> None:
        self._histograms = [[0.0] * _BINS for _ in range(_HORIZONS)]
        self._weight = 1.0
        """Weight of the next outcome: grows, in place of all others' decay."""
        self._low, self._high = _MISSES, 1 - _MISSES
        self._due: list[tuple[Seconds, int, Said]] = []
        """Expectations by the instant after which they are later than p90."""
        self._numbers = count()
        self._compact_above = _COMPACT_ABOVE

    def quantiles(self, expected_s: Seconds) -> Quantiles:
        """Return the quantiles of what is expected so far ahead."""
        expected_s = max(expected_s, LEAST_S)
        weights = self._weights(_horizon(expected_s))
        low, middle, high = (
            expected_s * _ratio_at(weights, level) for level in (self._low, 0.5, self._high)
        )
        return Quantiles(low, middle, high)

    def say(self, expected_s: Seconds, now: Seconds) -> Said:
        """Return what is expected, with its quantiles, to be settled when it has come true."""
        said = Said(now, max(expected_s, LEAST_S), self.quantiles(expected_s))
        heapq.heappush(self._due, (now + said.quantiles.p90, next(self._numbers), said))
        if len(self._due) > self._compact_above:
            self._due = [entry for entry in self._due if not entry[2].is_over]
            heapq.heapify(self._due)
            self._compact_above = _COMPACT_ABOVE + 2 * len(self._due)
        return said

    def settle(self, said: Said, now: Seconds) -> None:
        """Learn that what was said has come true now."""
        self.note_time(now)
        waited_s, said.is_over = now - said.at, True
        self._add(_horizon(said.expected_s), waited_s / said.expected_s)
        if not said.is_late:
            self._move_high(-_GAIN * _MISSES)
        is_early = waited_s < said.quantiles.p10
        change = -_GAIN * (1 - _MISSES) if is_early else _GAIN * _MISSES
        self._low = min(max(self._low + change, _LOWEST_LEVELS[0]), _LOWEST_LEVELS[1])

    def forget(self, said: Said) -> None:
        """Forget what was said: it will not come true, for a reason that says nothing of it."""
        said.is_over = True

    def note_time(self, now: Seconds) -> None:
        """Count what is later than its p90 by now. O(log n) for each that is."""
        while self._due and self._due[0][0] < now:
            said = heapq.heappop(self._due)[2]
            if not said.is_over:
                said.is_late = True
                self._move_high(_GAIN * (1 - _MISSES))

    def _move_high(self, change: float) -> None:
        self._high = min(max(self._high + change, _HIGHEST_LEVELS[0]), _HIGHEST_LEVELS[1])

    def _add(self, horizon: float, ratio: float) -> None:
        place = (math.log2(ratio) if ratio > 0 else -_WIDEST) / _STEP + _BINS // 2
        place = min(max(place, 0.0), _BINS - 1.0)
        self._weight /= 0.5 ** (1 / _HALF_LIFE)
        for row, of_row in _shared(horizon, _HORIZONS):
            for column, of_column in _shared(place, _BINS):
                self._histograms[row][column] += self._weight * of_row * of_column
        if self._weight > 1e12:
            self._histograms = [[x / self._weight for x in row] for row in self._histograms]
            self._weight = 1.0

    def _weights(self, horizon: float) -> list[float]:
        weights = [_PRIOR_WEIGHT * share for share in _PRIOR]
        for row, histogram in enumerate(self._histograms):
            nearness = 1 - abs(row - horizon) / _REACH
            if nearness > 0:
                of_row = nearness / self._weight
                for column, weight in enumerate(histogram):
                    weights[column] += of_row * weight
        return weights


def _horizon(expected_s: Seconds) -> float:
    return min(math.log2(expected_s) - _NEAREST, _HORIZONS - 1.0)


def _shared(place: float, most: int) -> list[tuple[int, float]]:
    """Return the two whole places around one, each with its share."""
    below = int(place)
    share = place - below
    return [(below, 1 - share), (below + 1, share)] if below + 1 < most else [(below, 1.0)]


def _ratio_at(weights: list[float], level: float) -> float:
    """Return the quantile of a histogram of logarithms of ratios, 0 in its first bin."""
    wanted, reached = level * sum(weights), 0.0
    for column, weight in enumerate(weights):
        if reached + weight >= wanted:
            if not column:
                return 0.0
            within = (wanted - reached) / weight
            return float(2 ** ((column - _BINS // 2 - 0.5 + within) * _STEP))
        reached += weight
    return float(2**_WIDEST)


def _prior() -> list[float]:
    shares = [
        math.exp(-0.5 * ((column - _BINS // 2) * _STEP / _PRIOR_DEVIATION) ** 2)
        for column in range(_BINS)
    ]
    return [share / sum(shares) for share in shares]


_PRIOR = _prior()
