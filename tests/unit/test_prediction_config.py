"""The predictor's settings: what is impossible is named before anything is deployed."""

from typing import Any

import pytest

from justitia_ray.config import PredictionSection, parse_app_config
from justitia_ray.errors import ConfigError


def prediction(**values: Any) -> PredictionSection:
    """Parse a configuration with these settings."""
    model = {"name": "m", "path": "none"}
    return parse_app_config({"model": model, "prediction": values}).prediction


def test_texts_are_not_stored_by_default() -> None:
    """Inputs are users' texts."""
    assert not prediction().store_inputs


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"minimum_samples": 7}, r"prediction\.minimum_samples: .*8 \(got 7\)"),
        ({"replicas": 0}, r"prediction\.replicas: .*greater than 0"),
        ({"history_per_class": 99}, r"prediction\.history_per_class: .*100"),
        (
            {"minimum_samples": 200, "history_per_class": 150},
            "minimum_samples is 200: at most history_per_class, 150, is allowed",
        ),
        ({"store_input": True}, r"prediction\.store_input: Extra inputs"),
        ({"training_timeout_s": 0}, r"prediction\.training_timeout_s"),
    ],
)
def test_mistake_is_named(values: dict[str, Any], complaint: str) -> None:
    """A model that could never be trained would be missed weeks later."""
    with pytest.raises(ConfigError, match=complaint):
        prediction(**values)
