"""The class mean: the predicted cost is the mean cost of finished applications of the class."""

from collections.abc import Iterable, Mapping
from typing import Any

from justitia_ray.cost import kv_token_time as cost_of
from justitia_ray.errors import RequestError, StoreError
from justitia_ray.predictor.class_names import check_class_name, entry_of_class, largest_classes
from justitia_ray.predictor.class_statistics import ClassStatistics
from justitia_ray.predictor.estimate import Estimate
from justitia_ray.predictor.observation import Sample
from justitia_ray.units import Tokens

_PRIOR_SPREAD = 10.0
"""Ratio of p90 to the cost, and of the cost to p10, while nothing of a class is known.
Charging was tested with predictions wrong by up to this factor (λ = 10).
"""


class ClassMeanPredictor:
    """Predicts the cost of an application as the mean of its class.

    Before an application of the class has finished, the prior is used: one inference of the given
    input with all its `max_tokens`. Afterwards the mean alone is used: the prior does not reflect
    the number of inferences of an application, and a mixture would be wrong by that factor for
    longer.

    On recorded runs of nine classes the prior (the first prompt, 256 output tokens) was wrong by a
    factor of 5.5 (geometric mean; 324 for document merging), the mean of one sample by 1.84, of
    three by 1.70, of ten by 1.69, so one sample is enough. The prior uses all of `max_tokens`,
    because an overcharge is refunded when the application ends, and an unknown class should not
    overtake known classes.

    Class names come from callers, so their number is bounded: beyond `max_classes` new classes
    share the statistics of `other`, which is not counted.
    """

    def __init__(self, prior_output_tokens: Tokens = 256, max_classes: int = 256) -> None:
        """Create a predictor without learned classes.

        Args:
            prior_output_tokens: Output of an unknown inference without `max_tokens`; about the mean
                of chat traffic (256 in the VTC paper's sample, 211 in Azure's of 2023).
            max_classes: Largest number of classes with their own statistics.
        """
        self._prior_output_tokens = prior_output_tokens
        self._max_classes = max_classes
        self._classes: dict[str, ClassStatistics] = {}

    def estimate(
        self,
        application_class: str,
        input_tokens: Tokens,
        max_tokens: Tokens | None,
    ) -> Estimate:
        """Return the expected cost of an application.

        Args:
            application_class: A known or a new class.
            input_tokens: Tokens of the application's input.
            max_tokens: Largest output of one of its inferences; None if not bounded.

        Raises:
            RequestError: If the class name is not valid or a count is below its minimum.
        """
        check_class_name(application_class)
        for name, value, least in (
            ("input_tokens", input_tokens, 0),
            ("max_tokens", max_tokens, 1),
        ):
            if value is not None and value < least:
                raise RequestError(f"{name} is {value}: {least} or more is allowed", param=name)
        known = self._classes.get(self.entry_of(application_class))
        if known is None:
            return self._prior_estimate(input_tokens, max_tokens)
        p10, p90 = known.quantiles()
        output_tokens = known.mean_output_tokens()
        return Estimate(
            kv_token_time=known.kv_token_time_mean,
            p10=p10,
            p90=p90,
            output_tokens=output_tokens if max_tokens is None else min(output_tokens, max_tokens),
            source="class",
        )

    def output_tokens(self, application_class: str, max_tokens: Tokens) -> tuple[Tokens, Tokens]:
        """Return the expected output of an inference, and the usual output of similar inferences.

        They differ for an unknown class: the first is then `max_tokens`, as in `estimate`, the
        second the default for an inference without `max_tokens`.

        Args:
            application_class: A known or a new class.
            max_tokens: Largest output of the inference, at least 1.
        """
        known = self._classes.get(self.entry_of(application_class))
        if known is None:
            return max_tokens, min(max_tokens, self._prior_output_tokens)
        length = min(max_tokens, known.mean_output_tokens())
        return length, length

    def observe_cost(self, application_class: str, sample: Sample) -> str:
        """Learn the cost of a finished application.

        Returns:
            The class whose statistics count the application: `other` beyond the bound.

        Raises:
            RequestError: If the class name is not valid.
        """
        check_class_name(application_class)
        name = self.entry_of(application_class)
        self._classes.setdefault(name, ClassStatistics()).add_sample(sample)
        return name

    def relearn(self, name: str, samples: Iterable[Sample]) -> None:
        """Replace a changed class's statistics by the statistics of its latest samples.

        Args:
            name: The class, as `observe_cost` returned it.
            samples: At least one.
        """
        statistics = ClassStatistics()
        for sample in samples:
            statistics.add_sample(sample)
        self._classes[name] = statistics

    def log_mean(self, name: str) -> float | None:
        """Return the mean of ln(cost) of a class; None for an unknown class."""
        known = self._classes.get(name)
        return None if known is None else known.log_mean

    def entry_of(self, application_class: str) -> str:
        return entry_of_class(application_class, self._classes, self._max_classes)

    def statistics(self, application_class: str) -> dict[str, Any]:
        """Return the statistics of one application class as JSON that `restore` accepts.

        Raises:
            KeyError: If the class is unknown.
        """
        return self._classes[application_class].to_dict()

    def all_statistics(self) -> dict[str, dict[str, Any]]:
        """Return the statistics of every application class as JSON that `restore` accepts."""
        return {name: known.to_dict() for name, known in self._classes.items()}

    def restore(self, classes: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the statistics of all classes by JSON from `statistics`.

        If there are more classes than the bound, those with the fewest samples are dropped.

        Raises:
            StoreError: If a name or statistics are not valid, and nothing was changed; the message
                names class and field.
        """
        restored: dict[str, ClassStatistics] = {}
        for name, values in classes.items():
            try:
                check_class_name(name)
                restored[name] = ClassStatistics.from_dict(values)
            except (RequestError, ValueError) as error:
                raise StoreError(f"statistics of class {name[:80]!r}: {error}") from error
        self._classes = largest_classes(restored, lambda known: known.samples, self._max_classes)

    def _prior_estimate(self, input_tokens: Tokens, max_tokens: Tokens | None) -> Estimate:
        output_tokens = self._prior_output_tokens if max_tokens is None else max_tokens
        cost = cost_of(input_tokens, output_tokens)
        return Estimate(
            kv_token_time=cost,
            p10=cost / _PRIOR_SPREAD,
            p90=cost * _PRIOR_SPREAD,
            output_tokens=output_tokens,
            source="prior",
        )
