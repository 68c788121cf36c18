"""Evaluation of a model on unseen applications: errors, spread, prediction times."""

import math
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from justitia_ray.predictor.input_features import features_of
from justitia_ray.predictor.observation import LEAST_TRAINED_ON, Sample
from justitia_ray.predictor.trained_model import CostPrediction, TrainedModel
from justitia_ray.predictor.training import load_packages, train
from justitia_ray.units import KvTokenTime, Seconds

TEST_SHARE = 0.2
"""Share of the recorded runs that are used for tests, unless separate test runs are given."""

FIELDS = (
    "n_train",
    "n_test",
    "mean_relative_error",
    "median_relative_error",
    "baseline_median_error",
    "predict_ms_p50",
    "train_s",
)

COVERED = 0.8
"""Wanted share of the true costs between the predicted p10 and p90."""
_SHARES = (0.1, 0.5, 0.9)
_NO_LOSS = 1e-12
"""Loss in ln(cost) that counts as zero."""
_Z975 = 1.959963984540054

_LATENCY_CALLS = 200
"""Minimum number of predictions whose times are measured."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Errors and times of a model that was trained on some samples and tested on others."""

    model: TrainedModel
    n_train: int
    n_test: int
    mean_relative_error: float
    """Mean of |predicted − true| / true."""
    median_relative_error: float
    """Median of |predicted − true| / true."""
    baseline_median_error: float
    """Mean relative error if every cost were predicted as the median cost of the training samples.
    """
    covered: float
    """Share of the tests whose true cost is between the predicted p10 and p90."""
    pinball_loss: float
    """Mean pinball loss of p10, the cost and p90, in ln(cost)."""
    baseline_pinball_loss: float
    """Mean pinball loss if every prediction were the quantiles of the training samples' costs."""
    predict_ms_p50: float
    """Median time of a prediction from a text, in milliseconds."""
    train_s: Seconds
    """Training time in seconds, including cross-validation, without the first import of packages.
    """

    def metrics(self) -> dict[str, float | int]:
        """Return the metrics of the evaluation by name."""
        return {name: getattr(self, name) for name in FIELDS}


def evaluate(
    training: Sequence[Sample], test: Sequence[Sample], *, kind: str = "mlp", seed: int = 0
) -> Evaluation:
    """Train a model on some samples, and measure its errors and times on others.

    Args:
        training: Samples with features, at least LEAST_TRAINED_ON.
        test: Samples with features and texts, at least one.
        kind: Kind of model, as `train` takes it.
        seed: Seed of the training.

    Raises:
        ConfigError: If there is no such kind, or a package of training is not installed.
        ValueError: If samples are too few.
    """
    load_packages()
    started = time.perf_counter()
    model = train(training, kind=kind, seed=seed)
    train_s = time.perf_counter() - started
    texts = [sample.input_text for sample in test if sample.input_text is not None]
    predictions = model.predict([features_of(text) for text in texts])
    true = [sample.kv_token_time for sample in test]
    errors = relative_errors([answer.kv_token_time for answer in predictions], true)
    known = [sample.kv_token_time for sample in training]
    median = statistics.median(known)
    return Evaluation(
        model=model,
        n_train=model.samples,
        n_test=len(test),
        mean_relative_error=statistics.fmean(errors),
        median_relative_error=statistics.median(errors),
        baseline_median_error=statistics.fmean(relative_errors([median] * len(true), true)),
        covered=coverage(predictions, true),
        pinball_loss=pinball_loss(predictions, true),
        baseline_pinball_loss=pinball_loss([class_quantiles(known)] * len(true), true),
        predict_ms_p50=1000 * statistics.median(prediction_times(model, texts)),
        train_s=train_s,
    )


def relative_errors(predicted: Sequence[KvTokenTime], true: Sequence[KvTokenTime]) -> list[float]:
    """Return |predicted − true| / true of each pair."""
    return [abs(p - t) / t for p, t in zip(predicted, true, strict=True)]


def coverage(predictions: Sequence[CostPrediction], true: Sequence[KvTokenTime]) -> float:
    """Return the share of true costs between the predicted p10 and p90."""
    inside = [p.p10 <= t <= p.p90 for p, t in zip(predictions, true, strict=True)]
    return statistics.fmean(inside)


def pinball_loss(predictions: Sequence[CostPrediction], true: Sequence[KvTokenTime]) -> float:
    """Return the mean pinball loss of p10, the cost as the median, and p90, in ln(cost).

    Quantile q of a cost y loses q·(y − a) above its answer a and (1 − q)·(a − y) below it (Koenker
    and Bassett, Econometrica 46, 1978), which is least for the true quantile: intervals that hold
    80 % because some are huge and others empty lose more than calibrated ones. In ln(cost), so that
    a class with a heavy tail is not judged by its most expensive application alone.
    """
    losses = []
    for predicted, cost in zip(predictions, true, strict=True):
        answers = (predicted.p10, predicted.kv_token_time, predicted.p90)
        for share, answer in zip(_SHARES, answers, strict=True):
            above = math.log(cost / answer)
            losses.append(max(share * above, (share - 1) * above))
    return statistics.fmean(losses)


def pinball_ratio(loss: float, baseline: float) -> float:
    """Return a pinball loss over the loss of constant predictions; 1 if both are zero."""
    if baseline <= _NO_LOSS:
        return 1.0 if loss <= _NO_LOSS else math.inf
    return loss / baseline


def class_quantiles(costs: Sequence[KvTokenTime]) -> CostPrediction:
    """Return p10, median and p90 of costs, interpolated in ln(cost).

    A useful model of the input must lose less than this constant prediction.
    """
    p10, median, p90 = np.exp(np.quantile(np.log(costs), _SHARES)).tolist()
    return CostPrediction(median, p10, p90)


def binomial_reach(count: int) -> float:
    """Return the range in which p10 to p90 of a correct predictor covers 95 % of test sets.

    The range is 1.96 standard deviations of the binomial distribution. With quantiles that were
    learned from a sample, the share is outside this range somewhat more often than one time in
    twenty.
    """
    return _Z975 * math.sqrt(COVERED * (1 - COVERED) / count)


def prediction_times(model: TrainedModel, texts: Sequence[str]) -> list[Seconds]:
    """Return the seconds of single predictions; each text is used at least once."""
    times = []
    for _ in range(max(1, -(-_LATENCY_CALLS // len(texts)))):
        for text in texts:
            started = time.perf_counter()
            model.predict([features_of(text)])
            times.append(time.perf_counter() - started)
    return times


def split(samples: Sequence[Sample], seed: int) -> tuple[list[Sample], list[Sample]]:
    """Split samples at random, by the seed, into training samples and test samples.

    Raises:
        ValueError: If too few samples are left to train on, or none to test on.
    """
    tests = round(TEST_SHARE * len(samples))
    if len(samples) - tests < LEAST_TRAINED_ON or tests < 1:
        raise ValueError(f"{len(samples)} samples are too few to train on some and test on others")
    order = list(samples)
    random.Random(f"{seed}/split").shuffle(order)
    return order[tests:], order[:tests]


def metrics_of(evaluations: Mapping[str, Evaluation]) -> dict[str, dict[str, Any]]:
    """Return the content of `metrics.json`: metrics of each class, and their means."""
    by_class: dict[str, dict[str, Any]] = {
        name: evaluation.metrics() for name, evaluation in evaluations.items()
    }
    means = {name: statistics.fmean(of[name] for of in by_class.values()) for name in FIELDS}
    return {**by_class, "mean": means}
