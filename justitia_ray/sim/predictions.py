"""Predictions of costs and lengths for a simulated scheduler: true, noisy, or learned.

`LearnedCosts` uses the service's own predictor, `TableCosts` a table (for studies of other
predictors), `NoisyCosts` true values times random factors. Lengths and later stages are predicted
from the stages of applications that finished earlier in the same run.
"""

import abc
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from justitia_ray.core.actions import EndApplication
from justitia_ray.core.policies.options import PolicyOptions
from justitia_ray.core.stages import ExpectedStage, StagePosition
from justitia_ray.cost import CostFunction, find_cost, kv_token_time, weighted_tokens
from justitia_ray.errors import ConfigError, RequestError
from justitia_ray.predictor.input_features import InputFeatures, features_of
from justitia_ray.predictor.model_directory import ModelDirectory
from justitia_ray.predictor.model_file import model_from_bytes
from justitia_ray.predictor.observation import Observation, Sample, is_lesson
from justitia_ray.predictor.online import LearningPredictor, LearningSettings, train_due
from justitia_ray.predictor.stages import StageTable, still_needed
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from justitia_ray.units import ApplicationId, InferenceId, KvTokenTime, Seconds, Tokens

LEARNED = "learned"
TABLE = "table"


class InferencePrediction(NamedTuple):
    """Predicted length and stage of an inference, and the remaining work of its application."""

    output_tokens: Tokens
    """Predicted output length in tokens, at least 1."""
    stage: int | None = None
    """Index of the stage in the application; None: unknown."""
    remaining_kv_token_time: KvTokenTime | None = None
    """Predicted cost of the application from this stage on; None: no new prediction."""
    expected_stages: tuple[ExpectedStage, ...] = ()
    """Expected stages of the application from this stage on; empty: no new prediction."""


class ExactPredictions:
    """Predictor that knows the true costs and lengths."""

    def application_cost(self, application: WorkloadApplication) -> KvTokenTime:
        """Return the predicted cost of an arriving application in token·iterations."""
        return application.cost()

    def accounts_cost(
        self, application: WorkloadApplication, options: PolicyOptions
    ) -> float | None:
        """Return the predicted cost in the policy's unit; None if that is KV token-time."""
        if options.accounts_cost == "kv_token_time":
            return None
        return self._predicted_cost_in_unit(application, find_cost(options.accounts_cost))

    def charge(self, predicted: KvTokenTime) -> KvTokenTime | None:
        """Return the charge for a predicted cost; None: the predicted cost is charged."""
        return None

    def stages(self, application: WorkloadApplication) -> tuple[ExpectedStage, ...]:
        """Return the expected stages of an arriving application; empty if unknown."""
        return true_stages(application)

    def predict_inference(
        self, application: WorkloadApplication, inference: WorkloadInference, most: Tokens
    ) -> InferencePrediction:
        """Return the prediction for an inference of at most `most` output tokens."""
        return InferencePrediction(inference.output_tokens)

    def finish_inference(self, application_id: ApplicationId, inference_id: InferenceId) -> None:
        """Record that an inference has finished."""

    def end_application(self, action: EndApplication, now: Seconds) -> None: ...

    def _predicted_cost_in_unit(
        self, application: WorkloadApplication, function: CostFunction
    ) -> float | None:
        return application.cost(function)


class StagedPredictions(ExactPredictions):
    """Predicts as the service does: learns from finished applications, and corrects at each stage.

    Args:
        costs: Predicts the cost of applications on arrival.
        charge_factor: Factor from a predicted cost to the charge.
        raises: Whether predictions for later stages are passed to the scheduler, which may raise
            the charge.
    """

    def __init__(self, costs: "CostSource", charge_factor: float, *, raises: bool) -> None:
        self._costs = costs
        self._charge_factor = charge_factor
        self._raises = raises
        self._open: dict[ApplicationId, tuple[WorkloadApplication, StagePosition]] = {}
        self._stages: dict[tuple[ApplicationId, InferenceId], int] = {}

    def application_cost(self, application: WorkloadApplication) -> KvTokenTime:
        self._open[application.application_id] = (application, StagePosition())
        return self._costs.cost(application)

    def charge(self, predicted: KvTokenTime) -> KvTokenTime | None:
        """Return the amount that the ingress would charge for a predicted cost."""
        return self._charge_factor * predicted

    def stages(self, application: WorkloadApplication) -> tuple[ExpectedStage, ...]:
        """Return the usual stages of the application's class."""
        return self._costs.stages.expected_stages(application.application_class, 0)

    def predict_inference(
        self, application: WorkloadApplication, inference: WorkloadInference, most: Tokens
    ) -> InferencePrediction:
        """Return the prediction that the ingress would send with an inference."""
        name = application.application_id
        position = self._open[name][1]
        stage, inferences = position.next()
        position.submit()
        self._stages[name, inference.inference_id] = stage
        prompt = inference.prompt_tokens
        expected = self._costs.stages.expect(
            application.application_class, stage, prompt, most, inferences
        )
        length = self._costs.known_output_tokens(application, inference)
        if length is None and expected is not None:
            length = expected.output_tokens
        elif length is None:
            length = min(most, self._costs.default_output_tokens(application, inference))
        stages = self._costs.stages.stages_to_send(application.application_class, stage, inferences)
        if not self._raises:
            return InferencePrediction(length, stage, expected_stages=stages)
        needed = still_needed(expected, length, prompt, inferences)
        return InferencePrediction(length, stage, self._charge_factor * needed, stages)

    def finish_inference(self, application_id: ApplicationId, inference_id: InferenceId) -> None:
        """Count a finished inference in the statistics of its application's stage."""
        self._open[application_id][1].finish(self._stages.pop((application_id, inference_id)))

    def end_application(self, action: EndApplication, now: Seconds) -> None:
        """Learn from an ended application, except a cancelled one."""
        application, _ = self._open.pop(action.application_id)
        if is_lesson(action):
            self._costs.learn(application, action, now)

    def _predicted_cost_in_unit(
        self, application: WorkloadApplication, function: CostFunction
    ) -> float | None:
        return self._costs.predicted_cost_in_unit(application, function)


class CostSource(abc.ABC):
    """Interface of a source of predicted costs and lengths."""

    def __init__(self) -> None:
        self.stages = StageTable()
        """Statistics of the stages of finished applications."""

    @abc.abstractmethod
    def cost(self, application: WorkloadApplication) -> KvTokenTime:
        """Return the predicted cost of an application in token·iterations."""

    def predicted_cost_in_unit(
        self, application: WorkloadApplication, function: CostFunction
    ) -> float | None:
        """Return the predicted cost in another unit; None if the source has no such prediction."""
        return None

    def known_output_tokens(
        self, application: WorkloadApplication, inference: WorkloadInference
    ) -> Tokens | None:
        """Return the length of an inference if it is known; None: the mean of the stage is used."""
        return None

    def default_output_tokens(
        self, application: WorkloadApplication, inference: WorkloadInference
    ) -> Tokens:
        """Return the length of an inference whose stage is unknown."""
        return LearningSettings().prior_output_tokens

    def learn(self, application: WorkloadApplication, action: EndApplication, now: Seconds) -> None:
        self.stages.observe_stages(application.application_class, action.stages)


class LearnedCosts(CostSource):
    """Predicts costs with the service's own predictor, which learns or has fixed models.

    A training takes no simulated time; in the service it takes seconds in another process.

    Args:
        models_dir: Directory of the fixed models; None: the predictor starts untrained and learns.
        seed: Seed of the trainings.

    Raises:
        ConfigError: If the directory, or a model in it, cannot be read, or the packages for
            training are not installed.
        StoreError: If a model is damaged; the message names it.
    """

    def __init__(self, models_dir: str | None = None, seed: int = 0) -> None:
        self._predictor = LearningPredictor(LearningSettings(seed=seed))
        self._trains = models_dir is None
        self.stages = self._predictor.stages
        if models_dir is None:
            _check_training_packages()
        else:
            self._load_models(ModelDirectory(Path(models_dir)))

    def cost(self, application: WorkloadApplication) -> KvTokenTime:
        """Return the predictor's estimate; the first prompt is used as the input text.

        Raises:
            ConfigError: If the service would refuse the name of the application's class.
        """
        try:
            estimate = self._predictor.estimate(
                application.application_class,
                application.inferences[0].prompt_tokens,
                None,
                _input_features(application),
            )
        except RequestError as error:
            raise ConfigError(f"application {application.application_id!r}: {error}") from error
        return estimate.kv_token_time

    def default_output_tokens(
        self, application: WorkloadApplication, inference: WorkloadInference
    ) -> Tokens:
        """Return the mean output length of the class, or a default for an unknown class."""
        estimate = self._predictor.estimate(
            application.application_class, inference.prompt_tokens, None
        )
        return estimate.output_tokens

    def learn(self, application: WorkloadApplication, action: EndApplication, now: Seconds) -> None:
        """Let the predictor learn from a finished application, and run a training that is due."""
        sample = Sample(
            action.kv_token_time,
            action.inferences,
            action.output_tokens,
            _input_features(application),
        )
        self._predictor.observe_application(application.application_class, sample, action.stages)
        if self._trains:
            train_due(self._predictor, now)

    def _load_models(self, models: ModelDirectory) -> None:
        classes = models.classes()
        if not classes:
            raise ConfigError(f"{models.path}: must hold a model of at least one class, has none")
        for name in classes:
            if (active := models.active(name)) is not None:
                number, data = active
                where = f"{models.path}, version {number} of class {name}"
                model = model_from_bytes(data, where)
                self._predictor.serve(name, models.index(name), model, number)


class TableCosts(CostSource):
    """Returns the costs of a table instead of predictions.

    Args:
        costs: Cost of each application, in token·iterations.
        history: Earlier applications from which stages are learned.
        lengths_are_known: Whether callers force the lengths of outputs.
    """

    def __init__(
        self,
        costs: Mapping[ApplicationId, KvTokenTime],
        history: Iterable[Observation] = (),
        *,
        lengths_are_known: bool = False,
    ) -> None:
        super().__init__()
        self._costs = costs
        self._lengths_are_known = lengths_are_known
        for observation in history:
            self.stages.observe_stages(observation.application_class, observation.stages)

    def cost(self, application: WorkloadApplication) -> KvTokenTime:
        """Return the cost that the table has for an application.

        Raises:
            ConfigError: If the table has no cost of the application, or it is not above 0.
        """
        cost = self._costs.get(application.application_id)
        if cost is None or not 0 < cost < float("inf"):
            raise ConfigError(
                f"predicted_costs of application {application.application_id!r} must be a number"
                f" > 0, got {cost!r}"
            )
        return cost

    def known_output_tokens(
        self, application: WorkloadApplication, inference: WorkloadInference
    ) -> Tokens | None:
        """Return the true length if callers force it; otherwise None."""
        return inference.output_tokens if self._lengths_are_known else None


class NoisyCosts(CostSource):
    """True costs and lengths times random factors in [1/λ, λ] (Justitia v2, Sec. V, Fig. 10).

    The paper gives only the interval; factors are drawn uniformly from it. An application's cost
    has one factor, each length another factor; the seed and the ids determine them.

    Args:
        noise: Limit λ of the factors, above 1.
        seed: Seed of the factors.
    """

    def __init__(self, noise: float, seed: int) -> None:
        super().__init__()
        self._noise = noise
        self._seed = seed

    def cost(self, application: WorkloadApplication) -> KvTokenTime:
        return self.predicted_cost_in_unit(application, kv_token_time)

    def predicted_cost_in_unit(
        self, application: WorkloadApplication, function: CostFunction
    ) -> float:
        return application.cost(function) * self._random_factor(application.application_id)

    def known_output_tokens(
        self, application: WorkloadApplication, inference: WorkloadInference
    ) -> Tokens:
        """Return the noisy length, which may exceed a replica's memory."""
        factor = self._random_factor(f"{application.application_id}/{inference.inference_id}")
        return max(1, round(inference.output_tokens * factor))

    def _random_factor(self, name: str) -> float:
        return random.Random(f"{self._seed}/noise/{name}").uniform(1 / self._noise, self._noise)


def true_stages(application: WorkloadApplication) -> tuple[ExpectedStage, ...]:
    return tuple(
        _expected_stage(stage, gap_s) for stage, gap_s in stages_of(application.inferences)
    )


def stages_of(
    inferences: Sequence[WorkloadInference],
) -> list[tuple[list[WorkloadInference], Seconds]]:
    """Return the inferences of an application, grouped into stages by what each waits for.

    The scheduler counts the same stages if parallel inferences end together; a branch that runs
    ahead of others begins the next stage for all. The gap is the shortest delay before an inference
    of the next stage.
    """
    depths: dict[InferenceId, int] = {}
    stages: list[list[WorkloadInference]] = []
    waiting = {inference.inference_id: inference for inference in inferences}
    order = TopologicalSorter({name: waiting[name].after for name in waiting})
    for name in order.static_order():
        if name not in waiting:
            continue  # An inference may wait for one that is served in another application.
        inference = waiting[name]
        depth = max(
            (depths[before] + 1 for before in inference.after if before in depths), default=0
        )
        depths[name] = depth
        while len(stages) <= depth:
            stages.append([])
        stages[depth].append(inference)
    gaps = [min(inference.delay_s for inference in stage) for stage in stages[1:]]
    return list(zip(stages, [*gaps, 0.0], strict=True))


def _expected_stage(stage: Sequence[WorkloadInference], gap_s: Seconds) -> ExpectedStage:
    sizes = [(inference.prompt_tokens, inference.output_tokens) for inference in stage]
    return ExpectedStage(
        len(sizes),
        sum(weighted_tokens(p, d) for p, d in sizes),
        sum(kv_token_time(p, d) for p, d in sizes),
        max(d for _, d in sizes),
        gap_s,
    )


def predictions_of(settings: RunSettings) -> ExactPredictions:
    """Return the predictor for the settings of a simulated run.

    Raises:
        ConfigError: If the mode is unknown, the models cannot be read, or packages are not
            installed.
        StoreError: If a model is damaged; the message names it.
    """
    if settings.models_dir is not None and settings.prediction != LEARNED:
        raise ConfigError(
            f"models_dir must be given with prediction {LEARNED!r}, got {settings.prediction!r}"
        )
    costs: CostSource
    charge_factor = settings.charge_factor
    if settings.prediction == LEARNED:
        costs = LearnedCosts(settings.models_dir, settings.seed)
    elif settings.prediction == TABLE:
        costs = TableCosts(
            settings.predicted_costs,
            settings.history,
            lengths_are_known=settings.lengths_are_known,
        )
    else:
        noise = parse_noise(settings.prediction)
        if noise == 1:
            return ExactPredictions()
        costs = NoisyCosts(noise, settings.seed)
        # Without noise (λ = 1) the true cost is charged.
        charge_factor = min(charge_factor, noise)
    return StagedPredictions(costs, charge_factor, raises=settings.raises)


def parse_noise(prediction: str) -> float:
    """Return λ for the modes `oracle` (1) and `noisy:λ`.

    Raises:
        ConfigError: If the mode is another.
    """
    if prediction == "oracle":
        return 1.0
    kind, _, number = prediction.partition(":")
    try:
        noise = float(number) if kind == "noisy" else math.nan
    except ValueError:
        noise = math.nan
    if not 1 <= noise < math.inf:
        raise ConfigError(
            "prediction must be oracle, learned, or noisy:λ with a number λ >= 1, got"
            f" {prediction!r}"
        )
    return noise


def _check_training_packages() -> None:
    """Check that the packages for training are installed, before the run."""
    for module in ("sklearn", "torch"):
        if find_spec(module) is None:
            raise ConfigError(
                f"the Python module {module} is not installed, which predictions that are"
                " learned need: pip install 'justitia-ray[learning]'"
            )


def _input_features(application: WorkloadApplication) -> InputFeatures | None:
    return features_of(application.input) if application.input else None
