"""The predictor that learns while it serves: estimates, and each class's models and trainings.

An estimate uses the first available of: a model of the class, if the input is known; the mean of
the class; classes whose inputs have a similar form; one inference of the request's own size.

Pure and synchronous: no clock, no process, no store. The service and the simulator use the same
class; trainings are returned as jobs, which the caller runs.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from justitia_ray.core.stages import StageServed
from justitia_ray.errors import StoreError
from justitia_ray.predictor.class_life import ClassLife
from justitia_ray.predictor.class_mean import ClassMeanPredictor
from justitia_ray.predictor.class_statistics import cost_among_neighbours
from justitia_ray.predictor.estimate import Estimate
from justitia_ray.predictor.input_features import InputFeatures
from justitia_ray.predictor.model_file import model_from_bytes
from justitia_ray.predictor.observation import Sample
from justitia_ray.predictor.stages import StageTable
from justitia_ray.predictor.trained_model import TrainedModel
from justitia_ray.predictor.training import Judgement, TrainingJob, train_job
from justitia_ray.predictor.versions import VersionIndex
from justitia_ray.units import Seconds, Tokens


@dataclass(frozen=True, slots=True)
class EstimateRequest:
    """Request to estimate the cost of an application."""

    application_class: str
    input_tokens: Tokens
    max_tokens: Tokens | None
    """Maximum output of an inference in tokens; None without a limit."""
    features: InputFeatures | None = None
    """Features of the application's input; None if the input is unknown."""


@dataclass(frozen=True, slots=True)
class LearningSettings:
    """Settings of a learning predictor; the defaults are the service's."""

    prior_output_tokens: Tokens = 256
    max_classes: int = 256
    minimum_samples: int = 10
    """Finished applications with known inputs that a class needs for a model."""
    history_per_class: int = 500
    kind: str = "mlp"
    """Kind of models to train: `mlp` or `paper`."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class EndedTraining:
    """Result of a training, with the model versions before and after it."""

    judgement: Judgement
    before: VersionIndex
    """Versions of the class's model before the training."""
    index: VersionIndex
    """Versions of the class's model after the training."""
    model: TrainedModel | None
    """New model of the class if it is used from now on; otherwise None."""
    outcome: dict[str, Any]
    """Result of the training as JSON."""


class LearningPredictor:
    """Predicts the costs of applications and learns from finished ones."""

    def __init__(self, settings: LearningSettings | None = None) -> None:
        self.settings = settings or LearningSettings()
        self.means = ClassMeanPredictor(
            self.settings.prior_output_tokens, self.settings.max_classes
        )
        """Mean cost of each class."""
        self.stages = StageTable(self.settings.max_classes)
        """Statistics of the stages of each class."""
        self._lives: dict[str, ClassLife] = {}

    def estimate(
        self,
        application_class: str,
        input_tokens: Tokens,
        max_tokens: Tokens | None,
        features: InputFeatures | None = None,
    ) -> Estimate:
        """Return the predicted cost of one application."""
        request = EstimateRequest(application_class, input_tokens, max_tokens, features)
        return self.estimate_many([request])[0]

    def estimate_many(self, requests: Sequence[EstimateRequest]) -> list[Estimate]:
        """Estimate applications, all applications of a class in one batch.

        Raises:
            RequestError: If a class name is not valid or a count is below its minimum.
        """
        estimates = [
            self.means.estimate(request.application_class, request.input_tokens, request.max_tokens)
            for request in requests
        ]
        modelled: dict[str, tuple[TrainedModel, list[tuple[int, InputFeatures]]]] = {}
        for i, request in enumerate(requests):
            if request.features is None:
                continue
            name = self.means.entry_of(request.application_class)
            life = self._lives.get(name)
            if life is not None and life.model is not None:
                modelled.setdefault(name, (life.model, []))[1].append((i, request.features))
            elif estimates[i].source == "prior":
                estimates[i] = self._estimate_by_neighbours(request.features, estimates[i])
        for model, inputs in modelled.values():
            predictions = model.predict([features for _, features in inputs])
            for (i, _), predicted in zip(inputs, predictions, strict=True):
                estimates[i] = replace(estimates[i], **asdict(predicted), source="model")
        return estimates

    def _estimate_by_neighbours(self, features: InputFeatures, prior: Estimate) -> Estimate:
        known = (
            (life.form, mean)
            for name, life in sorted(self._lives.items())
            if (mean := self.means.log_mean(name)) is not None
        )
        cost = cost_among_neighbours(features, prior.kv_token_time, known)
        if cost is None:
            return prior
        # p10 and p90 keep their ratio to the estimated cost.
        spread = prior.p90 / prior.kv_token_time
        return Estimate(cost, cost / spread, cost * spread, prior.output_tokens, "neighbours")

    def observe_application(
        self, application_class: str, sample: Sample, stages: Sequence[StageServed] = ()
    ) -> str:
        """Learn from a finished application; return the class whose statistics count it.

        If the prediction error reveals that the class has changed, only samples since the change
        count, in the mean and in the next training; the mean replaces a model that is worse.

        Args:
            application_class: Class of the application.
            sample: Sample of the application: its input, and the service that it received.
            stages: Service of each of its stages; empty if unknown.

        Returns:
            The class whose entry counts the application: `other` beyond the bound.

        Raises:
            RequestError: If the class name is not valid.
        """
        name = self.means.entry_of(application_class)
        predicted = self.estimate(application_class, 0, None, sample.features)
        self.means.observe_cost(application_class, sample)
        self.stages.observe_stages(name, stages)
        is_known = predicted.source in ("model", "class")
        since = self._state_of_class(name).observe_sample(
            sample, predicted.kv_token_time if is_known else None
        )
        if since is not None:
            self.means.relearn(name, since)
        return name

    def due_training(self, now: Seconds) -> TrainingJob | None:
        """Start a training if one is due, and return its job.

        The caller ends it with `trained` or `training_failed`. Of several classes, the first by
        name is returned.

        Args:
            now: Monotonic time; a failed training is due again only after a wait.
        """
        for name in sorted(self._lives):
            settings = self.settings
            job = self._lives[name].start_due_training(name, settings.seed, settings.kind, now)
            if job is not None:
                return job
        return None

    def trained(self, job: TrainingJob, data: bytes, at: Seconds | None = None) -> Judgement:
        """End a training; its model is used if it beats the present model on the latest samples.

        Args:
            job: As `due_training` returned it.
            data: The model's bytes.
            at: Time of the training, for its record; seconds since 1970.

        Raises:
            StoreError: If the bytes are not a model; the training must still be ended.
        """
        ended = self.judge(job, data, at)
        self.take_over(job.application_class, ended)
        return ended.judgement

    def judge(self, job: TrainingJob, data: bytes, at: Seconds | None = None) -> EndedTraining:
        """End a training and decide whether its model is used from now on."""
        model = model_from_bytes(data, f"new model of class {job.application_class}")
        life = self._state_of_class(job.application_class)
        judgement = life.end_training(job, model)
        outcome = {
            "kind": model.kind,
            "samples": model.samples,
            "held_back": len(job.held_back),
            "error": judgement.error,
            "rival_error": judgement.rival_error,
            "reason": job.reason,
            "trained_at": at,
            "took_over": judgement.took_over,
        }
        before = life.index
        index = replace(before, last_training=outcome)
        if not judgement.took_over:
            return EndedTraining(judgement, before, index, None, outcome)
        return EndedTraining(judgement, before, index.published(data, outcome), model, outcome)

    def take_over(self, application_class: str, ended: EndedTraining) -> None:
        """Put the model of an ended training in use."""
        life = self._state_of_class(application_class)
        if ended.model is None:
            life.serve(ended.index, life.model, life.serving)
        else:
            life.take_over(ended.index, ended.model, ended.index.active, ended.judgement.log_errors)

    def training_failed(self, job: TrainingJob, now: Seconds) -> Seconds:
        """End a training that failed; return the seconds until it is due again."""
        return self._state_of_class(job.application_class).note_failure(now)

    def index(self, application_class: str) -> VersionIndex:
        """Return the versions of a class's model; an empty index if it has none."""
        life = self._lives.get(application_class)
        return VersionIndex() if life is None else life.index

    def serving(self, application_class: str) -> int:
        """Return the number of the model version that predicts a class; 0: the class mean does."""
        life = self._lives.get(application_class)
        return 0 if life is None else life.serving

    def changes(self, application_class: str) -> int:
        """Return the number of changes detected in the errors of a class."""
        life = self._lives.get(application_class)
        return 0 if life is None else life.changes

    def serve(
        self,
        application_class: str,
        index: VersionIndex,
        model: TrainedModel | None,
        number: int,
    ) -> None:
        """Set the model that predicts a class; (None, 0) for the class mean.

        The model is `index.active`, or an earlier version if that one cannot be read. Then the
        class is trained again as soon as it has enough samples.
        """
        life = self._state_of_class(self.means.entry_of(application_class))
        life.serve(index, model, number)
        if number != index.active:
            life.train_again()

    def overview(self) -> dict[str, dict[str, Any]]:
        """Return statistics, versions and serving version of each class as JSON."""
        statistics = self.means.all_statistics()
        modelled = {name for name, life in self._lives.items() if life.index.versions}
        found: dict[str, dict[str, Any]] = {}
        for name in sorted({*statistics, *modelled}):
            known = statistics.get(name)
            found[name] = {
                "samples": 0 if known is None else known["samples"],
                "kv_token_time_mean": None if known is None else known["kv_token_time_mean"],
                "changes": self.changes(name),
                "serving": self.serving(name),
                **self.index(name).describe(),
            }
        return found

    def progress(self, application_class: str) -> dict[str, Any]:
        """Return the progress of a class as JSON, for `restore_class`."""
        return self._state_of_class(application_class).to_dict()

    def restore_class(
        self, application_class: str, progress: object, samples: Sequence[Sample]
    ) -> None:
        """Restore progress and samples of a class.

        Raises:
            StoreError: If the progress is not valid, and nothing was changed.
        """
        try:
            self._state_of_class(application_class).restore(progress, samples)
        except ValueError as error:
            raise StoreError(f"progress of class {application_class}: {error}") from error

    def _state_of_class(self, name: str) -> ClassLife:
        if name not in self._lives:
            settings = self.settings
            self._lives[name] = ClassLife(settings.history_per_class, settings.minimum_samples)
        return self._lives[name]


def train_due(predictor: LearningPredictor, now: Seconds) -> list[tuple[TrainingJob, Judgement]]:
    """Run all trainings that are due in this process; each takes seconds.

    Raises:
        ConfigError: If a package that training needs is not installed.
    """
    ended = []
    while (job := predictor.due_training(now)) is not None:
        ended.append((job, predictor.trained(job, train_job(job))))
    return ended
