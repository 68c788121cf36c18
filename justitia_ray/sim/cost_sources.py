"""Where simulated costs and lengths come from: the service's predictor, a table, or noise."""

import random
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from justitia_ray.core.actions import EndApplication
from justitia_ray.cost import CostFunction, kv_token_time
from justitia_ray.errors import ConfigError, RequestError
from justitia_ray.predictor.input_features import InputFeatures, features_of
from justitia_ray.predictor.model_directory import ModelDirectory
from justitia_ray.predictor.model_file import model_from_bytes
from justitia_ray.predictor.observation import Observation
from justitia_ray.predictor.online import LearningPredictor, LearningSettings, train_due
from justitia_ray.predictor.sample import Sample
from justitia_ray.predictor.stages import Expectation, StageTable
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from justitia_ray.units import ApplicationId, KvTokenTime, Seconds, Tokens


class CostSource(Protocol):
    """Predicts the costs of applications, and learns from them."""

    stages: StageTable
    """What is known of stages, of applications that have finished."""

    def cost(self, application: WorkloadApplication) -> KvTokenTime:
        """Return the predicted cost, token·iterations."""

    def cost_in(self, application: WorkloadApplication, function: CostFunction) -> float | None:
        """Return the predicted cost in another unit, or None if it is not predicted."""

    def length(
        self,
        application: WorkloadApplication,
        inference: WorkloadInference,
        expected: Expectation | None,
        most: Tokens,
    ) -> Tokens:
        """Return the predicted length of an inference.

        Args:
            application: Whose it is.
            inference: Which one.
            expected: What its stage says; None if nothing is known of that.
            most: More output tokens do not fit.
        """

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

    def cost_in(self, application: WorkloadApplication, function: CostFunction) -> None:
        """Nothing: the service predicts KV token-time only."""

    def length(
        self,
        application: WorkloadApplication,
        inference: WorkloadInference,
        expected: Expectation | None,
        most: Tokens,
    ) -> Tokens:
        """Return what the stage says, or else the class's mean, or the prior.

        Nobody says `max_tokens` in a workload.
        """
        if expected is not None:
            return expected.output_tokens
        estimate = self._predictor.estimate(
            application.application_class, inference.prompt_tokens, None
        )
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


class _StagesLearned:
    """Learns the stages of applications, and nothing of their costs."""

    stages: StageTable

    def learn(self, application: WorkloadApplication, action: EndApplication, now: Seconds) -> None:
        """Learn its stages."""
        self.stages.observe(application.application_class, action.stages)


class TabledCosts(_StagesLearned):
    """Costs that somebody else has predicted, by application."""

    def __init__(
        self,
        costs: Mapping[ApplicationId, KvTokenTime],
        history: Iterable[Observation] = (),
        *,
        lengths_are_known: bool = False,
    ) -> None:
        """Take the table, what is known of stages, and whether callers force their lengths."""
        self._costs = costs
        self._lengths_are_known = lengths_are_known
        self.stages = StageTable()
        for one in history:
            self.stages.observe(one.application_class, one.stages)

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

    def cost_in(self, application: WorkloadApplication, function: CostFunction) -> None:
        """Nothing: the table holds KV token-time only."""

    def length(
        self,
        application: WorkloadApplication,
        inference: WorkloadInference,
        expected: Expectation | None,
        most: Tokens,
    ) -> Tokens:
        """Return the length if it is known; what the stage says, or else the predictor's prior."""
        if self._lengths_are_known:
            return inference.output_tokens
        if expected is not None:
            return expected.output_tokens
        return min(most, LearningSettings().prior_output_tokens)


class NoisyCosts(_StagesLearned):
    """The truth times random factors from [1/λ, λ] (Justitia v2, Sec. V, Fig. 10).

    The paper names the interval only: factors are uniform in it. An application's cost has one
    factor, each length another.
    """

    def __init__(self, noise: float, seed: int) -> None:
        """Take λ, above 1, and the seed of the factors, with the ids of what they are for."""
        self._noise = noise
        self._seed = seed
        self.stages = StageTable()

    def cost(self, application: WorkloadApplication) -> KvTokenTime:
        """Return the noisy cost, token·iterations."""
        return self.cost_in(application, kv_token_time)

    def cost_in(self, application: WorkloadApplication, function: CostFunction) -> float:
        """Return the noisy cost in another unit."""
        return application.cost(function) * self._factor(application.application_id)

    def length(
        self,
        application: WorkloadApplication,
        inference: WorkloadInference,
        expected: Expectation | None,
        most: Tokens,
    ) -> Tokens:
        """Return the noisy length, which may be longer than what fits."""
        factor = self._factor(f"{application.application_id}/{inference.inference_id}")
        return max(1, round(inference.output_tokens * factor))

    def _factor(self, name: str) -> float:
        return random.Random(f"{self._seed}/noise/{name}").uniform(1 / self._noise, self._noise)


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
