"""A finished application on its way through JSON; what is wrong in one is named."""

import json
from dataclasses import replace
from typing import Any

import pytest

from justitia_ray.core.stages import MAXIMUM_STAGES, StageServed
from justitia_ray.predictor.observation import Observation
from tests.unit.predictor.small_models import sample_of

STAGES = (StageServed(1, 2, 30, 4, 50.5), StageServed(1, 1, 3, 4, 5))
OBSERVED = Observation("EV", sample_of(12), STAGES)


@pytest.mark.parametrize(
    "observation",
    [
        OBSERVED,
        replace(OBSERVED, stages=()),
        replace(OBSERVED, sample=replace(sample_of(3), features=None)),
        replace(OBSERVED, sample=replace(sample_of(3), input_text="kept")),
    ],
)
def test_observation_survives_json(observation: Observation) -> None:
    """It waits in Redis, perhaps for a process of another version."""
    assert observation == Observation.from_dict(json.loads(json.dumps(observation.to_dict())))


def test_text_is_left_out_if_there_is_none() -> None:
    """What is stored says nothing of texts unless they are kept."""
    assert "input_text" not in OBSERVED.to_dict()["sample"]


def changed(where: str, value: Any) -> dict[str, Any]:
    """Return an observation as a dict with one field changed, added or (None) taken out."""
    values: dict[str, Any] = json.loads(json.dumps(OBSERVED.to_dict()))
    *path, name = where.split(".")
    inner = values
    for key in path:
        inner = inner[key]
    if value is ...:
        del inner[name]
    else:
        inner[name] = value
    return values


@pytest.mark.parametrize(
    ("where", "value", "complaint"),
    [
        ("application_class", "a b", "application_class is 'a b'"),
        ("application_class", 7, "application_class is 7"),
        ("more", 1, "fields missing or unknown: more"),
        ("sample", [], "must be an object"),
        ("sample.kv_token_time", 0, "kv_token_time is 0"),
        ("sample.kv_token_time", True, "kv_token_time is True"),
        ("sample.kv_token_time", 1e999, "kv_token_time is inf"),
        ("sample.inferences", 0, "inferences is 0"),
        ("sample.output_tokens", -1, "output_tokens is -1"),
        ("sample.output_tokens", ..., "fields missing or unknown: output_tokens"),
        ("sample.input_text", 3, "input_text must be a text"),
        ("sample.features", [], "features must be an object"),
        ("sample.features.terms", [3, 2], "features: "),
        ("stages", {}, "stages must be a list"),
        ("stages", [[1, 1, 1, 1, 1]] * (MAXIMUM_STAGES + 1), "stages must be a list of at most"),
        ("stages", [[1, 1, 1, 1]], "each of stages must be"),
        ("stages", [[1, 1, 1, 1.5, 1]], "each of stages must be"),
        ("stages", [[1, 1, 1, -1, 1]], "each of stages must be"),
    ],
)
def test_wrong_field_is_refused_by_name(where: str, value: Any, complaint: str) -> None:
    """It may come over HTTP from anybody: nothing of it is taken on trust."""
    with pytest.raises(ValueError, match=complaint):
        Observation.from_dict(changed(where, value))
