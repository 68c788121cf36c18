"""Fields of `metrics.json`, and the split of training and test samples."""

import math
import random

import pytest

from justitia_ray.predictor.evaluation import (
    FIELDS,
    binomial_reach,
    class_quantiles,
    coverage,
    evaluate,
    metrics_of,
    pinball_loss,
    pinball_ratio,
    relative_errors,
    split,
)
from justitia_ray.predictor.trained_model import CostPrediction
from tests.unit.predictor.builders import made_up_samples, quick_networks

__all__ = ["quick_networks"]


def test_relative_error_is_a_share_of_the_true_cost() -> None:
    """An estimate of twice the cost errs by 100 %, of half the cost by 50 %."""
    assert [1.0, 0.5] == relative_errors([20.0, 5.0], [10.0, 10.0])


def test_coverage_counts_costs_from_p10_to_p90() -> None:
    predictions = [CostPrediction(2.0, 1.0, 3.0)] * 4

    assert 0.75 == coverage(predictions, [1.0, 3.0, 2.0, 3.5])


def test_pinball_loss_weighs_each_side_by_its_quantile() -> None:
    predicted = CostPrediction(math.e, 1.0, math.e**3)

    assert pytest.approx((0.1 * 2 + 0.5 * 1 + 0.1 * 1) / 3) == pinball_loss(
        [predicted], [math.e**2]
    )


def test_comparison_of_models_on_equal_costs_is_a_tie() -> None:
    """If the class's own quantiles lose nothing, no model can be compared with them."""
    same = [class_quantiles([7.0] * 9)] * 3
    assert 1.0 == pinball_ratio(0.0, pinball_loss(same, [7.0] * 3))
    assert (1.0, math.inf) == (pinball_ratio(0.0, 0.0), pinball_ratio(0.1, 0.0))
    assert 0.5 == pinball_ratio(0.2, 0.4)


def test_pinball_loss_penalises_unbounded_and_empty_intervals() -> None:
    """Unbounded intervals contain four of five costs, too, but carry no information."""
    rng = random.Random(1)
    costs = [math.exp(rng.gauss(5, 0.5)) for _ in range(500)]
    honest = [class_quantiles(costs)] * 500
    middle = honest[0].kv_token_time
    empty, huge = CostPrediction(middle, middle, middle), CostPrediction(middle, 1e-9, 1e12)
    mixed = [empty if i % 5 == 0 else huge for i in range(500)]

    assert pytest.approx(0.8, abs=0.01) == coverage(mixed, costs) == coverage(honest, costs)
    assert pinball_loss(honest, costs) < pinball_loss(mixed, costs) / 3


def test_chance_range_of_coverage_is_wider_for_fewer_tests() -> None:
    """Four times as many tests halve the range."""
    assert pytest.approx(0.157, abs=0.0005) == binomial_reach(25)
    assert pytest.approx(binomial_reach(25) / 2) == binomial_reach(100)


def test_seed_determines_the_split_of_samples() -> None:
    """One sample in five is a test sample, and no sample is in both parts."""
    samples = made_up_samples(25)
    training, test = split(samples, seed=1)

    assert (20, 5) == (len(training), len(test))
    assert {id(s) for s in samples} == {id(s) for s in (*training, *test)}
    assert (training, test) == split(samples, seed=1)
    assert test != split(samples, seed=2)[1]
    with pytest.raises(ValueError, match="5 samples are too few"):
        split(samples[:5], seed=1)


@pytest.mark.usefixtures("quick_networks")
def test_metrics_file_has_the_documented_fields() -> None:
    """Other tools read metrics.json."""
    samples = made_up_samples(40)
    few = evaluate(samples[:20], samples[20:])
    more = evaluate(samples[:30], samples[30:])
    metrics = metrics_of({"a": few, "b": more})

    assert ["a", "b", "mean"] == list(metrics)
    assert all(FIELDS == tuple(of) for of in metrics.values())
    assert (20, 20, 25.0) == (
        metrics["a"]["n_train"],
        metrics["a"]["n_test"],
        metrics["mean"]["n_train"],
    )
    assert (
        pytest.approx((few.mean_relative_error + more.mean_relative_error) / 2)
        == metrics["mean"]["mean_relative_error"]
    )
    assert few.mean_relative_error < few.baseline_median_error
    assert 0 < few.predict_ms_p50
