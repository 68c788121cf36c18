"""Percentiles and rates: the arithmetic of every printed figure."""

import pytest

from scripts.bench.load import Sample
from scripts.bench.statistics import percentile, steady


def ended(at: float, tokens: int) -> Sample:
    return Sample(0.0, 0.0, at, tokens, 1)


@pytest.mark.parametrize(("percent", "expected"), [(1, 1.0), (50, 50.0), (99, 99.0), (100, 100.0)])
def test_percentile_is_the_value_of_its_rank(percent: float, expected: float) -> None:
    """Without interpolation every printed figure was measured."""
    values = [float(value) for value in range(100, 0, -1)]

    assert expected == percentile(values, percent)


@pytest.mark.parametrize(("values", "percent"), [([], 50.0), ([1.0], 0.0), ([1.0], 101.0)])
def test_percentile_of_an_empty_sample_is_an_error(values: list[float], percent: float) -> None:
    """A measure without calls must not print a number."""
    with pytest.raises(ValueError, match="percentile"):
        percentile(values, percent)


def test_rate_leaves_out_filling_and_emptying() -> None:
    """With 2 callers, ends 1..6 at t = 0, 1, 2, 3, 4, 9: ends 3 and 4, in the 2 s after end 2."""
    samples = [ended(at, 10) for at in (0.0, 1.0, 2.0, 3.0, 4.0, 9.0)]

    assert (tuple(samples[2:4]), 2.0) == steady(samples, 2)


def test_rate_of_too_few_calls_is_an_error() -> None:
    """A load that never saturated must not print a throughput."""
    with pytest.raises(ValueError, match="too few"):
        steady([ended(0.0, 1), ended(1.0, 1)], 2)
