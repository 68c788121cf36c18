"""A trained model of a class: features become rows, networks read rows, outputs are calibrated.

Predicting needs neither scikit-learn nor torch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Self, TypeAlias

import numpy as np
from pydantic import Field, model_validator

from justitia_ray.predictor.class_statistics import reach_of_p90
from justitia_ray.predictor.input_features import InputFeatures
from justitia_ray.predictor.network_regressor import Floats, Integers, NetworkRegressor
from justitia_ray.predictor.stored import Stored
from justitia_ray.units import KvTokenTime


@dataclass(frozen=True, slots=True)
class CostPrediction:
    """Predicted cost and spread in token·iterations: 0 < p10 <= kv_token_time <= p90 < inf."""

    kv_token_time: KvTokenTime
    p10: KvTokenTime
    p90: KvTokenTime


WIDEST_DEVIATIONS = 4.0
"""Standard deviations to which inputs are clipped, against extrapolation to huge inputs."""


@dataclass(frozen=True, slots=True)
class DesignMatrix:
    """Converts input texts to rows of numbers for a model."""

    mean: Floats
    """Mean of ln(1 + measure) over the training inputs, [measures]."""
    scale: Floats
    """Standard deviation of ln(1 + measure) over the training inputs, [measures], > 0."""
    buckets: Integers
    """Hash buckets of the known words, ascending, [terms]."""
    idf: Floats
    """Inverse document frequencies of the known words, [terms]."""

    @property
    def columns(self) -> int:
        """Number of columns in a row of the design matrix."""
        return len(self.mean) + len(self.buckets)

    def rows(self, inputs: Sequence[InputFeatures]) -> Floats:
        """Return float64 [inputs, columns]: one row for each input, independent of the others."""
        measures = len(self.mean)
        matrix = np.zeros((len(inputs), self.columns))
        for row, features in zip(matrix, inputs, strict=True):
            logs = np.log1p(np.array(features.measures, dtype=np.float64))
            row[:measures] = np.clip(
                (logs - self.mean) / self.scale, -WIDEST_DEVIATIONS, WIDEST_DEVIATIONS
            )
            if len(self.buckets):
                self._weigh_terms(features, row[measures:])
        return matrix

    def _weigh_terms(self, features: InputFeatures, weights: Floats) -> None:
        """Write the TF-IDF weights of known words into a row, scaled to length 1."""
        terms = np.array(features.terms, dtype=np.int64)
        places = np.minimum(np.searchsorted(self.buckets, terms), len(self.buckets) - 1)
        known = self.buckets[places] == terms
        places = places[known]
        if len(places):
            counts = np.array(features.counts, dtype=np.float64)[known]
            found = (1.0 + np.log(counts)) * self.idf[places]
            weights[places] = found / np.sqrt(np.sum(found * found))


REACH = 10.0
"""Maximum factor by which an estimate may lie outside the range of training costs."""

LARGEST_LOG_COST = 300.0
"""Limit of ln(cost) in a model file, far above real costs; its exponential is finite."""
_LogCost: TypeAlias = Annotated[
    float, Field(ge=-LARGEST_LOG_COST, le=LARGEST_LOG_COST, strict=True)
]

_SHIFT_WEIGHT = 20
"""Weight of the prior, in samples, that a model's predictions need no shift.

On the recorded runs this reduced the mean error after 10 samples from 36.7 to 34.5 %, after 20 from
28.9 to 27.8 %, and changed nothing after 100.
"""
_ENOUGH = 20
"""Number of prediction errors from which p10 and p90 are their quantiles."""


@dataclass(frozen=True, slots=True)
class CostCalibration(Stored):
    """Shifts a model's outputs, and adds their spread, by its errors on held-out samples."""

    shift: _LogCost
    below: _LogCost
    above: _LogCost
    least: _LogCost
    most: _LogCost

    def predictions(self, log_costs: Floats) -> list[CostPrediction]:
        """Return cost and spread for each output of the networks."""
        answers = []
        for raw in log_costs.tolist():
            cost, p10, p90 = (
                math.exp(min(max(raw + self.shift + offset, self.least), self.most))
                for offset in (0.0, self.below, self.above)
            )
            answers.append(CostPrediction(cost, p10, p90))
        return answers

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.below > 0 or self.above < 0 or self.least > self.most:
            raise ValueError("below <= 0 <= above and least <= most are allowed")
        return self


def calibrate(raw: Floats, log_costs: Floats, *, shifted: bool = True) -> CostCalibration:
    """Calibrate a model by its predictions for held-out applications.

    The shift minimises the mean relative error: that of s·p against t is Σ (p/t)·|s − t/p|, so the
    best factor s is the median of t/p weighted by p/t. It is below the unweighted median, because
    an estimate can be too large by any factor and too small by 100 % at most.

    Args:
        raw: Predicted ln(cost) of each application.
        log_costs: True ln(cost) of each application.
        shifted: Whether predictions are shifted.
    """
    trust = len(raw) / (len(raw) + _SHIFT_WEIGHT) if shifted else 0.0
    shift = trust * best_shift(log_costs - raw)
    below, above = _spread(np.sort(log_costs - raw) - shift)
    reach = math.log(REACH)
    return CostCalibration(
        shift, below, above, float(log_costs.min()) - reach, float(log_costs.max()) + reach
    )


def best_shift(errors: Floats) -> float:
    """Return the shift of least mean relative error: the median of ln(t/p), weighted by p/t."""
    ordered = np.sort(errors)
    weights = np.cumsum(np.exp(ordered[0] - ordered))
    return float(ordered[np.searchsorted(weights, weights[-1] / 2)])


def _spread(errors: Floats) -> tuple[float, float]:
    count = len(errors)
    if count >= _ENOUGH:
        rank = min(math.ceil(0.9 * (count + 1)), count)
        below, above = float(errors[count - rank]), float(errors[rank - 1])
    else:
        reach = reach_of_p90(float(np.sum((errors - errors.mean()) ** 2)), count)
        below, above = float(errors.mean()) - reach, float(errors.mean()) + reach
    return min(below, 0.0), max(above, 0.0)


_AT_ONCE = 64
"""Number of inputs predicted at the same time, which limits the memory."""


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """Trained model of an application class; equal inputs give equal predictions."""

    kind: str
    """Name of the training recipe: `mlp` or `paper`."""
    samples: int
    """Number of finished applications that the model was trained on."""
    design: DesignMatrix
    regressor: NetworkRegressor
    """Neural networks that predict ln(cost) before calibration."""
    calibration: CostCalibration
    trained_with: dict[str, str] = field(default_factory=dict)
    """Versions of the packages used for training."""

    def predict(self, inputs: Sequence[InputFeatures]) -> list[CostPrediction]:
        """Predict the cost of each input, independent of the others."""
        answers: list[CostPrediction] = []
        for start in range(0, len(inputs), _AT_ONCE):
            rows = self.design.rows(inputs[start : start + _AT_ONCE])
            answers += self.calibration.predictions(self.regressor.log_costs(rows))
        return answers
