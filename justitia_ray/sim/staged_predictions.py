"""Predictions as the service makes them: from what has finished, better with each stage.

Costs come from the service's own predictor (`LearnedCosts`), from a table (`TabledCosts`, for
studies of other predictors) or are wrong by random factors (`NoisyCosts`); lengths, and what is
still to come, from the stages of applications that finished earlier in the same run.
"""

from justitia_ray.core.actions import EndApplication
from justitia_ray.core.policies.options import PolicyOptions
from justitia_ray.core.stages import StagePosition
from justitia_ray.cost import find_cost
from justitia_ray.errors import ConfigError
from justitia_ray.predictor.observation import is_lesson
from justitia_ray.predictor.stages import still_needed
from justitia_ray.sim.cost_sources import CostSource, LearnedCosts, NoisyCosts, TabledCosts
from justitia_ray.sim.predictions import ExactPredictions, Foreseen, Predictions, parse_noise
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
        costs = TabledCosts(
            settings.predicted_costs,
            settings.history,
            lengths_are_known=settings.lengths_are_known,
        )
    else:
        noise = parse_noise(settings.prediction)
        if noise == 1:
            return ExactPredictions()
        # No more than the estimate can be short of: without noise, the truth is charged.
        factor = min(settings.charge_factor, noise)
        return StagedPredictions(NoisyCosts(noise, settings.seed), factor, raises=settings.raises)
    return StagedPredictions(costs, settings.charge_factor, raises=settings.raises)


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
        """Return what the source says in another unit; None: it predicts KV token-time only."""
        if options.accounts_cost == "kv_token_time":
            return None
        return self._costs.cost_in(application, find_cost(options.accounts_cost))

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
        length = self._costs.length(application, inference, expected, most)
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
        if is_lesson(action):
            self._costs.learn(application, action, now)
