"""The predictor that knows only the class: the mean cost of what has finished."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from justitia_ray.cost import kv_token_time as cost_of
from justitia_ray.errors import ConfigError, RequestError, StoreError
from justitia_ray.predictor.bounded_classes import best_known, filed_under
from justitia_ray.predictor.class_statistics import ClassStatistics
from justitia_ray.predictor.estimate import Estimate
from justitia_ray.predictor.sample import Sample
from justitia_ray.units import KvTokenTime, Tokens

_CLASS_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")

_PRIOR_SPREAD = 10.0
"""p10 and p90 of a prior lie this factor away: as far off as the errors that settling was tried
with (λ = 10). A convention; nothing is known yet."""


def check_class_name(application_class: str) -> None:
    """Accept 1 to 64 letters, digits, dots, underscores and hyphens.

    Raises:
        RequestError: Otherwise; class names come from callers and become keys and metric labels.
    """
    if not _CLASS_NAME.fullmatch(application_class):
        raise RequestError(
            f"application_class is {application_class[:80]!r}: 1 to 64 of A-Z a-z 0-9 . _ - are"
            " allowed",
            param="application_class",
        )


class ClassMeanPredictor:
    """Estimates an application by the mean of the finished ones of its class.

    Before `minimum_samples` have finished, the prior stands in: one inference of the given input
    that uses all its `max_tokens`. It is replaced, not blended with the mean: it says nothing of
    how many inferences an application makes, and a mixture would be off by that factor for longer.
    On recorded runs of nine classes the prior (the first prompt, 256 output tokens) was off by a
    factor of 5.5 (geometric mean; 324 for document merging), the mean of one sample by 1.84, of
    three by 1.70, of ten by 1.69, so one sample is enough. All of `max_tokens`, because what is
    charged too much is refunded when the application ends, and an unknown class should not get
    ahead of the known ones.

    Class names come from callers, so their number is bounded: beyond `max_classes` new ones share
    the statistics of `other`, which is not counted.

    The interface is that of every predictor: other kinds take the same call, look at more of the
    input and name another source.
    """

    def __init__(
        self,
        prior_output_tokens: Tokens = 256,
        max_classes: int = 256,
        minimum_samples: int = 1,
    ) -> None:
        """Start with no knowledge.

        Args:
            prior_output_tokens: Output of an unknown inference without `max_tokens`; about the mean
                of chat traffic (256 in the VTC paper's sample, 211 in Azure's of 2023).
            max_classes: Classes with statistics of their own.
            minimum_samples: Finished applications from which on a class's mean is used.

        Raises:
            ConfigError: If one of them is below 1.
        """
        for name, value in (
            ("prior_output_tokens", prior_output_tokens),
            ("max_classes", max_classes),
            ("minimum_samples", minimum_samples),
        ):
            if value < 1:
                raise ConfigError(f"{name} is {value}: 1 or more is allowed")
        self._prior_output_tokens = prior_output_tokens
        self._max_classes = max_classes
        self._minimum_samples = minimum_samples
        self._classes: dict[str, ClassStatistics] = {}

    def estimate(
        self,
        application_class: str,
        input_tokens: Tokens,
        max_tokens: Tokens | None,
        input_text: str = "",
    ) -> Estimate:
        """Return what an application is expected to cost; changes nothing.

        Args:
            application_class: A known or a new class.
            input_tokens: Tokens of the application's input.
            max_tokens: Most output tokens of one of its inferences; None if not bounded.
            input_text: The input itself, which this predictor does not look at.

        Raises:
            RequestError: If the class name has another form or a count is below its least.
        """
        check_class_name(application_class)
        for name, value, least in (
            ("input_tokens", input_tokens, 0),
            ("max_tokens", max_tokens, 1),
        ):
            if value is not None and value < least:
                raise RequestError(f"{name} is {value}: {least} or more is allowed", param=name)
        known = self._classes.get(self.filed_under(application_class))
        if known is None or known.samples < self._minimum_samples:
            return self._prior(input_tokens, max_tokens)
        p10, p90 = known.quantiles()
        output_tokens = known.mean_output_tokens()
        return Estimate(
            kv_token_time=known.kv_token_time_mean,
            p10=p10,
            p90=p90,
            output_tokens=output_tokens if max_tokens is None else min(output_tokens, max_tokens),
            source="class",
        )

    def observe(
        self,
        application_class: str,
        kv_token_time: KvTokenTime,
        inferences: int,
        output_tokens: Tokens,
        input_text: str = "",
    ) -> str:
        """Learn from an application that finished (not from one that was cut short).

        Args:
            application_class: Its class.
            kv_token_time: What it really cost, in token·iterations, > 0.
            inferences: How many inferences it made, at least 1.
            output_tokens: Output tokens of all of them together.
            input_text: Its input, which this predictor does not look at.

        Returns:
            The class that now knows it, `other` beyond the bound: whose statistics to store.

        Raises:
            RequestError: If the class name has another form.
            ValueError: If a number is out of its range.
        """
        check_class_name(application_class)
        if not 0 < kv_token_time < math.inf:
            raise ValueError(f"kv_token_time is {kv_token_time!r}: a finite number > 0 is allowed")
        if inferences < 1 or output_tokens < 0:
            raise ValueError(
                f"inferences is {inferences}, output_tokens {output_tokens}: at least 1 and 0 are"
                " allowed"
            )
        name = self.filed_under(application_class)
        self._classes.setdefault(name, ClassStatistics()).add(
            float(kv_token_time), inferences, output_tokens
        )
        return name

    def relearn(self, name: str, samples: Iterable[Sample]) -> None:
        """Know only these of a class: those before them were of another kind.

        Args:
            name: The class, as `observe` returned it.
            samples: At least one.
        """
        statistics = ClassStatistics()
        for sample in samples:
            statistics.add(sample.kv_token_time, sample.inferences, sample.output_tokens)
        self._classes[name] = statistics

    def log_mean(self, name: str) -> float | None:
        """Return the mean of ln(kv_token_time) of a class, None if nothing is known of it."""
        known = self._classes.get(name)
        return None if known is None else known.log_mean

    def filed_under(self, application_class: str) -> str:
        """Return whose statistics a class has: its own, or those of `other` beyond the bound."""
        return filed_under(application_class, self._classes, self._max_classes)

    def statistics(self, application_class: str) -> dict[str, Any]:
        """Return what is known of a class, for `restore`; JSON.

        Raises:
            KeyError: If nothing is known of it.
        """
        return self._classes[application_class].to_dict()

    def all_statistics(self) -> dict[str, dict[str, Any]]:
        """Return what is known of every class, for `restore`; JSON."""
        return {name: known.to_dict() for name, known in self._classes.items()}

    def restore(self, classes: Mapping[str, Mapping[str, Any]]) -> None:
        """Forget everything and know what `statistics` returned, by class.

        If there are more classes than the bound, those with the fewest samples are left out.

        Raises:
            StoreError: If a name or statistics have another form; nothing was changed. The message
                names the class and the field.
        """
        restored: dict[str, ClassStatistics] = {}
        for name, values in classes.items():
            try:
                check_class_name(name)
                restored[name] = ClassStatistics.from_dict(values)
            except (RequestError, ValueError) as error:
                raise StoreError(f"statistics of class {name[:80]!r}: {error}") from error
        self._classes = best_known(restored, lambda known: known.samples, self._max_classes)

    def _prior(self, input_tokens: Tokens, max_tokens: Tokens | None) -> Estimate:
        output_tokens = self._prior_output_tokens if max_tokens is None else max_tokens
        cost = cost_of(input_tokens, output_tokens)
        return Estimate(
            kv_token_time=cost,
            p10=cost / _PRIOR_SPREAD,
            p90=cost * _PRIOR_SPREAD,
            output_tokens=output_tokens,
            source="prior",
        )
