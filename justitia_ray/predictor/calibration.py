"""From a model's raw answers to a cost and its spread, by what it got wrong on runs held out.

Split conformal prediction (Lei et al., JASA 113, 2018, Sec. 2.2) in ln(cost): p10 and p90 are
quantiles of the errors on applications that the model was not trained on.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from justitia_ray.predictor.cost_model import CostPrediction
from justitia_ray.predictor.log_spread import reach_of_p90

Floats = NDArray[np.float64]

REACH = 10.0
"""No estimate lies further than this factor outside the costs that the model was trained on."""

FARTHEST = 300.0
"""Logarithms of costs in a model file lie within this: far beyond any cost, and e to it is finite.
"""

_SHIFT_WEIGHT = 20
"""Errors of no shift that the shift is averaged with: it is itself an estimate. On the recorded
runs this took the mean error after 10 samples from 36.7 to 34.5 %, after 20 from 28.9 to 27.8 %,
and changed nothing after 100.
"""
_ENOUGH = 20
"""Errors from which on their own quantiles are used."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Where the cost, p10 and p90 lie around a raw answer; all logarithms of token·iterations."""

    shift: float
    """Added to the raw answer."""
    below: float
    """From the cost to p10, <= 0."""
    above: float
    """From the cost to p90, >= 0."""
    least: float
    """Bounds of every answer."""
    most: float

    def predictions(self, log_costs: Floats) -> list[CostPrediction]:
        """Return the cost and the spread of each raw answer."""
        answers = []
        for raw in log_costs.tolist():
            cost, p10, p90 = (
                math.exp(min(max(raw + self.shift + offset, self.least), self.most))
                for offset in (0.0, self.below, self.above)
            )
            answers.append(CostPrediction(cost, p10, p90))
        return answers

    def to_dict(self) -> dict[str, float]:
        """Return the fields as JSON can say them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the calibration that `to_dict` was called on.

        Raises:
            ValueError: If a field is missing, unknown or wrong; the message names it.
        """
        names = {field.name for field in fields(cls)}
        if wrong := sorted(names ^ set(values)):
            raise ValueError(f"calibration: fields missing or unknown: {', '.join(wrong)}")
        for name in sorted(names):
            value = values[name]
            if type(value) is not float or not abs(value) <= FARTHEST:
                raise ValueError(f"{name} is {value!r}: a float within ±{FARTHEST:g} is allowed")
        calibration = cls(**values)
        if calibration.below > 0 or calibration.above < 0 or calibration.least > calibration.most:
            raise ValueError("calibration: below <= 0 <= above and least <= most are allowed")
        return calibration


def calibrate(raw: Floats, log_costs: Floats, *, shifted: bool = True) -> Calibration:
    """Return the calibration that these answers on held-out applications call for.

    The shift makes the mean relative error least: that of s·p against t is Σ (p/t)·|s − t/p|, so
    the best factor s is the median of t/p weighted by p/t. It lies below the plain median, since an
    estimate can be too large by any factor and too small by 100 % at most.

    Args:
        raw: ln(cost) as predicted for each.
        log_costs: ln(cost) as it was.
        shifted: Whether to shift at all.
    """
    trust = len(raw) / (len(raw) + _SHIFT_WEIGHT) if shifted else 0.0
    shift = trust * best_shift(log_costs - raw)
    below, above = _spread(np.sort(log_costs - raw) - shift)
    reach = math.log(REACH)
    return Calibration(
        shift, below, above, float(log_costs.min()) - reach, float(log_costs.max()) + reach
    )


def best_shift(errors: Floats) -> float:
    """Return the median of ln(t/p) weighted by p/t."""
    ordered = np.sort(errors)
    weights = np.cumsum(np.exp(ordered[0] - ordered))
    return float(ordered[np.searchsorted(weights, weights[-1] / 2)])


def _spread(errors: Floats) -> tuple[float, float]:
    """Return where p10 and p90 lie, of sorted errors."""
    count = len(errors)
    if count >= _ENOUGH:
        rank = min(math.ceil(0.9 * (count + 1)), count)
        below, above = float(errors[count - rank]), float(errors[rank - 1])
    else:
        reach = reach_of_p90(float(np.sum((errors - errors.mean()) ** 2)), count)
        below, above = float(errors.mean()) - reach, float(errors.mean()) + reach
    return min(below, 0.0), max(above, 0.0)
