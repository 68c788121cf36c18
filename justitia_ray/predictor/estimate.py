"""A predictor's estimate of an application's cost."""

from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, TypeAlias

from justitia_ray.predictor.stored import AtLeastOne, NotNegative, Stored
from justitia_ray.units import KvTokenTime

Source: TypeAlias = Literal["model", "class", "neighbours", "prior"]
"""How a cost was estimated: by a model, the class mean, similar classes, or the request alone."""


@dataclass(frozen=True, slots=True)
class Estimate(Stored):
    """Predicted cost of one application.

    Raises:
        ValueError: If p10, kv_token_time and p90 are out of order.
    """

    kv_token_time: NotNegative
    """Expected cost of the whole application in token·iterations."""
    p10: NotNegative
    """Cost that 90 % of similar applications exceed, in token·iterations."""
    p90: NotNegative
    """Cost that 90 % of similar applications stay below, in token·iterations."""
    output_tokens: AtLeastOne
    """Expected output of an inference, in tokens."""
    source: Source

    def quantile(self, share: float) -> KvTokenTime:
        """Return the cost below which this share of similar applications stay.

        The share is above 0.5.

        Costs are assumed log-normal, with the estimate as the median and with the given p90.
        """
        if not self.kv_token_time:
            return self.p90
        reach = NormalDist().inv_cdf(share) / NormalDist().inv_cdf(0.9)
        return self.kv_token_time * float((self.p90 / self.kv_token_time) ** reach)

    def __post_init__(self) -> None:
        if not self.p10 <= self.kv_token_time <= self.p90:
            raise ValueError(
                f"kv_token_time is {self.kv_token_time!r}: p10 {self.p10!r} to p90 {self.p90!r} is"
                " allowed"
            )
