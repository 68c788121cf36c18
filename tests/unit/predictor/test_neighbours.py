"""A guess from classes whose inputs have a like form."""

import math
from typing import Any

import pytest

from justitia_ray.predictor.neighbours import InputForm, cost_among_neighbours
from tests.unit.predictor.small_models import features_for


def form_of(*chars: int) -> InputForm:
    """Return the form of inputs of so many characters."""
    form = InputForm()
    for count in chars:
        form.add(features_for(count))
    return form


def test_no_class_no_guess() -> None:
    """The prior stands alone until something is known."""
    assert cost_among_neighbours(features_for(100), 10.0, []) is None


def test_class_of_two_samples_says_nothing() -> None:
    """Its form is two inputs, not a class's."""
    assert cost_among_neighbours(features_for(100), 10.0, [(form_of(100, 100), 1.0)]) is None


def test_guess_is_the_geometric_mean_of_prior_and_classes() -> None:
    """One class of cost 1,000 and a prior of 10: sqrt(10,000)."""
    known = [(form_of(100, 100, 100), math.log(1_000))]

    assert cost_among_neighbours(features_for(100), 10.0, known) == pytest.approx(100.0)


def test_nearer_class_weighs_more() -> None:
    """A short input costs more like the class of short inputs."""
    known = [(form_of(50, 50, 50), 0.0), (form_of(5_000, 5_000, 5_000), 10.0)]
    short, long = (cost_among_neighbours(features_for(n), 1.0, known) for n in (60, 4_000))

    assert short is not None
    assert long is not None
    assert short < math.exp(2.5) < long


def test_distance_to_ones_own_form_is_zero() -> None:
    """The measure is that of the logarithms, whatever their number."""
    assert form_of(100, 100).distance(features_for(100)) == pytest.approx(0.0)


def test_form_survives_json() -> None:
    """It is stored with what was learned of the class."""
    form = form_of(10, 200)

    assert form == InputForm.from_dict(form.to_dict())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"samples": -1}, "samples is -1"),
        ({"log_measures": [0.0]}, "log_measures must be"),
        ({"log_measures": "x"}, "log_measures must be"),
        ({"more": 1}, "fields missing or unknown: more"),
    ],
)
def test_wrong_field_is_refused_by_name(change: dict[str, Any], complaint: str) -> None:
    """What comes back from a store is not trusted."""
    with pytest.raises(ValueError, match=complaint):
        InputForm.from_dict(form_of(10).to_dict() | change)
