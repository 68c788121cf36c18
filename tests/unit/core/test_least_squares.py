"""A decaying fit through the origin."""

import pytest

from justitia_ray.core.least_squares import DecayingFit


def test_last_coefficient_is_recovered() -> None:
    fit = DecayingFit(2)
    for number in range(20):
        fit.add((number % 5, 10 + number % 3), 2 * (number % 5) + 0.5 * (10 + number % 3))

    assert fit.last() == pytest.approx(0.5)


def test_few_samples_leave_a_coefficient_unknown() -> None:
    fit = DecayingFit(2)
    for number in range(7):
        fit.add((number, 1), number)

    assert fit.last() is None


@pytest.mark.parametrize("values", [(1.0, 0.0), (1.0, 2.0)])
def test_proportional_samples_leave_the_last_coefficient_unknown(
    values: tuple[float, float],
) -> None:
    fit = DecayingFit(2)
    for _ in range(50):
        fit.add(values, 3.0)

    assert fit.last() is None


def test_last_coefficient_is_known_if_only_earlier_ones_are_unknown() -> None:
    fit = DecayingFit(3)
    for number in range(50):
        fit.add((1, 4, number % 7), 10 + 3 * (number % 7))

    assert fit.last() == pytest.approx(3.0)
