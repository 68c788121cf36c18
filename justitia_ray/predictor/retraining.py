"""Training as data: what to train on, what to judge by, and whether the new model takes over."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from justitia_ray.predictor.cost_model import CostModel
from justitia_ray.predictor.least_samples import LEAST_HELD_BACK
from justitia_ray.predictor.sample import Sample
from justitia_ray.units import KvTokenTime

Reason: TypeAlias = Literal["first", "samples", "drift"]
"""Why a class is trained: enough samples for a first model, so many more, or its errors changed."""

HELD_BACK_SHARE = 5
"""The latest fifth judges the new model and the one in service; neither was trained on them."""
GROWTH = 0.25
"""A class is trained again when its samples grew by so much: that work stays in proportion."""
LEAST_NEW = 10

_AS_GOOD = 0.01
"""A first model may be so much worse than the class mean, in relative error: where all applications
cost the same, both are right but for the last digits."""


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """One model to train. The samples are those of `application_class` alone."""

    application_class: str
    samples: tuple[Sample, ...]
    """To train on, oldest first; each with features."""
    held_back: tuple[Sample, ...]
    """The latest, to judge by; later than all of `samples`."""
    reason: Reason
    seed: int
    kind: str = "auto"


@dataclass(frozen=True, slots=True)
class Judgement:
    """How a new model did on the samples held back, beside what it would replace."""

    error: float
    """Its mean relative error, |predicted − true| / true."""
    rival_error: float
    """That of the model in service, or of the class mean if none is."""
    took_over: bool
    log_errors: tuple[float, ...]
    """ln(true / predicted) of the new model on each sample held back."""


def split(samples: Sequence[Sample]) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
    """Return what to train on, and the latest fifth, at least LEAST_HELD_BACK, to judge by."""
    held = max(LEAST_HELD_BACK, len(samples) // HELD_BACK_SHARE)
    return tuple(samples[:-held]), tuple(samples[-held:])


def is_grown(new: int, before: int) -> bool:
    """Return whether `new` samples beside `before` older ones are worth another training."""
    return new >= max(LEAST_NEW, GROWTH * before)


def judge(job: TrainingJob, model: CostModel, rival: CostModel | None) -> Judgement:
    """Compare a new model with the one in service on the samples held back.

    Args:
        job: What the new model was trained by.
        model: The new model.
        rival: The one in service; None is the mean of the samples trained on.
    """
    predicted = predicted_costs(model, job.held_back)
    pairs = zip(predicted, job.held_back, strict=True)
    log_errors = tuple(math.log(sample.kv_token_time / cost) for cost, sample in pairs)
    error = mean_relative_error(predicted, job.held_back)
    if rival is None:
        mean = sum(sample.kv_token_time for sample in job.samples) / len(job.samples)
        of_mean = mean_relative_error([mean] * len(job.held_back), job.held_back)
        return Judgement(error, of_mean, error <= of_mean + _AS_GOOD, log_errors)
    of_rival = mean_relative_error(predicted_costs(rival, job.held_back), job.held_back)
    return Judgement(error, of_rival, error < of_rival, log_errors)


def predicted_costs(model: CostModel, samples: Sequence[Sample]) -> list[KvTokenTime]:
    """Return what a model says of samples, all of them with features."""
    inputs = [sample.features for sample in samples if sample.features is not None]
    return [prediction.kv_token_time for prediction in model.predict(inputs)]


def mean_relative_error(predicted: Sequence[KvTokenTime], samples: Sequence[Sample]) -> float:
    """Return the mean of |predicted − true| / true."""
    pairs = zip(predicted, samples, strict=True)
    return sum(abs(p - s.kv_token_time) / s.kv_token_time for p, s in pairs) / len(samples)


def train(job: TrainingJob) -> bytes:
    """Train the job's model here and now, and return its bytes; takes seconds.

    Raises:
        ConfigError: If what training needs is not installed.
    """
    from justitia_ray.predictor.model_file import model_to_bytes
    from justitia_ray.predictor.training import train as fit

    return model_to_bytes(fit(job.samples, kind=job.kind, seed=job.seed))
