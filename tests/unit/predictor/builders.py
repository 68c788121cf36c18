"""Builders of samples and models, by hand or drawn from known rules."""

import json
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from safetensors import numpy as safetensors

from justitia_ray.predictor import fitting
from justitia_ray.predictor.class_statistics import InputForm
from justitia_ray.predictor.input_features import MEASURES, InputFeatures, features_of
from justitia_ray.predictor.model_file import model_to_bytes
from justitia_ray.predictor.network_regressor import NetworkRegressor
from justitia_ray.predictor.observation import Sample
from justitia_ray.predictor.trained_model import CostCalibration, DesignMatrix, TrainedModel

_SCALE = 10.0
"""Scale that keeps ln(1 + chars) below the limit at which the design matrix clips."""


def power_model(factor: float = 1.0, power: float = 1.0) -> TrainedModel:
    """Return a model with cost = factor · (1 + chars)^power, p10 half and p90 double of it."""
    measures = len(MEASURES)
    weights = np.zeros((1, measures, 1))
    weights[0, MEASURES.index("chars"), 0] = power * _SCALE
    return TrainedModel(
        kind="mlp",
        samples=10,
        design=DesignMatrix(
            np.zeros(measures),
            np.full(measures, _SCALE),
            np.zeros(0, dtype=np.int64),
            np.zeros(0),
        ),
        regressor=NetworkRegressor(((weights, np.full((1, 1, 1), np.log(factor))),)),
        calibration=CostCalibration(
            shift=0.0, below=-np.log(2).item(), above=np.log(2).item(), least=-50.0, most=50.0
        ),
    )


def power_model_bytes(factor: float = 1.0, power: float = 1.0) -> bytes:
    """Return the serialised form of `power_model`."""
    return model_to_bytes(power_model(factor, power))


def checked_file(body: bytes) -> bytes:
    """Return a model's file with a valid checksum over any content."""
    return b"justitia-model 1 %s\n%s" % (sha256(body).hexdigest().encode(), body)


def parts_of(file: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the metadata and the arrays of a model's file."""
    body = file.partition(b"\n")[2]
    size = int.from_bytes(body[:8], "little")
    metadata = json.loads(json.loads(body[8 : 8 + size])["__metadata__"]["justitia"])
    return metadata, dict(safetensors.load(body))


def file_with_parts(metadata: Mapping[str, Any], arrays: dict[str, Any]) -> bytes:
    """Return a model's file with this metadata and these arrays."""
    return checked_file(safetensors.save(arrays, {"justitia": json.dumps(metadata)}))


def bytes_of_removed_kind() -> bytes:
    """Return a model as release 0.2.0 wrote it: the mean of a ridge, a forest and networks."""
    metadata, arrays = parts_of(power_model_bytes())
    metadata |= {"kind": "blend", "regressors": ["linear", "forest", "network"]}
    metadata["weights"] = [1 / 3] * 3
    return file_with_parts(metadata, arrays)


def text_of(chars: int) -> str:
    """Return a text of this many characters."""
    return ("word " * (chars // 5 + 1))[:chars]


def features_for(chars: int) -> InputFeatures:
    """Return the features of a text of this many characters."""
    return features_of(text_of(chars))


def form_of(*chars: int) -> InputForm:
    """Return the mean features of inputs with these numbers of characters."""
    form = InputForm()
    for count in chars:
        form.add_input(features_for(count))
    return form


def sample_of(chars: int, cost: float | None = None) -> Sample:
    """Return a one-inference application of 10 tokens; its default cost is 1 + chars."""
    return Sample(1.0 + chars if cost is None else cost, 1, 10, features_for(chars))


_WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa")


def made_up_samples(count: int, seed: int = 0, noise: float = 0.2) -> list[Sample]:
    """Return applications that cost the square of their input's length, tripled if it says `slow`.

    The costs are multiplied by a log-normal factor of `noise`, which cannot be predicted.
    """
    rng = random.Random(seed)
    samples = []
    for _ in range(count):
        words = [rng.choice(_WORDS) for _ in range(rng.randint(5, 120))]
        is_slow = rng.random() < 0.4
        text = " ".join([*words, "slow" if is_slow else "quick"]) + "."
        cost = len(words) ** 2 * (3 if is_slow else 1) * math.exp(rng.gauss(0, noise))
        samples.append(Sample(max(1.0, cost), 1, len(words), features_of(text), text))
    return samples


@pytest.fixture(scope="module")
def quick_networks() -> Iterator[None]:
    """Train larger networks for fewer steps, because each test file trains dozens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "_MLP", replace(fitting._MLP, steps=60, rate=0.015, members=4))
        patch.setattr(fitting, "_PAPER", replace(fitting._PAPER, steps=30))
        yield
