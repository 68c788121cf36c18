"""Costs predicted out of fold: each half of the runs by models that were trained on the other half.

The applications of the nine-class suite are the recorded runs, so a model trained on all of them
would have seen the run that it predicts. Runs with the same text are in the same half. The class
MRS has no texts. The class SC has no recorded runs: its models learn from runs that are drawn as
the suite draws them, with other seeds.
"""

import random
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TypeAlias

from justitia_ray.lab.s3.config import TINY, S3Config
from justitia_ray.predictor.class_mean import ClassMeanPredictor
from justitia_ray.predictor.evaluation import class_quantiles
from justitia_ray.predictor.input_features import features_of
from justitia_ray.predictor.observation import Sample
from justitia_ray.predictor.trained_model import CostPrediction
from justitia_ray.predictor.training import train
from justitia_ray.sim.suites.application_runs import (
    DEFAULT_SAMPLES,
    deal_runs,
    load_questions,
)
from justitia_ray.sim.suites.recorded import load_runs
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference

CLASSES = ("ALFWI", "CC", "DM", "EV", "FV", "KBQAV", "MRS", "PE", "SC")
"""The nine application classes of the Justitia paper."""
HALVES = 2
MOST_SAMPLES = 100
"""Maximum number of training samples of a class, as in the paper (v1, Sec. IV-B)."""
S3 = "s3"
"""Name of the recipe that trains one language model for all classes."""
CLASS_MEAN = "class mean"
"""Name of the recipe that predicts the mean cost of the class."""
CLASS_MEDIAN = "class median"
"""Name of the recipe that predicts the median cost of the class."""
_HISTORY_SEED = -1
"""Seed of generated training runs of class SC; reports use other seeds."""
_TIMED = 50

Key: TypeAlias = tuple[str, str, int]
"""Identity of an application in a table of predictions: class, text, and half of the data."""


@dataclass(frozen=True, slots=True)
class OutOfFold:
    """Predicted costs, by models that were trained on other applications, and their errors."""

    predictions: Mapping[Key, CostPrediction]
    errors: Mapping[str, Sequence[float]]
    """|predicted − true| / true of each run, by class."""
    predict_ms: float
    """Median milliseconds of a single prediction, including features."""
    train_s: float
    """Mean seconds of training the models of all classes on one half of the runs."""

    def prediction(self, application: WorkloadApplication) -> CostPrediction:
        """Return the predicted cost of an application.

        Raises:
            KeyError: If the application's text is not in the data directory.
        """
        return self.predictions[
            _prediction_key(
                application.application_class, application.input, application.inferences
            )
        ]


@lru_cache
def predict_out_of_fold(recipe: str, data_dir: Path, s3: S3Config = TINY) -> OutOfFold:
    """Train models on each half of the recorded runs, and predict the costs of the other half.

    Args:
        recipe: A kind of `train`, `s3`, `class mean` or `class median`.
        data_dir: Directory that holds `recorded/` and `apps/`.
        s3: Sizes and training settings of `s3`; its weights are random.

    Raises:
        ConfigError: If the data directory lacks files or is wrong, or a package is not installed.
    """
    past = {name: _past_runs(data_dir, name) for name in CLASSES}
    found: dict[Key, CostPrediction] = {}
    errors: dict[str, list[float]] = {name: [] for name in CLASSES}
    train_s, predict_s = [], list[float]()
    for half in range(HALVES):
        started = time.perf_counter()
        predict = _train_model(recipe, _training_samples(past, half), s3)
        train_s.append(time.perf_counter() - started)
        for name, runs in past.items():
            asked = [run for run in runs if run.key[2] == half]
            predictions = predict(name, [run.key[1] for run in asked])
            for run, prediction in zip(asked, predictions, strict=True):
                found[run.key] = prediction
                error = abs(prediction.kv_token_time - run.sample.kv_token_time)
                errors[name].append(error / run.sample.kv_token_time)
        predict_s += _prediction_times(predict, past)
    return OutOfFold(found, errors, 1000 * median(predict_s), sum(train_s) / HALVES)


_Predict: TypeAlias = Callable[[str, Sequence[str]], list[CostPrediction]]
"""Function that predicts the costs of input texts of one class."""


@dataclass(frozen=True, slots=True)
class _PastRun:
    key: Key
    sample: Sample


def _past_runs(data_dir: Path, application_class: str) -> list[_PastRun]:
    """Return each recorded run of a class once."""
    if application_class == "SC":
        count = len(load_questions(data_dir))
    else:
        count = len(load_runs(data_dir, application_class))
    past = []
    runs = deal_runs(application_class, _HISTORY_SEED, data_dir, DEFAULT_SAMPLES)
    for run in islice(runs, count):
        calls = ((i.prompt_tokens, i.output_tokens) for i in run.inferences)
        key = _prediction_key(application_class, run.text, run.inferences)
        past.append(_PastRun(key, Sample.of_calls(calls, run.text)))
    return past


def _prediction_key(
    application_class: str, text: str, inferences: Iterable[WorkloadInference]
) -> Key:
    """Return the key of an application in a table of predictions.

    Its text, or its lengths if it has none, determines the half.
    """
    lengths = [(i.prompt_tokens, i.output_tokens) for i in inferences]
    return application_class, text, zlib.crc32((text or f"{lengths}").encode()) % HALVES


def _training_samples(past: Mapping[str, Sequence[_PastRun]], half: int) -> dict[str, list[Sample]]:
    """Return at most 100 training samples of each class, from half of the recorded runs."""
    samples = {}
    for name, runs in past.items():
        others = [run.sample for run in runs if run.key[2] != half]
        random.Random(f"{half}/{name}").shuffle(others)
        samples[name] = others[:MOST_SAMPLES]
    return samples


def _train_model(recipe: str, samples: Mapping[str, Sequence[Sample]], s3: S3Config) -> _Predict:
    if recipe == S3:
        from justitia_ray.lab.s3.model import train_s3

        return train_s3(samples, config=s3).predict
    if recipe == CLASS_MEAN:
        return _mean_predictor(samples)
    if recipe == CLASS_MEDIAN:
        return lambda name, texts: (
            [class_quantiles([sample.kv_token_time for sample in samples[name]])] * len(texts)
        )
    models = {name: train(runs, kind=recipe) for name, runs in samples.items()}
    return lambda name, texts: models[name].predict([features_of(text) for text in texts])


def _mean_predictor(samples: Mapping[str, Sequence[Sample]]) -> _Predict:
    means = ClassMeanPredictor()
    for name, runs in samples.items():
        for run in runs:
            means.observe_cost(name, run)

    def predict(application_class: str, texts: Sequence[str]) -> list[CostPrediction]:
        known = means.estimate(application_class, 0, None)
        return [CostPrediction(known.kv_token_time, known.p10, known.p90)] * len(texts)

    return predict


def _prediction_times(predict: _Predict, past: Mapping[str, Sequence[_PastRun]]) -> list[float]:
    """Return the seconds of single predictions, for runs of all classes in turn."""
    timings = []
    for number in range(_TIMED):
        name = CLASSES[number % len(CLASSES)]
        text = past[name][number % len(past[name])].key[1]
        started = time.perf_counter()
        predict(name, [text])
        timings.append(time.perf_counter() - started)
    return timings
