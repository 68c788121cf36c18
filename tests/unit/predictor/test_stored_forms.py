"""Stored, sent or imported objects go through JSON; errors name the wrong field."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from justitia_ray.core.stages import MAXIMUM_STAGES, StageServed
from justitia_ray.predictor.class_life import ChangeTest
from justitia_ray.predictor.class_statistics import InputForm
from justitia_ray.predictor.estimate import Estimate
from justitia_ray.predictor.input_features import BUCKETS, features_of
from justitia_ray.predictor.observation import Observation
from justitia_ray.predictor.trained_model import LARGEST_LOG_COST, CostCalibration
from tests.unit.predictor.builders import form_of, sample_of

ESTIMATE = Estimate(20.0, 10.0, 40.0, output_tokens=7, source="class")
CHANGES = ChangeTest()
for error in (0.1, 0.5, -0.2) * 6:
    CHANGES.add_error(error)
FORM = form_of(10, 200)
CALIBRATION = CostCalibration(0.1, -0.5, 0.5, 1.0, 20.0)
FEATURES = features_of("a b")
OBSERVED = Observation(
    "EV",
    sample_of(12),
    (
        StageServed(1, 2, 30, 4, 50.5, 2, 1.5),
        StageServed(1, 1, 3, 4, 5.0, 4, None),
        StageServed(1, 1, 3, 4, 5),
    ),
)
Stored = Estimate | ChangeTest | InputForm | CostCalibration | Observation


@pytest.mark.parametrize(
    "stored",
    [
        ESTIMATE,
        CHANGES,
        FORM,
        CALIBRATION,
        OBSERVED,
        replace(OBSERVED, stages=()),
        replace(OBSERVED, sample=replace(sample_of(3), features=None)),
        replace(OBSERVED, sample=replace(sample_of(3), input_text="kept")),
    ],
    ids=lambda stored: type(stored).__name__,
)
def test_stored_object_survives_json(stored: Stored) -> None:
    """A process of another release may read the object from Redis or a file."""
    assert stored == type(stored).from_dict(json.loads(json.dumps(stored.to_dict())))


def test_observation_of_release_0_2_0_is_read() -> None:
    """Old stages lack the longest sequence and the following gap."""
    early = with_change(OBSERVED, "stages", [[1, 2, 30, 4, 50.5]])

    assert (StageServed(1, 2, 30, 4, 50.5, None, None),) == Observation.from_dict(early).stages


def test_missing_text_is_not_stored() -> None:
    """A stored object has no text field unless texts are kept."""
    assert "input_text" not in OBSERVED.to_dict()["sample"]


def with_change(stored: Any, where: str, value: Any) -> dict[str, Any]:
    """Return an object as a dict with one field changed or added, or removed by `...`."""
    values: dict[str, Any] = json.loads(json.dumps(stored.to_dict()))
    *path, name = where.split(".")
    inner = values
    for key in path:
        inner = inner[key]
    inner[name] = value
    if value is ...:
        del inner[name]
    return values


@pytest.mark.parametrize(
    ("stored", "where", "value", "complaint"),
    [
        (ESTIMATE, "kv_token_time", math.nan, "^kv_token_time is "),
        (ESTIMATE, "kv_token_time", 41.0, "^kv_token_time is "),
        (ESTIMATE, "kv_token_time", "20", "^kv_token_time is "),
        (ESTIMATE, "p10", -1.0, "^p10 is "),
        (ESTIMATE, "p90", math.inf, "^p90 is "),
        (ESTIMATE, "output_tokens", 0, "^output_tokens is "),
        (ESTIMATE, "source", "guess", "^source is "),
        (ESTIMATE, "p10", ..., "p10"),
        (CHANGES, "values", 1.5, "values is 1.5"),
        (CHANGES, "above", -1.0, "above is -1.0"),
        (CHANGES, "squares", math.inf, "squares is inf"),
        (FORM, "samples", -1, "samples is -1"),
        (FORM, "log_measures", [0.0], "log_measures is .*at least 10 items"),
        (CALIBRATION, "shift", math.nan, "shift is nan"),
        (CALIBRATION, "most", 2 * LARGEST_LOG_COST, "most is 600.*less than or equal to 300"),
        (CALIBRATION, "below", 0.5, "below <= 0"),
        (CALIBRATION, "above", -0.5, "0 <= above"),
        (CALIBRATION, "least", 21.0, "least <= most"),
        (FEATURES, "terms", [3, 3], "ascend"),
        (FEATURES, "terms", [0, BUCKETS], r"terms\[1\] is 32768: .*less than 32768"),
        (FEATURES, "terms", [1.5, 2], r"terms\[0\] is 1.5: .*integer"),
        (FEATURES, "counts", [1], "as many"),
        (FEATURES, "measures", [1], "measures is .*at least 10 items"),
        (FEATURES, "measures", [-1] * 10, r"measures\[0\] is -1"),
        (OBSERVED, "application_class", "a b", "application_class is 'a b'"),
        (OBSERVED, "more", 1, "fields missing or unknown: more"),
        (OBSERVED, "sample", [], "sample is .*dictionary"),
        (OBSERVED, "sample.kv_token_time", 0, "^sample.kv_token_time is 0: .*greater than 0"),
        (OBSERVED, "sample.kv_token_time", True, "kv_token_time is true"),
        (OBSERVED, "sample.inferences", 0, "inferences is 0"),
        (OBSERVED, "sample.output_tokens", -1, "output_tokens is -1"),
        (OBSERVED, "sample.output_tokens", ..., "sample.output_tokens is missing"),
        (OBSERVED, "sample.input_text", 3, "input_text is 3: .*string"),
        (OBSERVED, "sample.features", [], r"features is \[\]: .*dictionary"),
        (OBSERVED, "sample.features.terms", [3, 2], "sample.features: terms must ascend"),
        (OBSERVED, "stages", {}, "stages is {}"),
        (OBSERVED, "stages", [[1] * 5] * (MAXIMUM_STAGES + 1), "stages is .*at most 64 items"),
        (OBSERVED, "stages", [[1, 1, 1, 1]], r"stages\[0\]\[4\] is missing"),
        (OBSERVED, "stages", [[1, 1, 1, 1.5, 1]], r"stages\[0\]\[3\] is 1.5"),
        (OBSERVED, "stages", [[1, 1, 1, -1, 1]], r"stages\[0\]\[3\] is -1"),
        (OBSERVED, "stages", [[1, 1, 1, 1, 1, 1]], r"stages\[0\]\[6\] is missing"),
        (OBSERVED, "stages", [[1, 1, 1, 1, 1, 1.5, 0]], r"stages\[0\]\[5\] is 1.5"),
        (OBSERVED, "stages", [[1, 1, 1, 1, 1, 1, -0.5]], r"stages\[0\]\[6\] is -0.5"),
        (OBSERVED, "stages", [7], r"stages\[0\] is 7"),
    ],
)
def test_wrong_field_is_refused_by_name(
    stored: Any, where: str, value: Any, complaint: str
) -> None:
    """A NaN from a store, file or client would corrupt the virtual clock."""
    with pytest.raises(ValueError, match=complaint):
        type(stored).from_dict(with_change(stored, where, value))
