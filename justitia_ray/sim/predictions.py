"""What the scheduler is told of costs and lengths before they are known."""

import math
import random

from justitia_ray.core.policies.options import PolicyOptions
from justitia_ray.cost import find_cost
from justitia_ray.errors import ConfigError
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from justitia_ray.units import KvTokenTime, Tokens

_ALLOWED = "oracle or noisy:λ with a number λ >= 1 (`learned` comes with the predictors)"


class Predictions:
    """The truth, or the truth times random factors from [1/λ, λ] (Justitia v2, Sec. V, Fig. 10).

    The paper names the interval only: factors are uniform in it. An application's cost has one
    factor, each length another.
    """

    def __init__(self, prediction: str, seed: int) -> None:
        """Take a description.

        Args:
            prediction: `oracle`, or `noisy:λ`.
            seed: Of the factors, with the ids of what they are for.

        Raises:
            ConfigError: If it is neither.
        """
        self._noise = _noise(prediction)
        self._seed = seed

    def kv_token_time(self, application: WorkloadApplication) -> KvTokenTime:
        """Return the predicted cost, token·iterations."""
        return self._scaled(application.cost(), application)

    def cost(self, application: WorkloadApplication, options: PolicyOptions) -> float | None:
        """Return the predicted cost in the accounts' unit, or None if that is KV token-time."""
        if options.accounts_cost == "kv_token_time":
            return None
        return self._scaled(application.cost(find_cost(options.accounts_cost)), application)

    def output_tokens(
        self, application: WorkloadApplication, inference: WorkloadInference
    ) -> Tokens:
        """Return the predicted length of an inference, at least 1."""
        factor = self._factor(f"{application.application_id}/{inference.inference_id}")
        return max(1, round(inference.output_tokens * factor))

    def _scaled(self, cost: float, application: WorkloadApplication) -> float:
        return cost * self._factor(application.application_id)

    def _factor(self, name: str) -> float:
        if self._noise == 1:
            return 1
        return random.Random(f"{self._seed}/noise/{name}").uniform(1 / self._noise, self._noise)


def _noise(prediction: str) -> float:
    if prediction == "oracle":
        return 1.0
    kind, _, number = prediction.partition(":")
    try:
        noise = float(number) if kind == "noisy" else math.nan
    except ValueError:
        noise = math.nan
    if not 1 <= noise < math.inf:
        raise ConfigError(f"prediction must be {_ALLOWED}, got {prediction!r}")
    return noise
