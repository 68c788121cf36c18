"""A decaying fit through the origin."""

import pytest

from justitia_ray.core.least_squares import DecayingFit


def test_fit_of_exact_samples_finds_the_last_coefficient() -> None:
    fit = DecayingFit(2)
    for number in range(20):
        fit.add((number % 5, 10 + number % 3), 2 * (number % 5) + 0.5 * (10 + number % 3))

    assert fit.last_coefficient() == pytest.approx(0.5)


def test_fit_of_few_samples_has_no_last_coefficient() -> None:
    fit = DecayingFit(2)
    for number in range(7):
        fit.add((number, 1), number)

    assert fit.last_coefficient() is None


@pytest.mark.parametrize("values", [(1.0, 0.0), (1.0, 2.0)])
def test_fit_of_proportional_samples_has_no_last_coefficient(
    values: tuple[float, float],
) -> None:
    fit = DecayingFit(2)
    for _ in range(50):
        fit.add(values, 3.0)

    assert fit.last_coefficient() is None


def test_fit_finds_the_last_coefficient_even_if_earlier_ones_are_undetermined() -> None:
    fit = DecayingFit(3)
    for number in range(50):
        fit.add((1, 4, number % 7), 10 + 3 * (number % 7))

    assert fit.last_coefficient() == pytest.approx(3.0)
