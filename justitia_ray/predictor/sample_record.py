"""Samples as JSON: in Redis, and on their way to the process that trains."""

import math
from typing import Any

from justitia_ray.predictor.input_features import InputFeatures
from justitia_ray.predictor.sample import Sample

_REQUIRED = ("kv_token_time", "inferences", "output_tokens", "features")
_OPTIONAL = ("input_text",)


def sample_to_dict(sample: Sample) -> dict[str, Any]:
    """Return a sample as JSON can say it; the text only if it holds one."""
    record: dict[str, Any] = {
        "kv_token_time": sample.kv_token_time,
        "inferences": sample.inferences,
        "output_tokens": sample.output_tokens,
        "features": None if sample.features is None else sample.features.to_dict(),
    }
    if sample.input_text is not None:
        record["input_text"] = sample.input_text
    return record


def sample_from_dict(values: object) -> Sample:
    """Return the sample that `sample_to_dict` was called on.

    Raises:
        ValueError: If a field is missing, unknown or wrong; the message names it.
    """
    if not isinstance(values, dict):
        raise ValueError("must be an object")
    if wrong := sorted(set(_REQUIRED) ^ (set(values) - set(_OPTIONAL))):
        raise ValueError(f"fields missing or unknown: {', '.join(wrong)}")
    cost, features, text = (values[_REQUIRED[0]], values["features"], values.get("input_text"))
    if type(cost) not in (int, float) or not 0 < cost < math.inf:
        raise ValueError(f"kv_token_time is {cost!r}: a finite number > 0 is allowed")
    for name, least in (("inferences", 1), ("output_tokens", 0)):
        value = values[name]
        if type(value) is not int or value < least:
            raise ValueError(f"{name} is {value!r}: an integer >= {least} is allowed")
    if features is not None and not isinstance(features, dict):
        raise ValueError("features must be an object or null")
    if text is not None and not isinstance(text, str):
        raise ValueError("input_text must be a text or null")
    try:
        return Sample(
            kv_token_time=float(cost),
            inferences=values["inferences"],
            output_tokens=values["output_tokens"],
            features=None if features is None else InputFeatures.from_dict(features),
            input_text=text,
        )
    except ValueError as error:
        raise ValueError(f"features: {error}") from error
