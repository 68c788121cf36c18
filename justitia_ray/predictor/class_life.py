"""State of one class's model: its samples, the test for a change of its errors, its trainings."""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from justitia_ray.core.records import RecordReader
from justitia_ray.predictor.class_statistics import InputForm
from justitia_ray.predictor.observation import Sample
from justitia_ray.predictor.stored import Count, Finite, NotNegative, Stored
from justitia_ray.predictor.trained_model import TrainedModel
from justitia_ray.predictor.training import (
    Judgement,
    Reason,
    TrainingJob,
    hold_back_latest,
    is_grown,
    judge,
    mean_relative_error,
    predicted_costs,
)
from justitia_ray.predictor.versions import NO_MODEL, VersionIndex
from justitia_ray.units import KvTokenTime, Seconds

KEPT_BEFORE_CHANGE = 3
"""Number of samples kept from before a detected change, as the change may be detected late."""


class ClassHistory:
    """Latest samples of an application class, in the order in which applications ended.

    Those before a change are unused.
    """

    def __init__(self, bound: int) -> None:
        self._samples: deque[Sample] = deque(maxlen=bound)
        self.valid = 0
        """Number of the latest samples that are used; older samples are from before a change."""
        self.usable_count = 0
        """Number of used samples with known inputs."""

    def add_sample(self, sample: Sample) -> None:
        if self.valid == self._samples.maxlen:
            self.valid -= 1
            self.usable_count -= self._samples[0].features is not None
        self._samples.append(sample)
        self.valid += 1
        self.usable_count += sample.features is not None

    def note_change(self, since: int) -> None:
        """Use only the latest `since` samples, and a few before them, from now on."""
        self._set_valid(min(self.valid, since + KEPT_BEFORE_CHANGE))

    def latest(self, count: int) -> tuple[Sample, ...]:
        """Return the latest `count` samples, or all if there are fewer."""
        return tuple(self._samples)[max(0, len(self._samples) - count) :]

    def usable(self) -> tuple[Sample, ...]:
        """Return the used samples with known inputs, oldest first."""
        latest = self.latest(self.valid)
        return tuple(sample for sample in latest if sample.features is not None)

    def restore(self, samples: Iterable[Sample], valid: int) -> None:
        """Replace the samples; the latest `valid` of them will be used."""
        self._samples = deque(samples, maxlen=self._samples.maxlen)
        self._set_valid(min(valid, len(self._samples)))

    def _set_valid(self, latest: int) -> None:
        self.valid = latest
        self.usable_count = len(self.usable())


_WARM_UP = 10
"""Number of prediction errors from which mean and spread are estimated before the change test
begins.
"""
_CLIP = 3.0
"""Largest prediction error that counts, in standard deviations. One extreme application must not
look like a change.
"""
_PRIOR_VARIANCE = 0.25
_PRIOR_WEIGHT = 5
"""Weight, in samples, of the prior that predictions err by 0.5 in ln(cost)."""

TOLERANCE = 0.5
THRESHOLD = 10.0
"""Tolerance and threshold of the change test, in standard deviations of the prediction errors.

In 200 runs of 2,000 errors each, without a change, 1 % of the runs raised a false alarm with normal
errors, 3 % with Laplace errors, 7 % with exponential errors, and 18 % if one application in seven
costs 20 times as much, as in the class CG. With a tolerance of 0.25 and a threshold of 10, 59 to
93 % of the runs did. A change by 2 standard deviations was detected after 8 samples in the median,
a change by 3 after 5.
"""


@dataclass(slots=True)
class ChangeTest(Stored):
    """Page-Hinkley test for a change of the mean prediction error in either direction.

    Two sums add the distances of values above and below the mean so far, each less a tolerance, and
    never fall below 0. A change is detected when a sum exceeds the threshold. It most likely began
    when that sum was last 0. Source: Page, Continuous inspection schemes, Biometrika 41 (1954);
    with the mean estimated as in Hinkley, Biometrika 58 (1971), and standardised by the spread so
    far.
    """

    values: Count = 0
    """Number of errors added since the last detected change."""
    mean: Finite = 0.0
    squares: NotNegative = 0.0
    """Sum of the squared deviations of errors from their mean."""
    above: NotNegative = 0.0
    below: NotNegative = 0.0
    above_since: Count = 0
    below_since: Count = 0

    def add_error(self, value: float) -> int | None:
        """Add a prediction error; return the number of errors since a detected change, or None.

        The count includes this error. After a change the test starts again.
        """
        if self.values >= _WARM_UP:
            squares = self.squares + _PRIOR_WEIGHT * _PRIOR_VARIANCE
            spread = math.sqrt(squares / (self.values - 1 + _PRIOR_WEIGHT))
            score = max(-_CLIP, min(_CLIP, (value - self.mean) / spread))
            self.above = max(0.0, self.above + score - TOLERANCE)
            self.below = max(0.0, self.below - score - TOLERANCE)
            self.above_since = self.above_since + 1 if self.above else 0
            self.below_since = self.below_since + 1 if self.below else 0
            if max(self.above, self.below) > THRESHOLD:
                since = self.above_since if self.above > self.below else self.below_since
                self.reset()
                return since
        self.values += 1
        deviation = value - self.mean
        self.mean += deviation / self.values
        self.squares += deviation * (value - self.mean)
        return None

    def reset(self) -> None:
        """Drop all prediction errors, because the model has changed."""
        ChangeTest.__init__(self)


RETRY_S: Seconds = 60.0
"""Seconds before a failed training is repeated, doubled with each failure."""
_MOST_DOUBLINGS = 6


class ClassLife:
    """State of an application class: samples, trainings and the model in use."""

    def __init__(self, bound: int, minimum_samples: int) -> None:
        self.form = InputForm()
        self.index = VersionIndex()
        self.model: TrainedModel | None = None
        """Trained model that predicts the class; None if the class mean does."""
        self.serving = NO_MODEL
        self.changes = 0
        """Number of changes detected in the prediction errors of the class."""
        self._history = ClassHistory(bound)
        self._minimum = minimum_samples
        self._test = ChangeTest()
        self._tested = NO_MODEL
        """Version of the model whose errors are being tested for changes."""
        self._new = 0
        """Number of samples with features added since the last training began."""
        self._before: int | None = None
        self._undone: tuple[int, int | None] | None = None
        """Sample counts from before the running training, restored if the training fails."""
        self._failures = 0
        self._not_before: Seconds = -math.inf

    def observe_sample(
        self, sample: Sample, predicted: KvTokenTime | None
    ) -> tuple[Sample, ...] | None:
        """Learn from a finished application, and detect a change of its class.

        Args:
            sample: Sample of the application.
            predicted: Cost that would have been predicted; None if no cost of the class was known.

        Returns:
            The samples since a change of the class, if the error reveals one; otherwise None.
        """
        self._history.add_sample(sample)
        if sample.features is not None:
            self.form.add_input(sample.features)
            self._new += 1
        if predicted is None or predicted <= 0:
            return None
        since = self._test.add_error(math.log(sample.kv_token_time / predicted))
        if since is None:
            return None
        self.changes += 1
        self._history.note_change(since)
        self._before = None
        changed = self._history.latest(since)
        if self.model is not None and not self.index.pinned:
            self._withdraw_if_worse(self.model, changed)
        return changed

    def _withdraw_if_worse(self, model: TrainedModel, changed: Sequence[Sample]) -> None:
        """Replace the model by the class mean if the mean predicts the changed samples better.

        A new model needs as many samples as the first model; the mean can be used with two samples.
        """
        known = [sample for sample in changed if sample.features is not None]
        if len(known) < 2:
            return
        total = sum(sample.kv_token_time for sample in known)
        means = [(total - sample.kv_token_time) / (len(known) - 1) for sample in known]
        if mean_relative_error(means, known) < mean_relative_error(
            predicted_costs(model, known), known
        ):
            self.serve(self.index.activated(NO_MODEL, pinned=False), None, NO_MODEL)

    def start_due_training(
        self, application_class: str, seed: int, kind: str, now: Seconds
    ) -> TrainingJob | None:
        """Start a training and return its job, if a training is due."""
        reason = self._training_reason(now)
        if reason is None:
            return None
        samples = self._history.usable()
        self._undone = (self._new, self._before)
        self._new, self._before = 0, len(samples)
        train, held_back = hold_back_latest(samples)
        return TrainingJob(application_class, train, held_back, reason, seed, kind)

    def end_training(self, job: TrainingJob, model: TrainedModel) -> Judgement:
        """Compare the newly trained model with the model in use."""
        self._undone = None
        self._failures = 0
        judgement = judge(job, model, self.model)
        if self.index.pinned:
            return replace(judgement, took_over=False)
        return judgement

    def note_failure(self, now: Seconds) -> Seconds:
        """Record a failed training; return the seconds before the next attempt."""
        self._new, self._before = self._sample_counts()
        self._undone = None
        wait_s: Seconds = RETRY_S * float(2 ** min(self._failures, _MOST_DOUBLINGS))
        self._failures += 1
        self._not_before = now + wait_s
        return wait_s

    def serve(self, index: VersionIndex, model: TrainedModel | None, number: int) -> None:
        """Set the model that predicts the class; a new version restarts the change test."""
        if number != self._tested:
            self._test.reset()
            self._tested = number
        self.index, self.model, self.serving = index, model, number

    def train_again(self) -> None:
        """Make a training due at once, because the active version cannot be read."""
        self._before = None

    def take_over(
        self, index: VersionIndex, model: TrainedModel, number: int, log_errors: Iterable[float]
    ) -> None:
        """Put a new model in use, and add its errors on the latest samples to the change test."""
        self.serve(index, model, number)
        for error in log_errors:
            self._test.add_error(error)

    def to_dict(self) -> dict[str, Any]:
        """Return the progress of the class, without samples and models, as JSON."""
        new, before = self._sample_counts()
        return {
            "form": self.form.to_dict(),
            "change_test": self._test.to_dict(),
            "tested_version": self._tested,
            "changes": self.changes,
            "valid_samples": self._history.valid,
            "new_samples": new,
            "trained_samples": before,
        }

    def restore(self, values: object, samples: Sequence[Sample]) -> None:
        """Restore the progress of the class from JSON, and its samples, oldest first.

        Raises:
            ValueError: If a field is missing, unknown or wrong, and nothing was changed; the
                message names it.
        """
        reader = RecordReader(values, self.to_dict())
        form = InputForm.from_dict(reader.value("form"), "form")
        test = ChangeTest.from_dict(reader.value("change_test"), "change_test")
        tested, changes = reader.integer("tested_version"), reader.integer("changes")
        new, before = reader.integer("new_samples"), reader.integer_or_none("trained_samples")
        self._history.restore(samples, reader.integer("valid_samples"))
        self.form, self._test, self._tested, self.changes = form, test, tested, changes
        self._new, self._before = new, before

    def _training_reason(self, now: Seconds) -> Reason | None:
        if self._undone is not None or self.index.pinned or now < self._not_before:
            return None
        if self._before is not None:
            return "samples" if is_grown(self._new, self._before) else None
        if self._history.usable_count < self._minimum:
            return None
        return "drift" if self.changes else "first"

    def _sample_counts(self) -> tuple[int, int | None]:
        if self._undone is None:
            return self._new, self._before
        new, before = self._undone
        # None: a change of the class was detected during the training.
        return self._new + new, None if self._before is None else before
