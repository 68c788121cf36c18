"""Whether the errors of a predictor have changed: Page's test, one sample at a time."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from justitia_ray.predictor.number_record import checked_numbers

_WARM_UP = 10
"""Errors from which mean and spread are learned before any is judged."""
_CLIP = 3.0
"""In standard deviations: one application that retries for ever is no change of all of them."""
_PRIOR_VARIANCE = 0.25
_PRIOR_WEIGHT = 5
"""As in `class_statistics`: an error of 0.5 in ln(cost), as much as five samples say so."""

TOLERANCE = 0.5
THRESHOLD = 10.0
"""In standard deviations. Of 200 runs of 2,000 errors without a change, 1 % raised an alarm if the
errors were normal, 3 % Laplace, 7 % exponential, 18 % with one in seven of 20 times the cost (CG's
form); with a tolerance of 0.25 and a threshold of 10, 59 to 93 %. A change by 2 standard deviations
was seen after 8 samples in the median, one by 3 after 5."""


@dataclass(slots=True)
class ChangeTest:
    """Page-Hinkley test for a change of the mean, to either side.

    Sums how far values lie above (below) the mean so far, less a tolerance, and never below 0; it
    fires when a sum exceeds the threshold. The change began where that sum last was 0, which is the
    most likely place. Source: Page, Continuous inspection schemes, Biometrika 41 (1954); with the
    mean estimated as in Hinkley, Biometrika 58 (1971), and standardised by the spread so far.
    """

    values: int = 0
    """Values since the last change."""
    mean: float = 0.0
    squares: float = 0.0
    """Sum of squared deviations from the mean."""
    above: float = 0.0
    below: float = 0.0
    above_since: int = 0
    """Values that `above` has been greater than 0 for."""
    below_since: int = 0

    def add(self, value: float) -> int | None:
        """Count a value; return how many values the change takes in, this one included, if any.

        After a change the test begins anew and knows nothing.
        """
        if self.values >= _WARM_UP:
            squares = self.squares + _PRIOR_WEIGHT * _PRIOR_VARIANCE
            spread = math.sqrt(squares / (self.values - 1 + _PRIOR_WEIGHT))
            score = max(-_CLIP, min(_CLIP, (value - self.mean) / spread))
            self.above = max(0.0, self.above + score - TOLERANCE)
            self.below = max(0.0, self.below - score - TOLERANCE)
            self.above_since = self.above_since + 1 if self.above else 0
            self.below_since = self.below_since + 1 if self.below else 0
            if max(self.above, self.below) > THRESHOLD:
                since = self.above_since if self.above > self.below else self.below_since
                self.reset()
                return since
        self.values += 1
        deviation = value - self.mean
        self.mean += deviation / self.values
        self.squares += deviation * (value - self.mean)
        return None

    def reset(self) -> None:
        """Forget everything: another model is being judged."""
        fresh = type(self)()
        for field in fields(self):
            setattr(self, field.name, getattr(fresh, field.name))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON can say them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the test that `to_dict` was called on.

        Raises:
            ValueError: If a field is missing, unknown or wrong; the message names it.
        """
        numbers = checked_numbers(cls, values)
        for name, value in numbers.items():
            if value < 0 and name != "mean":
                raise ValueError(f"{name} is {value!r}: >= 0 is allowed")
        return cls(**numbers)  # type: ignore[arg-type]
