"""The figures of `metrics.json`, and that nothing is tested on what was trained on."""

import pytest

from justitia_ray.predictor.evaluation import (
    FIELDS,
    coverage,
    evaluate,
    metrics_of,
    relative_errors,
    split,
)
from justitia_ray.predictor.trained_model import CostPrediction
from tests.unit.predictor.builders import made_up_samples


def test_relative_error_is_of_the_true_cost() -> None:
    """Twice too large is 100 %, half as large 50 %."""
    assert [1.0, 0.5] == relative_errors([20.0, 5.0], [10.0, 10.0])


def test_coverage_counts_what_lies_between_p10_and_p90() -> None:
    """Both ends included."""
    predictions = [CostPrediction(2.0, 1.0, 3.0)] * 4

    assert 0.75 == coverage(predictions, [1.0, 3.0, 2.0, 3.5])


def test_split_is_drawn_by_the_seed() -> None:
    """One in five to test on, none in both parts, another draw for another seed."""
    samples = made_up_samples(25)
    training, test = split(samples, seed=1)

    assert (20, 5) == (len(training), len(test))
    assert {id(s) for s in samples} == {id(s) for s in (*training, *test)}
    assert (training, test) == split(samples, seed=1)
    assert test != split(samples, seed=2)[1]
    with pytest.raises(ValueError, match="5 samples are too few"):
        split(samples[:5], seed=1)


def test_metrics_are_those_of_the_contract() -> None:
    """Other tools read metrics.json; `mean` is over the classes, each counting once."""
    samples = made_up_samples(40)
    few = evaluate(samples[:20], samples[20:], kind="ridge")
    more = evaluate(samples[:30], samples[30:], kind="ridge")
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
