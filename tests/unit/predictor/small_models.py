"""Models made by hand: what they say is known, and nothing is trained."""

import numpy as np

from justitia_ray.predictor.calibration import Calibration
from justitia_ray.predictor.cost_model import CostModel
from justitia_ray.predictor.design_matrix import DesignMatrix
from justitia_ray.predictor.input_features import MEASURES, InputFeatures, features_of
from justitia_ray.predictor.model_file import model_to_bytes
from justitia_ray.predictor.regressors import Linear
from justitia_ray.predictor.sample import Sample
from justitia_ray.predictor.trained_model import TrainedModel

_SCALE = 10.0
"""ln(1 + chars) stays within what the design matrix clips at."""


def power_model(factor: float = 1.0, power: float = 1.0, kind: str = "ridge") -> CostModel:
    """Return a model that says cost = factor · (1 + chars)^power, p10 half and p90 double of it."""
    measures = len(MEASURES)
    weights = np.zeros(measures)
    weights[MEASURES.index("chars")] = power * _SCALE
    return TrainedModel(
        kind=kind,
        samples=10,
        design=DesignMatrix(
            np.zeros(measures),
            np.full(measures, _SCALE),
            np.zeros(0, dtype=np.int64),
            np.zeros(0),
        ),
        regressors=(Linear(weights, np.array([np.log(factor)])),),
        weights=(1.0,),
        calibration=Calibration(
            shift=0.0, below=-np.log(2).item(), above=np.log(2).item(), least=-50.0, most=50.0
        ),
    )


def power_model_bytes(factor: float = 1.0, power: float = 1.0, kind: str = "ridge") -> bytes:
    """Return the bytes of that model."""
    return model_to_bytes(power_model(factor, power, kind))


def text_of(chars: int) -> str:
    """Return an input of so many characters."""
    return ("word " * (chars // 5 + 1))[:chars]


def features_for(chars: int) -> InputFeatures:
    """Return the features of an input of so many characters."""
    return features_of(text_of(chars))


def sample_of(chars: int, cost: float | None = None) -> Sample:
    """Return an application of one inference of 10 tokens, whose cost is 1 + chars if not given."""
    return Sample(1.0 + chars if cost is None else cost, 1, 10, features_for(chars))
