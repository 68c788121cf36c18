"""Quantiles of an expected time, calibrated by the outcomes of earlier expectations.

An expectation is a number of seconds; its outcome is recorded as a ratio to it. Ratios are stored
in decaying life tables, one for each range of expected times: the number of waits that lasted to
each ratio, and the number that ended there. The quantiles of a new expectation are read from the
nearest tables. p10 and p50 use the waits that have ended. p90 also uses the waits that still last,
by their duration so far (Kaplan and Meier 1958): when a queue grows, only the short waits have
ended yet.

Loads change, and outcomes of long expectations are known late. So the levels at which the tables
are read move with each outcome beyond p10 or p90, as soon as it occurs (adaptive conformal
inference, Gibbs and Candès 2021). Each range of p50 has levels of its own: the many short waits
would set a shared pair, and too few of the long waits would be between p10 and p90.
"""

import heapq
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import count

from justitia_ray.units import Seconds

LEAST_S: Seconds = 0.1
"""Shortest waiting time in seconds that is distinguished from 0."""
_BIN_WIDTH = 0.25
"""Width of a histogram bin of wait divided by expected wait, as a base-2 logarithm."""
_LEAST_LOG = -4.0
"""Upper limit of the first histogram bin of wait divided by expected wait, as a base-2 logarithm.
"""
_BINS = 38
_HORIZONS = 20
"""Number of life tables of waiting times, one for each doubling of the expected wait from `LEAST_S`
on.
"""
_TABLE_REACH = 2.0
"""Distance from which on a life table does not affect a forecast, in doublings of the expected
wait.
"""
_HALF_LIFE = 100
"""Number of later waits after which the weight of a wait in a life table halves."""
_RESCALED_AFTER = 40 * _HALF_LIFE
"""Number of waits after which the growing weights in a life table are scaled down."""
_PRIOR_WEIGHT = 8.0
"""Number of observed waits to which the prior distribution is equivalent."""
_PRIOR_DEVIATION = 1.1
"""Standard deviation of log2(wait / expected wait) before any wait is observed: eight of ten waits
are within a factor of 2.7 of the expectation.
"""
_MOST_BEYOND = 4.0
"""Maximum ratio of the 90th percentile to its estimate from ended waits. All waiting inferences may
start at once when a load ends; without a limit, the percentile of a long queue would be several
times the outcome.
"""
_MISS_FRACTION = 0.1
"""Fraction of waits that should end before the predicted 10th percentile, and likewise after the
90th percentile.
"""
_LEVEL_GAIN = 0.04
"""Change of a predicted quantile's level after a wait beyond the quantile. The opposite change
after any other wait is a ninth as large.
"""
_COMPACT_ABOVE = 1_024
"""Number of outdated heap entries above which they are removed, if they are the majority."""
_LEAST_LEVEL, _MOST_LEVEL = 0.01, 0.35
"""Smallest and largest fraction of waits beyond a predicted 10th or 90th percentile."""


HORIZONS: Mapping[str, Seconds] = {"10s": 10.0, "60s": 60.0, "600s": 600.0, "longer": math.inf}
"""Upper limits in seconds of the ranges into which expected waits are divided."""


class QuantileSide(StrEnum):
    """Whether a wait ended below, between or above its predicted 10th and 90th percentiles."""

    EARLY = "early"
    WITHIN = "within"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles p10, p50 and p90 of a time from now, in seconds."""

    p10: Seconds
    p50: Seconds
    p90: Seconds

    def not_before(self, other: "Quantiles") -> "Quantiles":
        """Return the later of these and other quantiles, for each of p10, p50 and p90."""
        return Quantiles(
            max(self.p10, other.p10), max(self.p50, other.p50), max(self.p90, other.p90)
        )


@dataclass(slots=True)
class Expectation:
    """A predicted waiting time whose outcome is not known yet."""

    at: Seconds
    expected_s: Seconds
    quantiles: Quantiles
    number: int
    """Sequence number of this forecast in its life table."""
    bin: int = 0
    """Histogram bin of the wait so far divided by the expected wait."""
    is_late: bool = False
    """Whether the wait has already been counted as longer than the 90th percentile."""
    is_over: bool = False
    is_watched: bool = False
    """Whether the forecast is in the heap of forecasts to be updated."""

    @property
    def next_bin_at(self) -> Seconds:
        """Return the time at which the wait reaches the next histogram bin; inf in the last bin."""
        if self.bin == _BINS - 1:
            return math.inf
        return self.at + self.expected_s * _ratio_at_bin_end(self.bin)

    @property
    def lateness_deadline(self) -> Seconds:
        """Return the time after which the wait is longer than the predicted 90th percentile."""
        return self.at + self.quantiles.p90


class _LifeTable:
    """Weighted numbers of waits that reached each histogram bin, and of waits that ended in it.

    Newer waits weigh more: weights grow with the number of the expectation, instead of a decay of
    all earlier ones.
    """

    def __init__(self) -> None:
        self.lasted = [0.0] * _BINS
        self.ended = [0.0] * _BINS
        self.expectations = 0
        self._weighs_one = 0
        """Sequence number of the wait that has weight 1 in the life table; later ones weigh more.
        """

    def weight(self, number: int) -> float:
        return float(2.0 ** ((number - self._weighs_one) / _HALF_LIFE))

    def add_expectation(self) -> int:
        """Count a new wait in the first bin and return its sequence number."""
        number, self.expectations = self.expectations, self.expectations + 1
        if number - self._weighs_one > _RESCALED_AFTER:
            scale = self.weight(number)
            self.lasted = [weight / scale for weight in self.lasted]
            self.ended = [weight / scale for weight in self.ended]
            self._weighs_one = number
        self.lasted[0] += self.weight(number)
        return number


class Calibration:
    """Predicts quantiles of waiting times, and corrects them by observed waits.

    An expectation costs O(1). Its outcome costs O(log n) for n open expectations, and so does each
    bin that the wait reaches (at most 37). The state is some 1,600 numbers.
    """

    def __init__(self) -> None:
        self.fell: Counter[tuple[str, QuantileSide]] = Counter()
        """Number of waits below, between and above the predicted quantiles, by the range of
        `HORIZONS` that contains the expected wait; only grows.
        """
        self._tables = [_LifeTable() for _ in range(_HORIZONS)]
        self._low, self._high = [_MISS_FRACTION] * _HORIZONS, [_MISS_FRACTION] * _HORIZONS
        """Fractions of waits beyond the predicted 10th and 90th percentiles, by the range of the
        expected wait.
        """
        self._due: list[tuple[Seconds, int, Expectation]] = []
        """Heap of waits, by the time at which they reach the next histogram bin or exceed p90."""
        self._pushes = count()
        self._over = 0
        """Upper limit of the number of heap entries for waits that have ended."""

    def quantiles(self, expected_s: Seconds) -> Quantiles:
        """Return p10, p50 and p90, in seconds, of a wait that is expected to last this long."""
        expected_s = max(expected_s, LEAST_S)
        lasted, ended = self._interpolated_counts(_doublings_of_time(expected_s))
        of_ended = _shares_by_bin(ended)
        p50 = expected_s * _wait_ratio_quantile(of_ended, 0.5)
        rows = _neighbouring_rows(_doublings_of_time(p50))
        low = sum(share * self._low[row] for row, share in rows)
        high = 1 - sum(share * self._high[row] for row, share in rows)
        p10 = expected_s * _wait_ratio_quantile(of_ended, low)
        most = _MOST_BEYOND * _wait_ratio_quantile(of_ended, high)
        p90 = expected_s * min(most, _wait_ratio_quantile(_shares_of_all(lasted, ended), high))
        return Quantiles(min(p10, p50), p50, max(p90, p50))

    def expect(self, expected_s: Seconds, now: Seconds) -> Expectation:
        """Record a new expected wait and return it with its quantiles.

        The caller ends it with `settle` or `forget`.
        """
        expected_s = max(expected_s, LEAST_S)
        number = self._table_for(expected_s).add_expectation()
        expectation = Expectation(now, expected_s, self.quantiles(expected_s), number)
        self._watch_until_due(expectation)
        return expectation

    def settle(self, expectation: Expectation, now: Seconds) -> None:
        """Record the time at which a predicted event has happened."""
        self.note_time(now)
        self._count_outcome_above_p90(expectation)
        table = self._table_for(expectation.expected_s)
        table.ended[expectation.bin] += table.weight(expectation.number)
        is_early = now - expectation.at < expectation.quantiles.p10
        self._move_levels(self._low, expectation, is_miss=is_early)
        if not expectation.is_late:
            self._move_levels(self._high, expectation, is_miss=False)
        fell = (
            QuantileSide.LATE
            if expectation.is_late
            else QuantileSide.EARLY
            if is_early
            else QuantileSide.WITHIN
        )
        self.fell[_range_of_wait(expectation.quantiles.p50), fell] += 1

    def forget(self, expectation: Expectation) -> None:
        """Drop an expected event that will not occur, for a reason unrelated to its time."""
        self._count_outcome_above_p90(expectation)
        table = self._table_for(expectation.expected_s)
        for column in range(expectation.bin + 1):
            table.lasted[column] -= table.weight(expectation.number)

    def note_time(self, now: Seconds) -> None:
        """Move waits that have lasted long enough into their next histogram bins. O(log n) each."""
        while self._due and self._due[0][0] < now:
            expectation = heapq.heappop(self._due)[2]
            if expectation.is_over:
                self._over -= 1
                continue
            if not expectation.is_late and expectation.lateness_deadline <= expectation.next_bin_at:
                expectation.is_late = True
                self._move_levels(self._high, expectation, is_miss=True)
            else:
                expectation.bin += 1
                table = self._table_for(expectation.expected_s)
                table.lasted[expectation.bin] += table.weight(expectation.number)
            self._watch_until_due(expectation)

    def _count_outcome_above_p90(self, expectation: Expectation) -> None:
        expectation.is_over = True
        self._over += expectation.is_watched
        if self._over > max(_COMPACT_ABOVE, len(self._due) // 2):
            self._due = [entry for entry in self._due if not entry[2].is_over]
            heapq.heapify(self._due)
            self._over = 0

    def _watch_until_due(self, expectation: Expectation) -> None:
        at = expectation.next_bin_at
        if not expectation.is_late:
            at = min(at, expectation.lateness_deadline)
        expectation.is_watched = at < math.inf
        if expectation.is_watched:
            heapq.heappush(self._due, (at, next(self._pushes), expectation))

    def _table_for(self, expected_s: Seconds) -> _LifeTable:
        return self._tables[round(_doublings_of_time(expected_s))]

    def _move_levels(self, levels: list[float], expectation: Expectation, *, is_miss: bool) -> None:
        """Adjust the predicted 10th and 90th percentiles after a wait has ended."""
        change = -_LEVEL_GAIN * (1 - _MISS_FRACTION) if is_miss else _LEVEL_GAIN * _MISS_FRACTION
        for row, share in _neighbouring_rows(_doublings_of_time(expectation.quantiles.p50)):
            levels[row] = min(max(levels[row] + share * change, _LEAST_LEVEL), _MOST_LEVEL)

    def _interpolated_counts(self, horizon: float) -> tuple[list[float], list[float]]:
        """Return the numbers of waits that reached each histogram bin, and that ended there.

        Both are interpolated between the tables nearest to the expected time.
        """
        lasted, ended = [*_PRIOR_LASTED], [*_PRIOR_ENDED]
        for row, table in enumerate(self._tables):
            nearness = 1 - abs(row - horizon) / _TABLE_REACH
            if nearness > 0 and table.expectations:
                of_table = nearness / table.weight(table.expectations)
                for column in range(_BINS):
                    lasted[column] += of_table * table.lasted[column]
                    ended[column] += of_table * table.ended[column]
        return lasted, ended


def _range_of_wait(ahead_s: Seconds) -> str:
    return next(name for name, up_to_s in HORIZONS.items() if ahead_s <= up_to_s)


def _doublings_of_time(time_s: Seconds) -> float:
    return min(max(0.0, math.log2(max(time_s, LEAST_S) / LEAST_S)), _HORIZONS - 1.0)


def _neighbouring_rows(horizon: float) -> list[tuple[int, float]]:
    """Return the two life tables nearest to an expected wait, each with its weight."""
    below = int(horizon)
    share = horizon - below
    return [(below, 1 - share), (below + 1, share)] if below + 1 < _HORIZONS else [(below, 1.0)]


def _ratio_at_bin_end(end_of_bin: float) -> float:
    return float(2 ** (_LEAST_LOG + _BIN_WIDTH * end_of_bin))


def _shares_by_bin(ended: list[float]) -> list[float]:
    total = sum(ended)
    return [weight / total for weight in ended]


def _shares_of_all(lasted: list[float], ended: list[float]) -> list[float]:
    """Return for each histogram bin the estimated share of all waits that end there.

    A wait that has reached a bin, and has neither ended nor reached the next one, counts half.
    """
    shares, left = [], 1.0
    for in_bin, ends, in_next in zip(lasted, ended, [*lasted[1:], 0.0], strict=True):
        exposed = 0.5 * (in_bin + ends + in_next)
        share = left * min(1.0, ends / exposed) if exposed > 0 else 0.0
        shares.append(share)
        left -= share
    return [*shares[:-1], shares[-1] + left]


def _wait_ratio_quantile(shares: list[float], level: float) -> float:
    """Return a quantile of the ratio of wait to expected wait."""
    reached = 0.0
    for column, share in enumerate(shares[:-1]):
        if reached + share >= level:
            return _ratio_at_bin_end(column - 1 + (level - reached) / share) if column else 0.0
        reached += share
    return _ratio_at_bin_end(_BINS - 2)


def _prior_counts() -> tuple[list[float], list[float]]:
    """Return the numbers of waits per histogram bin that are assumed before any measurement."""
    ends = [_LEAST_LOG + _BIN_WIDTH * column for column in range(_BINS - 1)]
    below = [0.5 * math.erfc(-end / _PRIOR_DEVIATION / math.sqrt(2)) for end in ends]
    lasted = [_PRIOR_WEIGHT * (1 - share) for share in (0.0, *below)]
    return lasted, [now - after for now, after in zip(lasted, [*lasted[1:], 0.0], strict=True)]


_PRIOR_LASTED, _PRIOR_ENDED = _prior_counts()
