"""Percentiles, and paired comparisons over the repeats of a benchmark."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from justitia_ray.bench.load import Sample


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the repeats: the middle one, the least and the greatest."""

    median: float
    low: float
    high: float

    def format(self, digits: int) -> str:
        """Return `median (low to high)`."""
        return f"{self.median:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed.

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


def steady_tokens_per_s(samples: Sequence[Sample], concurrency: int) -> float:
    """Return the output rate of a closed loop while all its callers called.

    The first `concurrency` ends, while the engines fill, and the last, while they run empty, are
    left out. A token counts when its call ends.

    Args:
        samples: In the order in which the calls ended.
        concurrency: Callers.

    Raises:
        ValueError: If nothing is left.
    """
    steady = samples[concurrency - 1 : len(samples) - concurrency]
    if len(steady) < 2:
        raise ValueError(f"{len(samples)} calls are too few for {concurrency} callers")
    tokens = sum(sample.output_tokens for sample in steady[1:])
    return tokens / (steady[-1].ended_at - steady[0].ended_at)
