"""Percentiles, pairs and rates: the arithmetic under every printed figure."""

import pytest

from justitia_ray.bench.load import Sample
from justitia_ray.bench.statistics import (
    Spread,
    paired_differences,
    paired_ratios,
    percentile,
    spread,
    steady_tokens_per_s,
)


def ended(at: float, tokens: int) -> Sample:
    return Sample(0.0, 0.0, at, tokens, 1)


@pytest.mark.parametrize(("percent", "expected"), [(1, 1.0), (50, 50.0), (99, 99.0), (100, 100.0)])
def test_percentile_is_the_value_of_its_rank(percent: float, expected: float) -> None:
    """No interpolation: every figure printed was measured."""
    values = [float(value) for value in range(100, 0, -1)]

    assert expected == percentile(values, percent)


def test_percentile_of_few_values_is_never_below_their_share() -> None:
    """p99 of ten values is the greatest: a tail must not be rounded away."""
    assert 10.0 == percentile([float(value) for value in range(1, 11)], 99)


@pytest.mark.parametrize(("values", "percent"), [([], 50.0), ([1.0], 0.0), ([1.0], 101.0)])
def test_percentile_of_nothing_is_an_error(values: list[float], percent: float) -> None:
    """A measure without calls must not print a number."""
    with pytest.raises(ValueError, match="percentile"):
        percentile(values, percent)


def test_spread_is_the_median_and_both_ends() -> None:
    """One slow repeat shows in the spread and does not move the figure."""
    assert Spread(2.0, 1.0, 90.0) == spread([1.0, 90.0, 2.0])


def test_pairs_are_compared_within_their_repeat() -> None:
    """Machine noise that hits both arms of a repeat must cancel."""
    assert [3.0, 3.0] == paired_differences([13.0, 103.0], [10.0, 100.0])
    assert [0.5, 2.0] == paired_ratios([5.0, 200.0], [10.0, 100.0])


def test_pairs_of_unequal_length_are_an_error() -> None:
    """A repeat that one arm lacks would pair strangers."""
    with pytest.raises(ValueError, match="shorter"):
        paired_differences([1.0, 2.0], [1.0])


def test_rate_leaves_out_filling_and_emptying() -> None:
    """With 2 callers, ends 1..6 at t = 0, 1, 2, 3, 4, 9: counted from the second to the fourth.

    The tokens of ends 3 and 4, 10 each, over the 2 s between ends 2 and 4.
    """
    samples = [ended(at, 10) for at in (0.0, 1.0, 2.0, 3.0, 4.0, 9.0)]

    assert 10.0 == steady_tokens_per_s(samples, 2)


def test_rate_of_too_few_calls_is_an_error() -> None:
    """A load that never saturated must not print a throughput."""
    with pytest.raises(ValueError, match="too few"):
        steady_tokens_per_s([ended(0.0, 1), ended(1.0, 1)], 2)
