"""Means, and 95 % intervals of paired differences, over the seeds of an experiment."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from justitia_ray.lab.report.experiment import Series

_T_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""97.5 % quantiles of Student's t for 1 to 30 degrees of freedom.

From the NIST/SEMATECH e-Handbook of Statistical Methods, Sec. 1.3.6.7.2. With more degrees the last
quantile is used, which widens the interval.
"""


@dataclass(frozen=True, slots=True)
class MeanEstimate:
    """Mean with its 95 % interval, which is None for fewer than two values."""

    mean: float
    low: float | None
    high: float | None


def estimate(values: Sequence[float]) -> MeanEstimate:
    """Return the mean and its 95 % interval, mean ± t · s/√n (Student's t, two-sided).

    Raises:
        ValueError: If there is no value.
    """
    if not values:
        raise ValueError("an estimate needs at least one value")
    mean, count = fmean(values), len(values)
    if count < 2:
        return MeanEstimate(mean, None, None)
    half = _T_95[min(count - 1, len(_T_95)) - 1] * stdev(values) / math.sqrt(count)
    return MeanEstimate(mean, mean - half, mean + half)


def curve(label: str, found: Iterable[tuple[float, Sequence[float]]]) -> Series:
    """Return a curve of means with their intervals; an x without values is left out.

    Args:
        label: Label of the curve.
        found: Pairs of x and the values of all seeds at x.
    """
    points, low, high = [], [], []
    for x, values in found:
        if values:
            got = estimate(values)
            points.append((x, got.mean))
            low.append(got.mean if got.low is None else got.low)
            high.append(got.mean if got.high is None else got.high)
    return Series(label, points, low, high)


def differences(
    ours: Sequence[float], theirs: Sequence[float], *, is_relative: bool = False
) -> list[float]:
    """Return, for each seed, our value less theirs, absolute or relative to theirs.

    Raises:
        ValueError: If the arms have different numbers of seeds.
        ZeroDivisionError: If relative differences are requested and one of their values is zero.
    """
    pairs = zip(ours, theirs, strict=True)
    return [(a - b) / b if is_relative else a - b for a, b in pairs]


def distribution(values: Sequence[float], points: int = 200) -> list[tuple[float, float]]:
    """Return an empirical distribution function with at most `points` steps.

    Returns:
        Pairs (value, share of values ≤ this value), in order.
    """
    ordered = sorted(values)
    count = len(ordered)
    ranks = sorted({math.ceil(count * step / points) for step in range(1, points + 1)} - {0})
    return [(ordered[rank - 1], rank / count) for rank in ranks]
