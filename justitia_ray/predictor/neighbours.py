"""What an unknown class may cost, from classes whose inputs have a like form.

The cost is the geometric mean of two guesses: the prior, which is one inference of the request's
own size, and the known classes' costs, each weighted by how near its inputs are in form. Chosen on
the eight recorded classes that have inputs, each left out in turn (60 runs a class known, 40
guessed): off by a factor of 5.8 in the geometric mean over the classes, the prior alone 7.5, the
classes alone 6.3. Nearest by words (cosine of TF-IDF) was worse than the prior: 11.6 with one
neighbour, 8.7 with three; words of unlike tasks meet by chance. Document merging, 700 times as
dear as its neighbours, is beyond all of them.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from justitia_ray.predictor.input_features import MEASURES, InputFeatures
from justitia_ray.units import KvTokenTime

_LEAST_SAMPLES = 3
"""A class of fewer says little of its form."""


@dataclass(slots=True)
class InputForm:
    """Mean form of the inputs of one class."""

    samples: int = 0
    log_measures: list[float] = field(default_factory=lambda: [0.0] * len(MEASURES))
    """Mean of ln(1 + measure), one for each of MEASURES."""

    def add(self, features: InputFeatures) -> None:
        """Count one input."""
        self.samples += 1
        for i, measure in enumerate(features.measures):
            self.log_measures[i] += (math.log1p(measure) - self.log_measures[i]) / self.samples

    def distance(self, features: InputFeatures) -> float:
        """Return how far an input is in form: the root mean square over ln(1 + measure)."""
        pairs = zip(features.measures, self.log_measures, strict=True)
        squares = sum((math.log1p(measure) - mean) ** 2 for measure, mean in pairs)
        return math.sqrt(squares / len(MEASURES))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON can say them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the form that `to_dict` was called on.

        Raises:
            ValueError: If a field is missing, unknown or wrong; the message names it.
        """
        if wrong := sorted({"samples", "log_measures"} ^ set(values)):
            raise ValueError(f"fields missing or unknown: {', '.join(wrong)}")
        samples, means = values["samples"], values["log_measures"]
        if type(samples) is not int or samples < 0:
            raise ValueError(f"samples is {samples!r}: an integer >= 0 is allowed")
        if (
            not isinstance(means, list)
            or len(means) != len(MEASURES)
            or any(type(mean) not in (int, float) or not 0 <= mean < math.inf for mean in means)
        ):
            raise ValueError(f"log_measures must be {len(MEASURES)} finite numbers >= 0")
        return cls(samples, list(means))


def cost_among_neighbours(
    features: InputFeatures,
    prior: KvTokenTime,
    known: Iterable[tuple[InputForm, float]],
) -> KvTokenTime | None:
    """Return what an input of an unknown class may cost, or None if no class is known.

    Args:
        features: Of the input.
        prior: What it would cost as one inference, token·iterations, > 0.
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
