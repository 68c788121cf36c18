"""Estimates for an unknown class from classes whose inputs have a similar form."""

import math

import pytest

from justitia_ray.predictor.class_statistics import InputForm, cost_among_neighbours
from tests.unit.predictor.builders import features_for, form_of


@pytest.mark.parametrize("known", [[], [(form_of(100, 100), 1.0)]])
def test_too_few_neighbouring_samples_give_no_cost_estimate(
    known: list[tuple[InputForm, float]],
) -> None:
    """Fewer than three samples describe inputs but not their class, so only the prior is used."""
    assert cost_among_neighbours(features_for(100), 10.0, known) is None


def test_cost_estimate_is_the_geometric_mean_of_prior_and_known_classes() -> None:
    known = [(form_of(100, 100, 100), math.log(1_000))]

    assert cost_among_neighbours(features_for(100), 10.0, known) == pytest.approx(100.0)


def test_class_with_a_nearer_input_length_weighs_more() -> None:
    """A short input costs about as much as the class of short inputs."""
    known = [(form_of(50, 50, 50), 0.0), (form_of(5_000, 5_000, 5_000), 10.0)]
    short, long = (cost_among_neighbours(features_for(n), 1.0, known) for n in (60, 4_000))

    assert short is not None
    assert long is not None
    assert short < math.exp(2.5) < long
