"""From a model's raw outputs to costs and spreads: shift, quantiles, bounds."""

import math

import numpy as np
import pytest

from justitia_ray.predictor.trained_model import REACH, best_shift, calibrate


def test_best_shift_of_predictions_minimises_the_mean_relative_error() -> None:
    costs = np.array([1.0, 2.0, 10.0])

    def mean_error(guess: float) -> float:
        return float(np.mean(np.abs(guess - costs) / costs))

    best = math.exp(best_shift(np.log(costs)))

    assert pytest.approx(1.0) == best
    assert mean_error(best) == min(mean_error(guess) for guess in [1.0, *np.linspace(0.5, 12, 200)])


def test_few_known_errors_shift_predictions_only_partially() -> None:
    raw = np.zeros(20)
    costs = np.full(20, math.log(4.0))

    assert pytest.approx(math.log(4.0) / 2) == calibrate(raw, costs).shift
    assert calibrate(raw, costs, shifted=False).shift == 0.0


@pytest.mark.parametrize("count", [10, 40, 100])
def test_four_of_five_new_costs_lie_between_p10_and_p90(count: int) -> None:
    """The interval is meant to hold 80 % of the costs, for any number of samples."""
    rng = np.random.default_rng(3)
    shares = []
    for _ in range(200):
        calibration = calibrate(np.full(count, 12.0), rng.normal(12, 0.7, count))
        middle = 12.0 + calibration.shift
        new = rng.normal(12, 0.7, 50)
        inside = (middle + calibration.below <= new) & (new <= middle + calibration.above)
        shares.append(float(inside.mean()))

    assert pytest.approx(0.8, abs=0.05) == float(np.mean(shares))


def test_cost_estimates_stay_within_ten_times_the_training_costs() -> None:
    """The limit holds for inputs unlike any in the training."""
    calibration = calibrate(np.log([50.0] * 30), np.log(np.linspace(20, 100, 30)))
    low, high = calibration.predictions(np.array([-200.0, 200.0]))

    assert pytest.approx(20 / REACH) == low.kv_token_time == low.p10
    assert pytest.approx(100 * REACH) == high.kv_token_time == high.p90
    assert low.p10 <= low.kv_token_time <= low.p90
    assert high.p10 <= high.kv_token_time <= high.p90
