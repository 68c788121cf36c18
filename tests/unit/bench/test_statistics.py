"""Percentiles and rates: the arithmetic of every printed figure."""

import pytest

from scripts.bench.load import Sample
from scripts.bench.statistics import percentile, steady


def sample_ended_at(at: float, tokens: int) -> Sample:
    return Sample(0.0, 0.0, at, tokens, 1)


@pytest.mark.parametrize(("percent", "expected"), [(1, 1.0), (50, 50.0), (99, 99.0), (100, 100.0)])
def test_percentile_is_one_of_the_measured_values(percent: float, expected: float) -> None:
    """Percentiles are not interpolated."""
    values = [float(value) for value in range(100, 0, -1)]

    assert expected == percentile(values, percent)


@pytest.mark.parametrize(("values", "percent"), [([], 50.0), ([1.0], 0.0), ([1.0], 101.0)])
def test_percentile_of_an_empty_sample_is_an_error(values: list[float], percent: float) -> None:
    with pytest.raises(ValueError, match="percentile"):
        percentile(values, percent)


def test_rate_excludes_the_start_and_the_end_of_a_load() -> None:
    samples = [sample_ended_at(at, 10) for at in (0.0, 1.0, 2.0, 3.0, 4.0, 9.0)]

    assert (tuple(samples[2:4]), 2.0) == steady(samples, 2)


def test_rate_of_too_few_calls_is_an_error() -> None:
    """A load that never saturated the service must not print a throughput."""
    with pytest.raises(ValueError, match="too few"):
        steady([sample_ended_at(0.0, 1), sample_ended_at(1.0, 1)], 2)
