"""Means and 95 % intervals of paired differences, worked out by hand."""

import math

import pytest

from justitia_ray.report.statistics import (
    differences,
    distribution,
    estimate,
    relative_differences,
)


def test_interval_is_students_t() -> None:
    """1, 2, 3: mean 2, s = 1, n = 3, t(2) = 4.303: the normal's 1.96 would be far too narrow."""
    found = estimate([1.0, 2.0, 3.0])

    half = 4.303 / math.sqrt(3)
    assert 2.0 == found.mean
    assert found.low == pytest.approx(2.0 - half)
    assert found.high == pytest.approx(2.0 + half)


def test_more_values_than_the_table_has_take_its_last_quantile() -> None:
    """40 values of variance 1·40/39: the interval errs on the wide side, t(30) for t(39)."""
    found = estimate([-1.0, 1.0] * 20)

    assert found.high == pytest.approx(2.042 * math.sqrt(40 / 39) / math.sqrt(40))


def test_one_value_has_no_interval() -> None:
    """One run says nothing of the spread; an interval of width 0 would claim certainty."""
    found = estimate([5.0])

    assert (5.0, None, None) == (found.mean, found.low, found.high)
    assert not found.is_above_zero
    assert not found.is_below_zero


def test_no_value_has_no_estimate() -> None:
    """A mean of nothing must not pass for a number."""
    with pytest.raises(ValueError, match="at least one"):
        estimate([])


def test_differences_are_taken_seed_by_seed() -> None:
    """Arms on the same draws vary together: the pairs differ by −50 % each, whatever the seeds."""
    assert [-0.5, -0.5] == relative_differences([10.0, 100.0], [20.0, 200.0])
    assert [-10.0, -100.0] == differences([10.0, 100.0], [20.0, 200.0])


def test_arms_with_other_seeds_cannot_be_paired() -> None:
    """A pair that lacks one side would silently compare different draws."""
    with pytest.raises(ValueError, match="zip"):
        relative_differences([1.0], [1.0, 2.0])


def test_distribution_is_the_empirical_one() -> None:
    """Of 3, 1, 2, 2 a quarter does not exceed 1, three quarters do not exceed 2."""
    assert [(1.0, 0.25), (2.0, 0.5), (2.0, 0.75), (3.0, 1.0)] == distribution([3.0, 1.0, 2.0, 2.0])


def test_long_distributions_are_thinned_to_their_end() -> None:
    """A curve of thousands of points bloats the page; its last point must stay at 1."""
    found = distribution([float(n) for n in range(10_000)], points=100)

    assert 100 == len(found)
    assert (99.0, 0.01) == found[0]
    assert (9999.0, 1.0) == found[-1]
