"""Training of a class's model: the job, the fit, the comparison, and the training process.

`python -m justitia_ray.predictor.training` reads one job from stdin and writes a model's bytes to
stdout. A separate process delays no prediction, and its failures (a crash, a hang, memory) do not
affect the predictor. JSON in, array bytes out: nothing is unpickled.
"""

import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import version
from typing import Literal, TypeAlias

import numpy as np

from justitia_ray.errors import ConfigError, JustitiaError
from justitia_ray.predictor.model_file import model_to_bytes
from justitia_ray.predictor.observation import LEAST_HELD_BACK, LEAST_TRAINED_ON, Sample
from justitia_ray.predictor.stored import Stored
from justitia_ray.predictor.trained_model import TrainedModel, calibrate
from justitia_ray.units import KvTokenTime

Reason: TypeAlias = Literal["first", "samples", "drift"]
"""Why a training is due: enough samples for a first model, many more samples, or a change of the
errors.
"""

HELD_BACK_SHARE = 5
"""Share of the samples, the latest, on which a new model is compared with the present model."""
GROWTH = 0.25
"""Factor by which samples must have grown before the next training, so that the work of trainings
stays proportional to the samples.
"""
LEAST_NEW = 10
_LARGEST_SEED = 2**32 - 1

_AS_GOOD = 0.01
"""Relative error by which a first model may be worse than the class mean. With equal costs the two
differ only by rounding.
"""


@dataclass(frozen=True, slots=True)
class TrainingJob(Stored):
    """A training to run, on samples of one application class."""

    application_class: str
    samples: tuple[Sample, ...]
    """Samples for training, oldest first, all with features."""
    held_back: tuple[Sample, ...]
    """Latest samples, all later than `samples`, on which the model is compared."""
    reason: Reason
    seed: int
    kind: str = "mlp"


@dataclass(frozen=True, slots=True)
class Judgement:
    """Comparison of a new model with the present model, by their errors on held-back samples."""

    error: float
    """Mean relative error of the new model, |predicted − true| / true."""
    rival_error: float
    """Mean relative error of the present model, or of the class mean without a model."""
    took_over: bool
    log_errors: tuple[float, ...]
    """ln(true / predicted) of the new model on each held-back sample."""


def hold_back_latest(samples: Sequence[Sample]) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
    """Return samples for training, and the latest fifth for the comparison.

    The comparison gets at least LEAST_HELD_BACK samples.
    """
    held = max(LEAST_HELD_BACK, len(samples) // HELD_BACK_SHARE)
    return tuple(samples[:-held]), tuple(samples[-held:])


def is_grown(new: int, before: int) -> bool:
    """Return whether `new` samples after `before` earlier ones are enough for another training."""
    return new >= max(LEAST_NEW, GROWTH * before)


def judge(job: TrainingJob, model: TrainedModel, rival: TrainedModel | None) -> Judgement:
    """Compare a new model with the present model on the held-back samples.

    Args:
        job: Job of the new model.
        model: The new model.
        rival: The serving model; None: compare with the mean of the training samples.
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


def predicted_costs(model: TrainedModel, samples: Sequence[Sample]) -> list[KvTokenTime]:
    inputs = [sample.features for sample in samples if sample.features is not None]
    return [prediction.kv_token_time for prediction in model.predict(inputs)]


def mean_relative_error(predicted: Sequence[KvTokenTime], samples: Sequence[Sample]) -> float:
    """Return the mean of |predicted − true| / true."""
    pairs = zip(predicted, samples, strict=True)
    return sum(abs(p - s.kv_token_time) / s.kv_token_time for p, s in pairs) / len(samples)


def train_job(job: TrainingJob) -> bytes:
    """Train a job's model in this process, which takes seconds; return its bytes.

    Raises:
        ConfigError: If a package that training needs is not installed.
    """
    return model_to_bytes(train(job.samples, kind=job.kind, seed=job.seed))


KINDS = ("mlp", "paper")
"""Kinds of models: small networks on words and measures of the input (`mlp`), and the paper's
recipe (`paper`).
"""
_REMOVED = ("auto", "ridge", "forest", "median")
"""Kinds of models of release 0.2.0, removed because they did not shorten completion times."""
_AS_PUBLISHED = ("paper",)
"""Kinds of models whose predictions are used as the network gives them."""


def check_seed(seed: int) -> None:
    """Check that every random number generator of a training accepts a seed.

    Raises:
        ConfigError: If the seed is out of range.
    """
    if not 0 <= seed <= _LARGEST_SEED:
        raise ConfigError(f"seed must be a whole number of 0 to {_LARGEST_SEED}, got {seed}")


def check_kind(kind: str) -> None:
    """Raise ConfigError if no such kind of models exists.

    Raises:
        ConfigError: If there is no such kind; for a removed kind the message names its replacement.
    """
    if kind in _REMOVED:
        raise ConfigError(f"kind {kind} was removed: write mlp, the default")
    if kind not in KINDS:
        raise ConfigError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")


def train(samples: Sequence[Sample], *, kind: str = "mlp", seed: int = 0) -> TrainedModel:
    """Train a model on finished applications of one class, which takes seconds of one core.

    Equal samples in the same order, kind and seed give the same model.

    Args:
        samples: Finished applications; those without features are left out.
        kind: One of KINDS.
        seed: Seed of all random choices.

    Raises:
        ConfigError: If there is no such kind, or scikit-learn or torch is not installed.
        ValueError: If fewer than LEAST_TRAINED_ON samples have features.
    """
    check_kind(kind)
    load_packages()
    from justitia_ray.predictor import fitting

    known = [(sample.features, sample.kv_token_time) for sample in samples if sample.features]
    if len(known) < LEAST_TRAINED_ON:
        raise ValueError(
            f"{len(known)} samples have features: training takes at least {LEAST_TRAINED_ON}"
        )
    inputs = [features for features, _ in known if features]
    log_costs = np.array([math.log(cost) for _, cost in known])

    recipe = fitting.RECIPES[kind]
    answers = fitting.held_out_answers(inputs, log_costs, recipe, seed)
    design = fitting.fit_design(inputs)
    return TrainedModel(
        kind=kind,
        samples=len(known),
        design=design,
        regressor=recipe(design.rows(inputs), log_costs, seed),
        calibration=calibrate(answers, log_costs, shifted=kind not in _AS_PUBLISHED),
        trained_with={name: version(name) for name in ("scikit-learn", "torch")},
    )


def load_packages() -> None:
    """Import the packages for training, which takes seconds the first time.

    Raises:
        ConfigError: If scikit-learn or torch is not installed.
    """
    try:
        import_module("justitia_ray.predictor.fitting")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("justitia_ray"):
            raise
        raise ConfigError(
            f"training needs the Python module {error.name}: pip install 'justitia-ray[learning]'"
        ) from error


COMMAND = (sys.executable, "-m", "justitia_ray.predictor.training")

_NICENESS = 19
"""Niceness of the training process, which must not slow down Ray's workers.

Ray's workers run at 15: beside a worker, niceness alone would leave the training a third of a core.
Hence it also has the scheduling policy `SCHED_IDLE`, with a twelfth of a worker's share.
"""


def job_to_bytes(job: TrainingJob) -> bytes:
    """Encode a training job as JSON for the training process."""
    samples = tuple(sample.without_text() for sample in job.samples)
    told = replace(job, samples=samples, held_back=())
    return json.dumps(told.to_dict(), separators=(",", ":")).encode()


def main() -> int:
    """Read a training job from stdin and write its model to stdout; return 1 after an error."""
    os.nice(_NICENESS)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    # The output of libraries must not mix with the model on stdout.
    answer, sys.stdout = sys.stdout.buffer, sys.stderr
    try:
        data = train_job(TrainingJob.from_dict(json.load(sys.stdin.buffer), "job"))
    except (JustitiaError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
        return 1
    answer.write(data)
    answer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
