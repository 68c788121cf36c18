"""Predictions as the service makes them: from what has finished, better with each stage.

Costs come from the service's own predictor (`LearnedCosts`) or from a table (`TabledCosts`, for
studies of other predictors); lengths, and what is still to come, from the stages of applications
that finished earlier in the same run.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from justitia_ray.core.actions import EndApplication
from justitia_ray.core.entities import Outcome
from justitia_ray.core.policies.options import PolicyOptions
from justitia_ray.core.stages import StagePosition
from justitia_ray.errors import ConfigError, RequestError
from justitia_ray.predictor.input_features import InputFeatures, features_of
from justitia_ray.predictor.model_directory import ModelDirectory
from justitia_ray.predictor.model_file import model_from_bytes
from justitia_ray.predictor.online import LearningPredictor, LearningSettings, train_due
from justitia_ray.predictor.sample import Sample
from justitia_ray.predictor.stages import StageTable, still_needed
from justitia_ray.sim.predictions import Foreseen, NoisyPredictions, Predictions, parse_noise
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from justitia_ray.units import ApplicationId, InferenceId, KvTokenTime, Seconds, Tokens

LEARNED = "learned"
TABLE = "table"


def predictions_of(settings: RunSettings) -> Predictions:
    """Return what a run's settings ask for.

    Raises:
        ConfigError: If they name something else, models that cannot be read, or what needs packages
            that are not installed.
        StoreError: If a model is damaged; names it.
    """
    if settings.models_dir is not None and settings.prediction != LEARNED:
        raise ConfigError(
            f"models_dir must be given with prediction {LEARNED!r}, got {settings.prediction!r}"
        )
    costs: CostSource
    if settings.prediction == LEARNED:
        costs = LearnedCosts(settings.models_dir, settings.seed)
    elif settings.prediction == TABLE:
        costs = TabledCosts(settings.predicted_costs)
    else:
        return NoisyPredictions(parse_noise(settings.prediction), settings.seed)
    return StagedPredictions(costs, settings.charge_factor, raises=settings.raises)


class CostSource(Protocol):
    """Predicts the costs of applications, and learns from them."""

    stages: StageTable
    """What is known of stages, of applications that have finished."""

    def cost(self, application: WorkloadApplication) -> KvTokenTime:
        """Return the predicted cost, token·iterations."""

    def length(self, application_class: str, prompt_tokens: Tokens, most: Tokens) -> Tokens:
        """Return the predicted length of an inference of whose stage nothing is known."""

    def learn(self, application: WorkloadApplication, action: EndApplication, now: Seconds) -> None:
        """Learn from an application that finished."""


class LearnedCosts:
    """The service's predictor: learning in the run, or with models that stay as they are.

    A training takes no time in the run, where the service's takes seconds in another process.
    """

    def __init__(self, models_dir: str | None = None, seed: int = 0) -> None:
        """Start with no knowledge, or with the models of a directory.

        Raises:
            ConfigError: If the directory, or a model in it, cannot be read, or the packages for
                training are not installed.
            StoreError: If a model is damaged; names it.
        """
        self._predictor = LearningPredictor(LearningSettings(seed=seed))
        self._trains = models_dir is None
        self.stages = self._predictor.stages
        if models_dir is None:
            _check_that_training_can_be_done()
        else:
            self._serve(ModelDirectory(Path(models_dir)))

    def cost(self, application: WorkloadApplication) -> KvTokenTime:
        """Return the predictor's estimate; the first prompt stands for the size of the input.

        Raises:
            ConfigError: If the application's class has a name that the service would refuse.
        """
        try:
            estimate = self._predictor.estimate(
                application.application_class,
                application.inferences[0].prompt_tokens,
                None,
                _features(application),
            )
        except RequestError as error:
            raise ConfigError(f"application {application.application_id!r}: {error}") from error
        return estimate.kv_token_time

    def length(self, application_class: str, prompt_tokens: Tokens, most: Tokens) -> Tokens:
        """Return the mean of the class, or the prior; nobody says `max_tokens` in a workload."""
        estimate = self._predictor.estimate(application_class, prompt_tokens, None)
        return min(most, estimate.output_tokens)

    def learn(self, application: WorkloadApplication, action: EndApplication, now: Seconds) -> None:
        """Let the predictor observe it, and do the training that is due."""
        sample = Sample(
            action.kv_token_time, action.inferences, action.output_tokens, _features(application)
        )
        self._predictor.observe(application.application_class, sample, action.stages)
        if self._trains:
            train_due(self._predictor, now)

    def _serve(self, models: ModelDirectory) -> None:
        classes = models.classes()
        if not classes:
            raise ConfigError(f"{models.path}: must hold a model of at least one class, has none")
        for name in classes:
            if (active := models.active(name)) is not None:
                number, data = active
                where = f"{models.path}, version {number} of class {name}"
                model = model_from_bytes(data, where)
                self._predictor.serve(name, models.index(name), model, number)


class TabledCosts:
    """Costs that somebody else has predicted, by application."""

    def __init__(self, costs: Mapping[ApplicationId, KvTokenTime]) -> None:
        self._costs = costs
        self.stages = StageTable()

    def cost(self, application: WorkloadApplication) -> KvTokenTime:
        """Return what the table says.

        Raises:
            ConfigError: If that is nothing, or not above 0.
        """
        cost = self._costs.get(application.application_id)
        if cost is None or not 0 < cost < float("inf"):
            raise ConfigError(
                f"predicted_costs of application {application.application_id!r} must be a number"
                f" > 0, got {cost!r}"
            )
        return cost

    def length(self, application_class: str, prompt_tokens: Tokens, most: Tokens) -> Tokens:
        """Return the predictor's prior."""
        return min(most, LearningSettings().prior_output_tokens)

    def learn(self, application: WorkloadApplication, action: EndApplication, now: Seconds) -> None:
        """Learn its stages."""
        self.stages.observe(application.application_class, action.stages)


class StagedPredictions:
    """Costs from a source; at each stage, what is to be expected from there on."""

    def __init__(self, costs: CostSource, charge_factor: float, *, raises: bool) -> None:
        """Take the source of costs.

        Args:
            costs: What is told of applications when they arrive.
            charge_factor: How many times what is expected is charged.
            raises: Whether later expectations are told, so that charges are raised.
        """
        self._costs = costs
        self._charge_factor = charge_factor
        self._raises = raises
        self._open: dict[ApplicationId, tuple[WorkloadApplication, StagePosition]] = {}
        self._stages: dict[tuple[ApplicationId, InferenceId], int] = {}

    def kv_token_time(self, application: WorkloadApplication) -> KvTokenTime:
        """Return the predicted cost of an application that arrives, token·iterations."""
        self._open[application.application_id] = (application, StagePosition())
        return self._costs.cost(application)

    def cost(self, application: WorkloadApplication, options: PolicyOptions) -> float | None:
        """Return None: the service predicts KV token-time only."""
        return None

    def charge(self, predicted: KvTokenTime) -> KvTokenTime | None:
        """Return what the ingress would let an application of this predicted cost be charged."""
        return self._charge_factor * predicted

    def submit(
        self, application: WorkloadApplication, inference: WorkloadInference, most: Tokens
    ) -> Foreseen:
        """Return what the ingress would say of an inference."""
        name = application.application_id
        position = self._open[name][1]
        stage, inferences = position.next()
        position.submit()
        self._stages[name, inference.inference_id] = stage
        prompt = inference.prompt_tokens
        expected = self._costs.stages.expect(
            application.application_class, stage, prompt, most, inferences
        )
        if expected is None:
            length = self._costs.length(application.application_class, prompt, most)
        else:
            length = expected.output_tokens
        if not self._raises:
            return Foreseen(length, stage)
        needed = still_needed(expected, length, prompt, inferences)
        return Foreseen(length, stage, self._charge_factor * needed)

    def finished(self, application_id: ApplicationId, inference_id: InferenceId) -> None:
        """Take in that an inference has finished."""
        self._open[application_id][1].finish(self._stages.pop((application_id, inference_id)))

    def ended(self, action: EndApplication, now: Seconds) -> None:
        """Learn from an application, as the ingress passes on what ran to its end."""
        application, _ = self._open.pop(action.application_id)
        if action.outcome is Outcome.FINISHED and not action.failed and action.kv_token_time > 0:
            self._costs.learn(application, action, now)


def _check_that_training_can_be_done() -> None:
    """Say before the run, and not after its tenth application, that a package is missing."""
    for module in ("sklearn", "torch"):
        if find_spec(module) is None:
            raise ConfigError(
                f"the Python module {module} is not installed, which predictions that are"
                " learned need: pip install 'justitia-ray[learning]'"
            )


def _features(application: WorkloadApplication) -> InputFeatures | None:
    return features_of(application.input) if application.input else None
