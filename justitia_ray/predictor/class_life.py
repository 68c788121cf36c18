"""What a predictor has of one class beside its mean: history, model, versions, signs of change."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from justitia_ray.predictor.cost_model import CostModel
from justitia_ray.predictor.drift import ChangeTest
from justitia_ray.predictor.history import ClassHistory
from justitia_ray.predictor.neighbours import InputForm
from justitia_ray.predictor.retraining import (
    Judgement,
    Reason,
    TrainingJob,
    is_grown,
    judge,
    mean_relative_error,
    predicted_costs,
    split,
)
from justitia_ray.predictor.sample import Sample
from justitia_ray.predictor.versions import NO_MODEL, VersionIndex
from justitia_ray.units import KvTokenTime, Seconds

RETRY_S: Seconds = 60.0
"""A training that crashed or hung is tried again after so long, doubled with each failure."""
_MOST_DOUBLINGS = 6


class ClassLife:
    """The life of one class's model: samples come in, trainings fall due, models take over."""

    def __init__(self, bound: int, minimum_samples: int) -> None:
        """Start with nothing known.

        Args:
            bound: Samples kept.
            minimum_samples: Samples with features from which on a model is trained.
        """
        self.form = InputForm()
        self.index = VersionIndex()
        self.model: CostModel | None = None
        """The one that serves; of version `serving`."""
        self.serving = NO_MODEL
        self.changes = 0
        """How often the errors have changed."""
        self._history = ClassHistory(bound)
        self._minimum = minimum_samples
        self._test = ChangeTest()
        self._tested = NO_MODEL
        """The version whose errors the test has seen."""
        self._new = 0
        """Samples with features since the last training began."""
        self._before: int | None = None
        """Samples that the last training had; None before the first, and after a change."""
        self._undone: tuple[int, int | None] | None = None
        """The two above as they were before the training that runs; None if none does."""
        self._failures = 0
        self._not_before: Seconds = -math.inf

    # --- what comes in

    def observe(self, sample: Sample, predicted: KvTokenTime | None) -> tuple[Sample, ...] | None:
        """Take in an application that finished.

        Args:
            sample: What it was.
            predicted: What would have been predicted for it, if anything of its class was known.

        Returns:
            The samples since the change, if its error makes it plain that there was one.
        """
        self._history.add(sample)
        if sample.features is not None:
            self.form.add(sample.features)
            self._new += 1
        if predicted is None or predicted <= 0:
            return None
        since = self._test.add(math.log(sample.kv_token_time / predicted))
        if since is None:
            return None
        self.changes += 1
        self._history.note_change(since)
        self._before = None
        changed = self._history.latest(since)
        if self.model is not None and not self.index.pinned:
            self._withdraw_if_worse(self.model, changed)
        return changed

    def _withdraw_if_worse(self, model: CostModel, changed: Sequence[Sample]) -> None:
        """Let the mean of the class serve, if it is now better than a model of what was before.

        A new model takes as many samples as a first one did; the mean has a say from two on.
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

    # --- training

    def due(self, application_class: str, seed: int, kind: str, now: Seconds) -> TrainingJob | None:
        """Return the training that is due, and count it as begun; None if none is."""
        reason = self._reason(now)
        if reason is None:
            return None
        samples = self._history.usable()
        self._undone = (self._new, self._before)
        self._new, self._before = 0, len(samples)
        train, held_back = split(samples)
        return TrainingJob(application_class, train, held_back, reason, seed, kind)

    def judged(self, job: TrainingJob, model: CostModel) -> Judgement:
        """End a training: say whether its model is to take over."""
        self._undone = None
        self._failures = 0
        judgement = judge(job, model, self.model)
        if self.index.pinned:
            return replace(judgement, took_over=False)
        return judgement

    def failed(self, now: Seconds) -> Seconds:
        """End a training without a model; return after how long it is tried again."""
        self._new, self._before = self._counts()
        self._undone = None
        wait_s: Seconds = RETRY_S * float(2 ** min(self._failures, _MOST_DOUBLINGS))
        self._failures += 1
        self._not_before = now + wait_s
        return wait_s

    def serve(self, index: VersionIndex, model: CostModel | None, number: int) -> None:
        """Let a model answer from now on; the errors of another one are judged anew."""
        if number != self._tested:
            self._test.reset()
            self._tested = number
        self.index, self.model, self.serving = index, model, number

    def take_over(
        self, index: VersionIndex, model: CostModel, number: int, log_errors: Iterable[float]
    ) -> None:
        """Let a new model answer, whose errors on the latest samples are known."""
        self.serve(index, model, number)
        for error in log_errors:
            self._test.add(error)

    # --- what outlives the process

    def to_dict(self) -> dict[str, Any]:
        """Return what is known beside samples and models, as JSON can say it."""
        new, before = self._counts()
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
        """Know what `to_dict` returned, and these samples, oldest first.

        Raises:
            ValueError: If a field is missing, unknown or wrong; nothing was changed. The message
                names it.
        """
        if not isinstance(values, dict):
            raise ValueError("must be an object")
        if wrong := sorted(self.to_dict().keys() ^ set(values)):
            raise ValueError(f"fields missing or unknown: {', '.join(wrong)}")
        for name in (
            "tested_version",
            "changes",
            "valid_samples",
            "new_samples",
            "trained_samples",
        ):
            value = values[name]
            is_none = name == "trained_samples" and value is None
            if not is_none and (type(value) is not int or value < 0):
                raise ValueError(f"{name} is {value!r}: an integer >= 0 is allowed")
        for name in ("form", "change_test"):
            if not isinstance(values[name], dict):
                raise ValueError(f"{name} must be an object")
        form = InputForm.from_dict(values["form"])
        test = ChangeTest.from_dict(values["change_test"])
        self.form, self._test, self.changes = form, test, values["changes"]
        self._tested = values["tested_version"]
        self._new, self._before = values["new_samples"], values["trained_samples"]
        self._history.restore(samples, values["valid_samples"])

    def _reason(self, now: Seconds) -> Reason | None:
        if self._undone is not None or self.index.pinned or now < self._not_before:
            return None
        if self._before is not None:
            return "samples" if is_grown(self._new, self._before) else None
        if self._history.usable_count < self._minimum:
            return None
        return "drift" if self.changes else "first"

    def _counts(self) -> tuple[int, int | None]:
        """Return new samples and those of the last training, as if none were running."""
        if self._undone is None:
            return self._new, self._before
        new, before = self._undone
        # A change that was seen meanwhile stays seen.
        return self._new + new, None if self._before is None else before
