"""What scripts/bench_predictor measures of the models of application cost."""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from justitia_ray.predictor.cost_model import CostModel
from justitia_ray.predictor.evaluation import coverage, prediction_times, relative_errors
from justitia_ray.predictor.input_features import features_of
from justitia_ray.predictor.online import LearningPredictor, LearningSettings, train_due
from justitia_ray.predictor.sample import Sample
from justitia_ray.predictor.training import train
from justitia_ray.units import Seconds

SEVEN = ("ALFWI", "CC", "DM", "EV", "FV", "KBQAV", "PE")
"""Classes whose recorded runs join to inputs; the target is a mean over them."""
APART = "CG"
"""Has a heavy tail: retries that nobody can foresee."""
KINDS = ("auto", "mlp", "ridge", "forest", "median", "paper")
S3 = "s3"
BATCH = 16
CURVE = (5, 10, 20, 50, 100)
"""Training samples of the learning curve."""
WINDOW = 20
"""Applications over which the drift run's errors are taken."""
_TRAINING = 100
_SMALL_SHARE = 0.8
_PHASE = 100
"""Applications before the switch of the drift run, and after it."""

Data = Mapping[str, Sequence[Sample]]
"""Samples by class."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One model tested on what it was not trained on."""

    application_class: str
    kind: str
    number: int
    """Of the random training set."""
    trained_on: int
    chosen: str
    """What `auto` took; else the kind."""
    mean_error: float
    median_error: float
    covered: float
    """Share of the tests between p10 and p90."""
    train_cpu_s: Seconds
    """Of this process: what else runs on the machine does not count."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds a prediction of one kind, from the text, over all classes."""

    kind: str
    p50_ms: float
    p99_ms: float
    slowest_class: str
    slowest_p50_ms: float
    batched_ms: float
    """A prediction of a batch of BATCH, median."""


@dataclass(frozen=True, slots=True)
class Drift:
    """One class whose applications become another's half-way."""

    before: float
    """Mean relative error of the last WINDOW applications before the switch."""
    at: float
    """Of the first after it."""
    after: float
    """Of the last."""
    frozen: float
    """Of the last, if nothing had been learned since the switch."""
    trainings: int
    noticed_after: int | None
    """Applications from the switch to the alarm; None: there was none."""


def training_set(
    samples: Sequence[Sample], application_class: str, number: int, size: int | None = None
) -> tuple[list[Sample], list[Sample]]:
    """Return a random training set and the rest.

    100 samples, or 80 % of a class that has fewer than 125; the first `size` of them if given.
    """
    order = list(samples)
    random.Random(f"{number}/{application_class}").shuffle(order)
    count = min(_TRAINING, int(_SMALL_SHARE * len(order)))
    return order[: min(size or count, count)], order[count:]


def measure_errors(
    data: Data, kinds: Sequence[str], sets: int, seed: int, say: Callable[[str], None]
) -> tuple[list[Trial], dict[tuple[str, str], CostModel]]:
    """Return a trial of each class, kind and training set, and the models of the last set."""
    trials, models = [], {}
    for name, samples in data.items():
        for number in range(seed, seed + sets):
            for kind in kinds:
                training, test = training_set(samples, name, number)
                trial, models[name, kind] = _trial(name, kind, number, training, test)
                trials.append(trial)
        say(f"errors: {name}")
    return trials, models


def measure_s3(data: Data, sets: int, seed: int, say: Callable[[str], None]) -> list[Trial]:
    """Return the trials of S3, tiny with random weights, trained on all classes at once."""
    from justitia_ray.predictor.distilbert import train_s3
    from justitia_ray.predictor.s3_config import TINY

    trials = []
    for number in range(seed, seed + sets):
        parts = {name: training_set(data[name], name, number) for name in data}
        started = time.process_time()
        model = train_s3(
            {name: training for name, (training, _) in parts.items()}, config=TINY, seed=number
        )
        train_cpu_s = time.process_time() - started
        for name, (training, test) in parts.items():
            predictions = model.predict(name, [sample.input_text or "" for sample in test])
            true = [sample.kv_token_time for sample in test]
            errors = relative_errors([p.kv_token_time for p in predictions], true)
            trials.append(
                Trial(
                    name,
                    S3,
                    number,
                    len(training),
                    S3,
                    statistics.fmean(errors),
                    statistics.median(errors),
                    coverage(predictions, true),
                    train_cpu_s,
                )
            )
        say(f"errors: S3, set {number}")
    return trials


def measure_curve(
    data: Data, sets: int, seed: int, say: Callable[[str], None]
) -> dict[int, list[Trial]]:
    """Return trials of `auto` by the number of training samples."""
    curve: dict[int, list[Trial]] = {size: [] for size in CURVE}
    for name, samples in data.items():
        for number in range(seed, seed + sets):
            for size, trials in curve.items():
                training, test = training_set(samples, name, number, size)
                trials.append(_trial(name, "auto", number, training, test)[0])
        say(f"learning curve: {name}")
    return curve


def measure_latency(data: Data, models: Mapping[tuple[str, str], CostModel], kind: str) -> Latency:
    """Return how long a prediction takes, features included."""
    by_class = {}
    batched: list[Seconds] = []
    for name, samples in data.items():
        texts = [sample.input_text or "" for sample in samples]
        by_class[name] = prediction_times(models[name, kind], texts)
        for start in range(0, len(texts) - BATCH + 1, BATCH):
            started = time.perf_counter()
            models[name, kind].predict([features_of(t) for t in texts[start : start + BATCH]])
            batched.append((time.perf_counter() - started) / BATCH)
    medians = {name: statistics.median(times) for name, times in by_class.items()}
    slowest = max(medians, key=lambda name: medians[name])
    times = sorted(time_s for of_class in by_class.values() for time_s in of_class)
    return Latency(
        kind=kind,
        p50_ms=1000 * statistics.median(times),
        p99_ms=1000 * times[int(0.99 * len(times))],
        slowest_class=slowest,
        slowest_p50_ms=1000 * medians[slowest],
        batched_ms=1000 * statistics.median(batched),
    )


def measure_drift(first: Sequence[Sample], then: Sequence[Sample], kind: str, seed: int) -> Drift:
    """Return what a switch of the inputs and their costs does to the predictor that learns.

    Args:
        first: Applications of the class until half-way.
        then: Applications of the class from then on.
        kind: Of models.
        seed: Of the order and the trainings.
    """
    rng = random.Random(f"{seed}/drift")
    stream = [
        replace(sample, input_text=None)
        for phase in (first, then)
        for sample in rng.sample(phase, min(_PHASE, len(phase)))
    ]
    switch = min(_PHASE, len(first))
    name = "drifting"
    predictor = LearningPredictor(LearningSettings(kind=kind, seed=seed))
    errors, frozen_errors, trainings = [], [], 0
    noticed_after = None
    frozen: CostModel | None = None
    for number, sample in enumerate(stream):
        if number == switch:
            changes = predictor.changes(name)
            frozen = train(stream[:switch], kind=kind, seed=seed)
        estimate = predictor.estimate(name, 0, None, sample.features)
        true = [sample.kv_token_time]
        errors += relative_errors([estimate.kv_token_time], true)
        if frozen is not None and sample.features is not None:
            answer = frozen.predict([sample.features])[0]
            frozen_errors += relative_errors([answer.kv_token_time], true)
        predictor.observe(name, sample)
        if number >= switch and noticed_after is None and predictor.changes(name) > changes:
            noticed_after = number - switch + 1
        trainings += len(train_due(predictor, now=float(number)))
    return Drift(
        before=statistics.fmean(errors[switch - WINDOW : switch]),
        at=statistics.fmean(errors[switch : switch + WINDOW]),
        after=statistics.fmean(errors[-WINDOW:]),
        frozen=statistics.fmean(frozen_errors[-WINDOW:]),
        trainings=trainings,
        noticed_after=noticed_after,
    )


def _trial(
    name: str, kind: str, number: int, training: Sequence[Sample], test: Sequence[Sample]
) -> tuple[Trial, CostModel]:
    started = time.process_time()
    model = train(training, kind=kind, seed=number)
    train_cpu_s = time.process_time() - started
    predictions = model.predict([sample.features for sample in test if sample.features])
    true = [sample.kv_token_time for sample in test]
    errors = relative_errors([prediction.kv_token_time for prediction in predictions], true)
    trial = Trial(
        application_class=name,
        kind=kind,
        number=number,
        trained_on=model.samples,
        chosen=model.kind,
        mean_error=statistics.fmean(errors),
        median_error=statistics.median(errors),
        covered=coverage(predictions, true),
        train_cpu_s=train_cpu_s,
    )
    return trial, model
