"""Trained models as bytes: arrays and JSON, checksummed, never a pickle.

One line `justitia-model FORMAT SHA-256`, then a safetensors file (the checksum's subject) whose
metadata holds one JSON object. Whatever reads it needs numpy and safetensors, not what trained it.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from justitia_ray.errors import ConfigError, StoreError
from justitia_ray.predictor.calibration import Calibration
from justitia_ray.predictor.checked_arrays import Arrays, floats, integers
from justitia_ray.predictor.cost_model import CostModel
from justitia_ray.predictor.design_matrix import DesignMatrix
from justitia_ray.predictor.input_features import BUCKETS, MEASURES
from justitia_ray.predictor.regressors import REGRESSORS, Regressor
from justitia_ray.predictor.trained_model import TrainedModel

FORMAT = 1
MAX_BYTES = 64 * 1024**2
"""A model of 2,000 long documents is about 2 MB; what is larger is something else."""
_MAGIC = b"justitia-model"
_JSON = "justitia"
"""Name of the metadata's entry."""
_LEAST_SCALE = 1e-9
_MOST_REGRESSORS = 8
_FIELDS = {
    "kind": str,
    "samples": int,
    "regressors": list,
    "weights": list,
    "calibration": dict,
    "trained_with": dict,
    "measures": list,
    "buckets": int,
}


def model_to_bytes(model: CostModel) -> bytes:
    """Return the model for `model_from_bytes`; the same model gives the same bytes.

    Raises:
        ConfigError: If safetensors is not installed.
        TypeError: If the model is none that `train` returned.
    """
    if not isinstance(model, TrainedModel):
        raise TypeError(f"a {type(model).__name__} has no file format: a TrainedModel has")
    design = model.design
    arrays: dict[str, NDArray[np.generic]] = {
        "design.mean": design.mean,
        "design.scale": design.scale,
        "design.buckets": design.buckets,
        "design.idf": design.idf,
    }
    for number, regressor in enumerate(model.regressors):
        arrays |= {f"{number}.{name}": array for name, array in regressor.arrays().items()}
    about = {
        "kind": model.kind,
        "samples": model.samples,
        "regressors": [regressor.name for regressor in model.regressors],
        "weights": list(model.weights),
        "calibration": model.calibration.to_dict(),
        "trained_with": model.trained_with,
        "measures": list(MEASURES),
        "buckets": BUCKETS,
    }
    ordered = {name: np.ascontiguousarray(arrays[name]) for name in sorted(arrays)}
    body: bytes = _safetensors().save(ordered, {_JSON: json.dumps(about, sort_keys=True)})
    digest = hashlib.sha256(body).hexdigest().encode()
    return b"%s %d %s\n" % (_MAGIC, FORMAT, digest) + body


def model_from_bytes(data: bytes, where: str) -> CostModel:
    """Return the model that `model_to_bytes` was called on.

    Args:
        data: From a file or from Redis; checked, so that a damaged or hostile one is refused.
        where: Which file or key that is, for messages.

    Raises:
        ConfigError: If safetensors is not installed.
        StoreError: If it is damaged, of another format or no model; the message names `where`.
    """
    try:
        return _model(_body(data))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise StoreError(f"{where}: not a model that can be used: {error}") from error


def _body(data: bytes) -> bytes:
    if len(data) > MAX_BYTES:
        raise ValueError(f"{len(data)} bytes: at most {MAX_BYTES} are allowed")
    header, newline, body = data.partition(b"\n")
    words = header.split(b" ")
    if not newline or len(words) != 3 or words[0] != _MAGIC:
        raise ValueError(f"it does not begin with {_MAGIC.decode()!r}, a format and a checksum")
    if words[1] != str(FORMAT).encode():
        raise ValueError(f"format {words[1][:20]!r}: {FORMAT} is allowed")
    if hashlib.sha256(body).hexdigest().encode() != words[2]:
        raise ValueError("its SHA-256 is not that of the header: it is damaged")
    return body


def _model(body: bytes) -> TrainedModel:
    safetensors = _safetensors()
    try:
        arrays = safetensors.load(body)
    except Exception as error:
        # safetensors raises its own class, KeyError for types numpy lacks, and OverflowError.
        raise ValueError(f"its arrays cannot be read: {error}") from error
    size = int.from_bytes(body[:8], "little")
    about = json.loads(json.loads(body[8 : 8 + size])["__metadata__"][_JSON])
    _check_fields(about)
    design = _design(arrays)
    names, weights = about["regressors"], about["weights"]
    if not 1 <= len(names) <= _MOST_REGRESSORS or not all(name in REGRESSORS for name in names):
        raise ValueError(
            f"regressors must be 1 to {_MOST_REGRESSORS} of {', '.join(REGRESSORS)}, got"
            f" {names!r:.80}"
        )
    if len(weights) != len(names) or not all(_is_weight(weight) for weight in weights):
        raise ValueError("weights must be numbers from 0 to 1, one for each regressor")
    return TrainedModel(
        about["kind"],
        about["samples"],
        design,
        tuple(_regressor(arrays, i, name, design.columns) for i, name in enumerate(names)),
        tuple(float(weight) for weight in weights),
        Calibration.from_dict(about["calibration"]),
        about["trained_with"],
    )


def _check_fields(about: Any) -> None:
    if not isinstance(about, dict) or about.keys() != _FIELDS.keys():
        raise ValueError(f"its metadata must have the fields {', '.join(_FIELDS)}")
    for name, kind in _FIELDS.items():
        if type(about[name]) is not kind:
            raise ValueError(f"{name} must be a JSON {kind.__name__}")
    if not re.fullmatch(r"[a-z0-9_-]{1,32}", about["kind"]):
        raise ValueError(f"kind is {about['kind']!r:.80}: 1 to 32 of a-z 0-9 _ - are allowed")
    if not all(isinstance(text, str) for text in about["trained_with"].values()):
        raise ValueError("trained_with must hold texts")
    if about["samples"] < 1:
        raise ValueError(f"samples is {about['samples']}: 1 or more is allowed")
    if about["measures"] != list(MEASURES) or about["buckets"] != BUCKETS:
        raise ValueError("it was trained on other measures than this version takes")


def _design(arrays: Arrays) -> DesignMatrix:
    own = _part(arrays, "design")
    measures = len(MEASURES)
    mean, scale = (floats(own, name, (measures,)) for name in ("mean", "scale"))
    if not (scale >= _LEAST_SCALE).all():
        raise ValueError(f"scale must be >= {_LEAST_SCALE:g}")
    terms = len(own["buckets"]) if "buckets" in own else 0
    buckets = integers(own, "buckets", (terms,), 0, BUCKETS)
    if (np.diff(buckets) <= 0).any():
        raise ValueError("buckets must ascend")
    idf = floats(own, "idf", (terms,))
    if (idf < 1).any():
        raise ValueError("idf must be >= 1")
    return DesignMatrix(mean, scale, buckets, idf)


def _regressor(arrays: Arrays, number: int, name: str, columns: int) -> Regressor:
    return REGRESSORS[name].from_arrays(_part(arrays, str(number)), columns)


def _part(arrays: Arrays, prefix: str) -> Mapping[str, NDArray[np.generic]]:
    return {
        name.removeprefix(f"{prefix}."): array
        for name, array in arrays.items()
        if name.startswith(f"{prefix}.")
    }


def _is_weight(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _safetensors() -> Any:
    try:
        from safetensors import numpy as safetensors
    except ModuleNotFoundError as error:
        raise ConfigError(
            "model files need safetensors: pip install 'justitia-ray[learning]'"
        ) from error
    return safetensors
