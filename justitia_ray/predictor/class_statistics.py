"""Statistics of an application class: mean and spread of its costs, form of its inputs.

An unknown class is estimated from classes whose inputs have a similar form. The cost is the
geometric mean of two guesses: the prior, which is one inference of the request's own size, and the
known classes' costs, each weighted by the similarity of its inputs' form. This rule was chosen on
the eight recorded classes that have inputs, each left out in turn (60 runs of each known class, 40
runs to predict). Its predictions were wrong by a factor of 5.8 in the geometric mean over the
classes, those of the prior alone by 7.5, of the classes alone by 6.3. Similarity of words (cosine
of TF-IDF) was worse than the prior, 11.6 with one neighbour and 8.7 with three: words of different
tasks coincide by chance. No rule predicts document merging, which costs 700 times as much as the
classes with similar inputs.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Self

from pydantic import Field, model_validator

from justitia_ray.predictor.input_features import MEASURES, InputFeatures
from justitia_ray.predictor.observation import Sample
from justitia_ray.predictor.stored import AtLeastOne, Count, Finite, NotNegative, Positive, Stored
from justitia_ray.units import KvTokenTime, Tokens

_Z90 = 1.2815515655446004

_PRIOR_LOG_VARIANCE = 0.25
_PRIOR_WEIGHT = 2
"""Weight, in samples, of the prior that costs of a class spread by 0.5 in ln(cost).

It was chosen on recorded runs of nine classes, whose spreads are 0.23 to 1.38 with a median of
0.49. There p10 to p90 contained 80 to 82 % of the next runs after 1, 2, 3, 5, 10 and 30 samples; 80
% is the goal. Without the prior they contained none after one sample and 63 % after three.
"""

_LEAST_SAMPLES = 3
"""Minimum number of samples before the inputs of a class are compared with other inputs."""


def reach_of_p90(squares: float, samples: int) -> float:
    """Return the distance in ln(cost) from the mean to p10 and p90 of the next cost.

    Args:
        squares: Sum of the squared deviations from the mean, in ln(cost).
        samples: Number of deviations, at least one.
    """
    prior = _PRIOR_WEIGHT * _PRIOR_LOG_VARIANCE
    variance = (squares + prior) / (samples - 1 + _PRIOR_WEIGHT)
    # The term 1/n is for the error of the estimated mean.
    return _Z90 * math.sqrt(variance * (1 + 1 / samples))


@dataclass(slots=True)
class ClassStatistics(Stored):
    """Costs, inferences and output of the finished applications of a class.

    The mean is taken of the cost itself: charged to each application, it adds up to the service of
    all. The spread is taken of the logarithm of the cost: costs are positive and skewed, and close
    to log-normal in the recorded runs. Both use Welford's recurrence (Technometrics 4, 1962), which
    avoids cancellation.
    """

    samples: AtLeastOne = 0
    """Number of finished applications, at least 1."""
    kv_token_time_mean: Positive = 0.0
    log_mean: Finite = 0.0
    """Mean of ln(cost) over the finished applications."""
    log_squares: NotNegative = 0.0
    """Sum of squared deviations of ln(cost) from its mean."""
    inferences: Count = 0
    """Number of inferences of all finished applications."""
    output_tokens: Count = 0
    """Output tokens of all finished applications."""

    def add_sample(self, sample: Sample) -> None:
        self.samples += 1
        self.kv_token_time_mean += (sample.kv_token_time - self.kv_token_time_mean) / self.samples
        log_cost = math.log(sample.kv_token_time)
        deviation = log_cost - self.log_mean
        self.log_mean += deviation / self.samples
        self.log_squares += deviation * (log_cost - self.log_mean)
        self.inferences += sample.inferences
        self.output_tokens += sample.output_tokens

    def quantiles(self) -> tuple[KvTokenTime, KvTokenTime]:
        """Return p10 and p90 of the next application's cost, assumed log-normal.

        At least one sample is needed.

        The mean is always between them, even if very skewed samples would put it outside.
        """
        reach = reach_of_p90(self.log_squares, self.samples)
        return (
            min(self.kv_token_time_mean, math.exp(self.log_mean - reach)),
            max(self.kv_token_time_mean, math.exp(self.log_mean + reach)),
        )

    def mean_output_tokens(self) -> Tokens:
        """Return the mean output of an inference in tokens, rounded up."""
        return max(1, math.ceil(self.output_tokens / self.inferences))

    @model_validator(mode="after")
    def _check_sums(self) -> Self:
        if self.inferences < self.samples:
            raise ValueError(f"inferences is {self.inferences}: {self.samples} or more is allowed")
        try:
            self.quantiles()
        except OverflowError:
            raise ValueError(
                f"log_mean is {self.log_mean!r} and log_squares {self.log_squares!r}:"
                " costs beyond what a float holds"
            ) from None
        return self


@dataclass(slots=True)
class InputForm(Stored):
    """Mean length, word count and other measures of a class's inputs."""

    samples: Count = 0
    log_measures: Annotated[
        list[NotNegative], Field(min_length=len(MEASURES), max_length=len(MEASURES))
    ] = field(default_factory=lambda: [0.0] * len(MEASURES))
    """Mean of ln(1 + measure) for each measure of an input."""

    def add_input(self, features: InputFeatures) -> None:
        self.samples += 1
        for i, measure in enumerate(features.measures):
            self.log_measures[i] += (math.log1p(measure) - self.log_measures[i]) / self.samples

    def distance(self, features: InputFeatures) -> float:
        """Return the distance of an input from the mean input of the class.

        The distance is the root mean square over ln(1 + measure).
        """
        pairs = zip(features.measures, self.log_measures, strict=True)
        squares = sum((math.log1p(measure) - mean) ** 2 for measure, mean in pairs)
        return math.sqrt(squares / len(MEASURES))


def cost_among_neighbours(
    features: InputFeatures,
    prior: KvTokenTime,
    known: Iterable[tuple[InputForm, float]],
) -> KvTokenTime | None:
    """Return the expected cost of an input from classes with similar inputs; None without classes.

    Args:
        features: Features of the input.
        prior: Cost of one inference with this input, token·iterations, > 0.
        known: Form of each known class, and the mean of its ln(kv_token_time).
    """
    total = weighted = 0.0
    for form, log_cost in known:
        if form.samples >= _LEAST_SAMPLES:
            weight = math.exp(-form.distance(features))
            total += weight
            weighted += weight * log_cost
    if not total:
        return None
    return math.exp((math.log(prior) + weighted / total) / 2)
