"""Percentiles, paired comparisons over repeats, and verdicts on targets."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from justitia_ray.units import Seconds
from scripts.bench.load import Sample


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, minimum and maximum of a figure over the repeats."""

    median: float
    low: float
    high: float

    def format(self, digits: int) -> str:
        """Return `median (low to high)`."""
        return f"{self.median:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Target of the design, with the measured result."""

    target: str
    met: bool
    figure: str

    def __str__(self) -> str:
        return f"{'MET   ' if self.met else 'MISSED'}  {self.target}: {self.figure}"


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` percent of the values do not exceed.

    Raises:
        ValueError: If there is no value, or percent is not above 0 and at most 100.
    """
    if not values or not 0 < percent <= 100:
        raise ValueError(f"percentile {percent} of {len(values)} values")
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def spread(values: Sequence[float]) -> Spread:
    """Return the spread of one figure per repeat."""
    return Spread(statistics.median(values), min(values), max(values))


def paired_differences(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return ours − theirs, repeat by repeat."""
    return [a - b for a, b in zip(ours, theirs, strict=True)]


def paired_ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return ours / theirs, repeat by repeat."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def steady(samples: Sequence[Sample], callers: int) -> tuple[tuple[Sample, ...], Seconds]:
    """Return the calls that ended while all callers were active, and the length of that period.

    The first `callers` ends, while the engines fill, and the last, while they run empty, are left
    out. A call counts when it ends.

    Args:
        samples: In the order in which the calls ended.
        callers: Of the loop.

    Raises:
        ValueError: If nothing is left.
    """
    inside = samples[callers - 1 : len(samples) - callers]
    if len(inside) < 2:
        raise ValueError(f"{len(samples)} calls are too few for {callers} callers")
    return tuple(inside[1:]), inside[-1].ended_at - inside[0].ended_at
