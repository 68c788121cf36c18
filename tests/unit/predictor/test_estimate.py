"""The answer of a predictor: its rules and its way through JSON."""

import json
import math
from typing import Any

import pytest

from justitia_ray.predictor.estimate import Estimate

FIELDS: dict[str, Any] = {
    "kv_token_time": 20.0,
    "p10": 10.0,
    "p90": 40.0,
    "output_tokens": 7,
    "source": "class",
}


def test_estimate_survives_json() -> None:
    """It crosses process boundaries as JSON."""
    estimate = Estimate(**FIELDS)

    assert estimate == Estimate.from_dict(json.loads(json.dumps(estimate.to_dict())))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kv_token_time", math.nan),
        ("kv_token_time", 41.0),
        ("kv_token_time", "20"),
        ("p10", -1.0),
        ("p90", math.inf),
        ("p90", True),
        ("output_tokens", 0),
        ("output_tokens", 7.0),
        ("source", "guess"),
    ],
)
def test_wrong_field_is_refused_by_name(field: str, value: object) -> None:
    """A NaN or a negative charge would corrupt the virtual clock; the message must lead to it."""
    with pytest.raises(ValueError, match=f"^{field} is "):
        Estimate.from_dict({**FIELDS, field: value})


def test_missing_and_unknown_fields_are_refused_by_name() -> None:
    """A field lost or renamed on the way must not turn into a default."""
    fields = {**FIELDS, "mean": 20.0}
    del fields["p10"]

    with pytest.raises(ValueError, match="mean, p10"):
        Estimate.from_dict(fields)
