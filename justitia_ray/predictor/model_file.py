"""Trained models as bytes: arrays and JSON, with a checksum, never a pickle.

One line `justitia-model FORMAT SHA-256`, then a safetensors file (over which the checksum is
computed) whose metadata holds one JSON object. Reading needs numpy and safetensors, not the
packages of training.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from justitia_ray.errors import ConfigError, StoreError
from justitia_ray.predictor.input_features import BUCKETS, MEASURES
from justitia_ray.predictor.network_regressor import Arrays, NetworkRegressor, floats, integers
from justitia_ray.predictor.stored import AtLeastOne, Stored
from justitia_ray.predictor.trained_model import CostCalibration, DesignMatrix, TrainedModel

FORMAT = 1
MAX_BYTES = 64 * 1024**2
"""Maximum size of a model file; a model of 2,000 long documents has about 2 MB."""
_MAGIC = b"justitia-model"
_JSON = "justitia"
"""Name of the metadata entry of a safetensors file that holds the model's settings as JSON."""
_LEAST_SCALE = 1e-9
_FUNCTIONS = ("network",)
"""Kinds of functions that a model file may contain."""
_PREFIX = "0"


@dataclass(frozen=True, slots=True)
class _Metadata(Stored):
    """Data of a model that are not arrays."""

    kind: Annotated[str, Field(pattern=r"^[a-z0-9_-]{1,32}$")]
    samples: AtLeastOne
    regressors: tuple[str, ...]
    weights: tuple[Annotated[float, Field(ge=0, le=1, strict=True)], ...]
    calibration: CostCalibration
    trained_with: dict[str, str]
    measures: tuple[str, ...] = MEASURES
    buckets: int = BUCKETS

    @model_validator(mode="after")
    def _check_functions(self) -> Self:
        if self.measures != MEASURES or self.buckets != BUCKETS:
            raise ValueError("it was trained on other measures than this version takes")
        if self.regressors != _FUNCTIONS:
            raise ValueError(
                f"regressors are {self.regressors!r:.80}: {_FUNCTIONS!r} is allowed; the kinds"
                " auto, ridge, forest and median were removed, and the class needs a new training"
            )
        if self.weights != (1.0,):
            raise ValueError(f"weights are {self.weights!r:.80}: (1.0,) is allowed")
        return self


def model_to_bytes(model: TrainedModel) -> bytes:
    """Encode a model for `model_from_bytes`; equal models give equal bytes.

    Raises:
        ConfigError: If safetensors is not installed.
    """
    arrays: dict[str, NDArray[np.generic]] = {
        f"design.{field.name}": getattr(model.design, field.name) for field in fields(DesignMatrix)
    }
    arrays |= {f"{_PREFIX}.{name}": array for name, array in model.regressor.arrays().items()}
    about = _Metadata(
        model.kind,
        model.samples,
        _FUNCTIONS,
        (1.0,),
        model.calibration,
        model.trained_with,
    )
    ordered = {name: np.ascontiguousarray(arrays[name]) for name in sorted(arrays)}
    told = json.dumps(about.to_dict(), sort_keys=True)
    body: bytes = _import_safetensors().save(ordered, {_JSON: told})
    digest = hashlib.sha256(body).hexdigest().encode()
    return b"%s %d %s\n" % (_MAGIC, FORMAT, digest) + body


def model_from_bytes(data: bytes, where: str) -> TrainedModel:
    """Decode a model from `model_to_bytes`.

    Args:
        data: Bytes of a file or of a Redis key; a damaged or hostile model is refused.
        where: Name of the file or key, for messages.

    Raises:
        ConfigError: If safetensors is not installed.
        StoreError: If the data are damaged, of another format or no model; the message names
            `where`.
    """
    try:
        return _decode_model(_check_header(data))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise StoreError(f"{where}: not a model that can be used: {error}") from error


def _check_header(data: bytes) -> bytes:
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


def _decode_model(body: bytes) -> TrainedModel:
    safetensors = _import_safetensors()
    try:
        arrays = safetensors.load(body)
    except Exception as error:
        # KeyError is for types unknown to numpy, beside safetensors' own errors.
        raise ValueError(f"its arrays cannot be read: {error}") from error
    size = int.from_bytes(body[:8], "little")
    metadata = json.loads(body[8 : 8 + size])["__metadata__"]
    about = _Metadata.from_dict(json.loads(metadata[_JSON]), "metadata")
    design = _decode_design(arrays)
    return TrainedModel(
        about.kind,
        about.samples,
        design,
        NetworkRegressor.from_arrays(_arrays_below(arrays, _PREFIX), design.columns),
        about.calibration,
        about.trained_with,
    )


def _decode_design(arrays: Arrays) -> DesignMatrix:
    own = _arrays_below(arrays, "design")
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


def _arrays_below(arrays: Arrays, prefix: str) -> Mapping[str, NDArray[np.generic]]:
    return {
        name.removeprefix(f"{prefix}."): array
        for name, array in arrays.items()
        if name.startswith(f"{prefix}.")
    }


def _import_safetensors() -> Any:
    try:
        from safetensors import numpy as safetensors
    except ModuleNotFoundError as error:
        raise ConfigError(
            "model files need safetensors: pip install 'justitia-ray[learning]'"
        ) from error
    return safetensors
