"""The predictor that learns in service: what is known of each class, its model, its trainings.

Pure and synchronous: no clock, no process, no store. The service and the simulator drive the same
class; trainings are handed out as data, and whoever drives it has them done.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from justitia_ray.core.stages import StageServed
from justitia_ray.errors import ConfigError, StoreError
from justitia_ray.predictor.class_life import ClassLife
from justitia_ray.predictor.class_mean import ClassMeanPredictor
from justitia_ray.predictor.cost_model import CostModel
from justitia_ray.predictor.estimate import Estimate
from justitia_ray.predictor.estimator import EstimateRequest, Estimator
from justitia_ray.predictor.input_features import InputFeatures
from justitia_ray.predictor.least_samples import LEAST_MINIMUM_SAMPLES
from justitia_ray.predictor.model_file import model_from_bytes
from justitia_ray.predictor.retraining import Judgement, TrainingJob, train
from justitia_ray.predictor.sample import Sample
from justitia_ray.predictor.stages import StageTable
from justitia_ray.predictor.versions import VersionIndex
from justitia_ray.units import Seconds, Tokens


@dataclass(frozen=True, slots=True)
class LearningSettings:
    """How a predictor learns; the defaults are the service's.

    Raises:
        ConfigError: If a number is below its least.
    """

    prior_output_tokens: Tokens = 256
    max_classes: int = 256
    minimum_samples: int = 10
    """Applications with known inputs from which on a class has a model."""
    history_per_class: int = 500
    kind: str = "auto"
    """Of models."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (
            ("minimum_samples", LEAST_MINIMUM_SAMPLES),
            ("history_per_class", self.minimum_samples),
        ):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}: {least} or more is allowed")


@dataclass(frozen=True, slots=True)
class EndedTraining:
    """What a training left."""

    judgement: Judgement
    before: VersionIndex
    """The versions of its class until then."""
    index: VersionIndex
    """And from now on."""
    model: CostModel | None
    """The new one, if it takes over."""
    outcome: dict[str, Any]
    """Its record, as JSON."""


class LearningPredictor:
    """Estimates what applications cost, and learns from those that ended."""

    def __init__(self, settings: LearningSettings | None = None) -> None:
        """Start with no knowledge."""
        self.settings = settings or LearningSettings()
        self._table = ClassMeanPredictor(
            self.settings.prior_output_tokens, self.settings.max_classes
        )
        self.stages = StageTable(self.settings.max_classes)
        """What is known of the stages of applications; `observe` feeds it."""
        self._lives: dict[str, ClassLife] = {}
        self._estimator = Estimator(self._table, self._lives)

    # --- estimates

    def estimate(
        self,
        application_class: str,
        input_tokens: Tokens,
        max_tokens: Tokens | None,
        features: InputFeatures | None = None,
    ) -> Estimate:
        """Return what an application is expected to cost; see `estimate_many`."""
        request = EstimateRequest(application_class, input_tokens, max_tokens, features)
        return self.estimate_many([request])[0]

    def estimate_many(self, requests: Sequence[EstimateRequest]) -> list[Estimate]:
        """Return what each application is expected to cost; see `Estimator`.

        Raises:
            RequestError: If a class's name has another form or a count is below its least.
        """
        return self._estimator.estimate_many(requests)

    # --- learning

    def observe(
        self, application_class: str, sample: Sample, stages: Sequence[StageServed] = ()
    ) -> str:
        """Learn from an application that finished (not from one that was cut short).

        If its error makes plain that the class has changed, only what came since then counts from
        now on, in the mean as in the next training; the mean stands in for a model that is worse.

        Args:
            application_class: Its class.
            sample: What it was and took.
            stages: What each of its stages took; none if that is not known.

        Returns:
            The class that now knows it, `other` beyond the bound.

        Raises:
            RequestError: If the class's name has another form.
            ValueError: If a number is out of its range.
        """
        name = self._table.filed_under(application_class)
        predicted = self.estimate(application_class, 0, None, sample.features)
        self._table.observe(
            application_class, sample.kv_token_time, sample.inferences, sample.output_tokens
        )
        self.stages.observe(name, stages)
        is_known = predicted.source in ("model", "class")
        since = self._life(name).observe(sample, predicted.kv_token_time if is_known else None)
        if since is not None:
            self._table.relearn(name, since)
        return name

    def due_training(self, now: Seconds) -> TrainingJob | None:
        """Return a training that is due, or None; each is returned once.

        Whoever takes it ends it with `trained` or `training_failed`. Of several, that of the class
        with the first name.

        Args:
            now: Time of a clock that never goes back; what failed is not tried again too soon.
        """
        for name in sorted(self._lives):
            settings = self.settings
            job = self._lives[name].due(name, settings.seed, settings.kind, now)
            if job is not None:
                return job
        return None

    def trained(self, job: TrainingJob, data: bytes, at: Seconds | None = None) -> Judgement:
        """Let a trained model take over, if it beats the one in service on the latest samples.

        Args:
            job: As `due_training` returned it.
            data: The model's bytes.
            at: When it was trained, for its record; seconds since 1970.

        Raises:
            StoreError: If the bytes are no model; the training has still to be ended.
        """
        ended = self.judge(job, data, at)
        self.take_over(job.application_class, ended)
        return ended.judgement

    def judge(self, job: TrainingJob, data: bytes, at: Seconds | None = None) -> EndedTraining:
        """Do the first half of `trained`: end the training, say what is to become of its model."""
        model = model_from_bytes(data, f"new model of class {job.application_class}")
        life = self._life(job.application_class)
        judgement = life.judged(job, model)
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
        index = before.trained(outcome)
        if not judgement.took_over:
            return EndedTraining(judgement, before, index, None, outcome)
        return EndedTraining(judgement, before, index.published(data, outcome), model, outcome)

    def take_over(self, application_class: str, ended: EndedTraining) -> None:
        """Do the second half: serve what the training left."""
        life = self._life(application_class)
        if ended.model is None:
            life.serve(ended.index, life.model, life.serving)
        else:
            life.take_over(ended.index, ended.model, ended.index.active, ended.judgement.log_errors)

    def training_failed(self, job: TrainingJob, now: Seconds) -> Seconds:
        """Take note that a training came to nothing; return after how long it is due again."""
        return self._life(job.application_class).failed(now)

    # --- models and versions

    def index(self, application_class: str) -> VersionIndex:
        """Return the versions of a class; an empty index if it has none."""
        life = self._lives.get(application_class)
        return VersionIndex() if life is None else life.index

    def serving(self, application_class: str) -> int:
        """Return the version that answers for a class, 0 if none does."""
        life = self._lives.get(application_class)
        return 0 if life is None else life.serving

    def modelled(self) -> list[str]:
        """Return the classes that have versions of a model, by name."""
        return sorted(name for name, life in self._lives.items() if life.index.versions)

    def changes(self, application_class: str) -> int:
        """Return how often the errors of a class have changed."""
        life = self._lives.get(application_class)
        return 0 if life is None else life.changes

    def serve(
        self,
        application_class: str,
        index: VersionIndex,
        model: CostModel | None,
        number: int,
    ) -> None:
        """Let a model that was read from somewhere answer for a class, or its mean (None, 0).

        The model is `index.active`, or an earlier one if that is damaged.
        """
        self._life(self._table.filed_under(application_class)).serve(index, model, number)

    # --- what outlives the process

    def table(self) -> dict[str, dict[str, Any]]:
        """Return the statistics of every class, as `ClassMeanPredictor.restore` takes them."""
        return self._table.all_statistics()

    def statistics(self, application_class: str) -> dict[str, Any]:
        """Return those of one class.

        Raises:
            KeyError: If nothing is known of it.
        """
        return self._table.statistics(application_class)

    def progress(self, application_class: str) -> dict[str, Any]:
        """Return what `restore_class` takes beside samples; JSON."""
        return self._life(application_class).to_dict()

    def restore_table(self, classes: Mapping[str, Mapping[str, Any]]) -> None:
        """Know these statistics, as `table` returned them, and no others.

        Raises:
            StoreError: If a name or statistics have another form; nothing was changed.
        """
        self._table.restore(classes)

    def restore_class(
        self, application_class: str, progress: object, samples: Sequence[Sample]
    ) -> None:
        """Know the history of a class.

        Raises:
            StoreError: If the progress has another form; nothing was changed.
        """
        try:
            self._life(application_class).restore(progress, samples)
        except ValueError as error:
            raise StoreError(f"progress of class {application_class}: {error}") from error

    def _life(self, name: str) -> ClassLife:
        if name not in self._lives:
            settings = self.settings
            self._lives[name] = ClassLife(settings.history_per_class, settings.minimum_samples)
        return self._lives[name]


def train_due(predictor: LearningPredictor, now: Seconds) -> list[tuple[TrainingJob, Judgement]]:
    """Do every training that is due, here and now, and return how each ended; takes seconds.

    Raises:
        ConfigError: If what training needs is not installed.
    """
    ended = []
    while (job := predictor.due_training(now)) is not None:
        ended.append((job, predictor.trained(job, train(job))))
    return ended
