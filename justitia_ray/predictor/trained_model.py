"""A trained model of one class: rows, functions of them, calibration."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from justitia_ray.predictor.calibration import Calibration
from justitia_ray.predictor.cost_model import CostPrediction
from justitia_ray.predictor.design_matrix import DesignMatrix
from justitia_ray.predictor.input_features import InputFeatures
from justitia_ray.predictor.regressors import Regressor

_AT_ONCE = 64
"""Inputs in one pass, so that many inputs take no more memory."""


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """Implements `CostModel` with numpy only."""

    kind: str
    """Name of the recipe."""
    samples: int
    """Finished applications that it was trained on."""
    design: DesignMatrix
    regressors: tuple[Regressor, ...]
    """Their weighted mean in ln(cost) is the raw answer."""
    weights: tuple[float, ...]
    """One for each regressor."""
    calibration: Calibration
    trained_with: dict[str, str] = field(default_factory=dict)
    """Versions of the packages that trained it."""

    def predict(self, inputs: Sequence[InputFeatures]) -> list[CostPrediction]:
        """Predict the cost of each input; one input's answer does not depend on the others."""
        answers: list[CostPrediction] = []
        for start in range(0, len(inputs), _AT_ONCE):
            rows = self.design.rows(inputs[start : start + _AT_ONCE])
            raw = np.zeros(len(rows))
            for regressor, weight in zip(self.regressors, self.weights, strict=True):
                raw += weight * regressor.log_costs(rows)
            answers += self.calibration.predictions(raw)
        return answers
