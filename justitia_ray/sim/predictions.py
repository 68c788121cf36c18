"""What the scheduler is told of costs and lengths before they are known."""

import math
from typing import NamedTuple, Protocol

from justitia_ray.core.actions import EndApplication
from justitia_ray.core.policies.options import PolicyOptions
from justitia_ray.cost import find_cost
from justitia_ray.errors import ConfigError
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from justitia_ray.units import ApplicationId, InferenceId, KvTokenTime, Seconds, Tokens


class Foreseen(NamedTuple):
    """What is said of an inference when it is submitted."""

    output_tokens: Tokens
    """Its length, at least 1."""
    stage: int | None = None
    """Where it stands in its application; None: nobody has looked."""
    remaining_kv_token_time: KvTokenTime | None = None
    """What its application is to be charged for from this stage on; None: nothing new."""


class Predictions(Protocol):
    """Predicts applications when they arrive and inferences when they are submitted."""

    def kv_token_time(self, application: WorkloadApplication) -> KvTokenTime:
        """Return the predicted cost of an application that arrives, token·iterations."""

    def cost(self, application: WorkloadApplication, options: PolicyOptions) -> float | None:
        """Return the predicted cost in the accounts' unit, or None if that is KV token-time."""

    def charge(self, predicted: KvTokenTime) -> KvTokenTime | None:
        """Return what an application of this predicted cost is charged; None: just that."""

    def submit(
        self, application: WorkloadApplication, inference: WorkloadInference, most: Tokens
    ) -> Foreseen:
        """Return what is said of an inference; at most so many output tokens fit."""

    def finished(self, application_id: ApplicationId, inference_id: InferenceId) -> None:
        """Take in that an inference has finished, before what follows on it is submitted."""

    def ended(self, action: EndApplication, now: Seconds) -> None:
        """Take in what an application took."""


class ExactPredictions:
    """The truth."""

    def kv_token_time(self, application: WorkloadApplication) -> KvTokenTime:
        """Return the cost, token·iterations."""
        return application.cost()

    def cost(self, application: WorkloadApplication, options: PolicyOptions) -> float | None:
        """Return the cost in the accounts' unit, or None if that is KV token-time."""
        if options.accounts_cost == "kv_token_time":
            return None
        return application.cost(find_cost(options.accounts_cost))

    def charge(self, predicted: KvTokenTime) -> KvTokenTime | None:
        """Return None: the truth is charged."""
        return None

    def submit(
        self, application: WorkloadApplication, inference: WorkloadInference, most: Tokens
    ) -> Foreseen:
        """Return the length."""
        return Foreseen(inference.output_tokens)

    def finished(self, application_id: ApplicationId, inference_id: InferenceId) -> None:
        """Nothing: all was known."""

    def ended(self, action: EndApplication, now: Seconds) -> None:
        """Nothing: all was known."""


def parse_noise(prediction: str) -> float:
    """Return λ of `oracle` (1) or `noisy:λ`.

    Raises:
        ConfigError: If it is neither.
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
