"""Running mean and spread of the costs of one application class."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from justitia_ray.predictor.log_spread import reach_of_p90
from justitia_ray.predictor.number_record import checked_numbers
from justitia_ray.units import KvTokenTime, Tokens


@dataclass(slots=True)
class ClassStatistics:
    """What the finished applications of one class have cost.

    The mean is of the cost itself: charged to each, it adds up to what all of them are served. The
    spread is of its logarithm: costs are positive and skewed, and close to log-normal in the
    recorded runs. Both by Welford's recurrence (Technometrics 4, 1962), which does not cancel.
    """

    samples: int = 0
    """Finished applications."""
    kv_token_time_mean: KvTokenTime = 0.0
    log_mean: float = 0.0
    """Mean of ln(kv_token_time)."""
    log_squares: float = 0.0
    """Sum of the squared deviations from `log_mean`."""
    inferences: int = 0
    """Finished inferences of them all."""
    output_tokens: Tokens = 0
    """Output tokens of them all."""

    def add(self, kv_token_time: KvTokenTime, inferences: int, output_tokens: Tokens) -> None:
        """Count one finished application of positive cost."""
        self.samples += 1
        self.kv_token_time_mean += (kv_token_time - self.kv_token_time_mean) / self.samples
        deviation = math.log(kv_token_time) - self.log_mean
        self.log_mean += deviation / self.samples
        self.log_squares += deviation * (math.log(kv_token_time) - self.log_mean)
        self.inferences += inferences
        self.output_tokens += output_tokens

    def quantiles(self) -> tuple[KvTokenTime, KvTokenTime]:
        """Return p10 and p90 of the next application, log-normal; needs one sample.

        Never further in than the mean, which very skewed samples put outside.
        """
        reach = reach_of_p90(self.log_squares, self.samples)
        return (
            min(self.kv_token_time_mean, math.exp(self.log_mean - reach)),
            max(self.kv_token_time_mean, math.exp(self.log_mean + reach)),
        )

    def mean_output_tokens(self) -> Tokens:
        """Return the mean output of one inference, rounded up; needs one sample."""
        return max(1, math.ceil(self.output_tokens / self.inferences))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON can say them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the statistics that `to_dict` was called on.

        Raises:
            ValueError: If a field is missing, unknown or wrong; the message names it.
        """
        statistics = cls(**checked_numbers(cls, values))  # type: ignore[arg-type]
        statistics._check()
        return statistics

    def _check(self) -> None:
        """Refuse what no sequence of `add` leads to and `quantiles` could not compute with."""
        for name, least in (("samples", 1), ("inferences", self.samples), ("output_tokens", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)!r}: {least} or more is allowed")
        if self.kv_token_time_mean <= 0:
            raise ValueError(f"kv_token_time_mean is {self.kv_token_time_mean!r}: > 0 is allowed")
        if self.log_squares < 0:
            raise ValueError(f"log_squares is {self.log_squares!r}: >= 0 is allowed")
        try:
            self.quantiles()
        except OverflowError:
            raise ValueError(
                f"log_mean is {self.log_mean!r} and log_squares {self.log_squares!r}: costs beyond"
                " what a float holds"
            ) from None
