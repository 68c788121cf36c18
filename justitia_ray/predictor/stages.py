"""Statistics of the stages of each class: lengths, and the remaining work from each stage on.

Running sums over finished applications, by class and stage (`core.stages` defines stages). They
predict the length of an inference from its stage and prompt, the remaining work of its application
at that stage, and the stages that usually follow. Models of the cost use the input of an
application; these statistics do not.
"""

import math
import operator
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self, TypeAlias

from pydantic import Field, model_validator

from justitia_ray.core.stages import MAXIMUM_STAGES, ExpectedStage, StageServed
from justitia_ray.cost import kv_token_time
from justitia_ray.errors import StoreError
from justitia_ray.predictor.class_names import entry_of_class, largest_classes
from justitia_ray.predictor.stored import Stored
from justitia_ray.units import KvTokenTime, Seconds, Tokens

_MEAN_WEIGHT = 1.0
_SLOPE_WEIGHT = 8.0
"""Weight, in applications, of two priors: a stage is like its class, and its output does not depend
on the prompt.

On recorded runs of eight classes the mean absolute error, over the mean length, was 0.325 after a
tenth of the runs and 0.311 after 80 %. With weights of 2 and 4 for the first prior it was 0.336 and
0.358 after a tenth; with weights of 2 to 32 for the second it was 0.333 to 0.347 (with 2 for the
first).
"""

_FAN_OUT_WEIGHT = 4.0
"""Weight, in applications, of the prior that remaining work does not depend on the stage's number
of inferences.
"""

CHARGE_FACTOR = 2.0

_LARGEST = 10**30
"""Limit of all sums in stored statistics, far above the sums of real applications."""
_Sum: TypeAlias = Annotated[float, Field(ge=0, le=_LARGEST, strict=True)]
_SignedSum: TypeAlias = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST, strict=True)]
_NO_SPREAD = 1e-9
"""Sum of squared deviations below which a spread counts as zero."""

_WIDEST = 3.0
"""Largest used deviation of a prompt length from the mean, in standard deviations."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """Expected length of an inference at a stage, and the remaining work of its application."""

    output_tokens: Tokens
    """Expected output of a sequence in tokens, at least 1."""
    inferences_to_come: float
    """Number of inferences of the application from this stage on, at least 1."""
    remaining_kv_token_time: KvTokenTime | None
    """Expected cost of the application from this stage on; None if unknown."""


def still_needed(
    expected: Expectation | None, output_tokens: Tokens, prompt_tokens: float, sequences: int
) -> KvTokenTime:
    """Return an application's work from a stage on, at least the work of its submitted inferences.

    Submitted inferences will be served, whatever the statistics of the class: an application of a
    new class that begins with forty inferences is larger than one inference. On the nine-class
    suite without earlier applications (300 applications at density 3, seeds 1 to 3, charged once)
    the mean completion time is 28 % above that with exact predictions; without this lower bound 155
    %, without later estimates 173 %.

    Args:
        expected: Expected remaining work from the stage table; None if the table has none.
        output_tokens: Length of one sequence of the inference.
        prompt_tokens: Prompt of one sequence.
        sequences: Sequences submitted at the stage so far, with this inference's.
    """
    submitted = sequences * kv_token_time(round(prompt_tokens), output_tokens)
    if expected is None or expected.remaining_kv_token_time is None:
        return submitted
    return max(submitted, expected.remaining_kv_token_time)


@dataclass(slots=True)
class StageStatistics(Stored):
    """Statistics of the applications of a class that reached a stage.

    Means and sums of squared deviations by Welford's recurrence (Technometrics 4, 1962). Lengths
    are those of an application's mean sequence in the stage, weighted by its number of sequences.
    """

    applications: Annotated[int, Field(ge=1, le=_LARGEST, strict=True)] = 0
    sequences: Annotated[int, Field(ge=0, le=_LARGEST, strict=True)] = 0
    prompt_mean: _Sum = 0.0
    prompt_squares: _Sum = 0.0
    output_mean: _Sum = 0.0
    products: _SignedSum = 0.0
    fan_out_mean: _Sum = 0.0
    fan_out_squares: _Sum = 0.0
    inferences_to_come: _Sum = 0.0
    kv_token_time_to_come: _Sum = 0.0
    fan_out_products: _SignedSum = 0.0
    longest_output_mean: _Sum | None = None
    """Mean output of the applications' longest sequences; None in tables of release 0.2.0."""
    gaps: Annotated[int, Field(ge=0, le=_LARGEST, strict=True)] | None = None
    """Number of applications whose pause after this stage is known."""
    gap_mean_s: _Sum | None = None
    """Mean pause in seconds before the next stage; None if no pause is known."""

    def add_application(self, stages: Sequence[StageServed]) -> None:
        first = stages[0]
        self.applications += 1
        inferences = sum(stage.inferences for stage in stages)
        cost = sum(stage.kv_token_time for stage in stages)
        from_fan_out = first.inferences - self.fan_out_mean
        self.fan_out_mean += from_fan_out / self.applications
        self.inferences_to_come += (inferences - self.inferences_to_come) / self.applications
        self.kv_token_time_to_come += (cost - self.kv_token_time_to_come) / self.applications
        self.fan_out_squares += from_fan_out * (first.inferences - self.fan_out_mean)
        self.fan_out_products += from_fan_out * (cost - self.kv_token_time_to_come)
        self._add_longest_output(first)
        if len(stages) > 1 and first.gap_s is not None:
            self._add_gap(first.gap_s)
        if first.sequences:
            self._add_lengths(
                first.sequences,
                first.prompt_tokens / first.sequences,
                first.output_tokens / first.sequences,
            )

    @property
    def compute_tokens(self) -> float:
        """Mean of Σ (p + 2d) over an application's inferences at this stage."""
        each = self.prompt_mean + 2 * self.output_mean
        return self.sequences * each / self.applications

    @property
    def longest_output(self) -> float:
        known = self.longest_output_mean
        return self.output_mean if known is None else known

    def output_tokens(self, prompt_tokens: float, class_mean: float) -> float:
        """Return the expected output of a sequence in tokens; may be below 1."""
        weight = self.applications if self.sequences else 0
        mean = (weight * self.output_mean + _MEAN_WEIGHT * class_mean) / (weight + _MEAN_WEIGHT)
        if self.prompt_squares <= _NO_SPREAD:
            return mean
        reach = _WIDEST * math.sqrt(self.prompt_squares / self.sequences)
        deviation = max(-reach, min(reach, prompt_tokens - self.prompt_mean))
        slope = self.products / self.prompt_squares * weight / (weight + _SLOPE_WEIGHT)
        return mean + slope * deviation

    def remaining(self, inferences: int) -> KvTokenTime:
        """Return the expected cost of an application from this stage on.

        A large fan-out usually means that later stages are large too.
        """
        if self.fan_out_squares <= _NO_SPREAD:
            return self.kv_token_time_to_come
        slope = self.fan_out_products / self.fan_out_squares
        slope *= self.applications / (self.applications + _FAN_OUT_WEIGHT)
        return max(0.0, self.kv_token_time_to_come + slope * (inferences - self.fan_out_mean))

    @model_validator(mode="after")
    def _check_counts(self) -> Self:
        if self.prompt_squares and not self.sequences:
            raise ValueError("sequences is 0: more is allowed where prompt_squares is above 0")
        return self

    def _add_longest_output(self, stage: StageServed) -> None:
        before = self.longest_output
        longest: float | None = stage.longest_output_tokens
        if longest is None:
            longest = stage.output_tokens / max(1, stage.sequences)
        self.longest_output_mean = before + (longest - before) / self.applications

    def _add_gap(self, gap_s: Seconds) -> None:
        self.gaps = (self.gaps or 0) + 1
        before = self.gap_mean_s or 0.0
        self.gap_mean_s = before + (gap_s - before) / self.gaps

    def _add_lengths(self, sequences: int, prompt: float, output: float) -> None:
        self.sequences += sequences
        share = sequences / self.sequences
        from_prompt = prompt - self.prompt_mean
        self.prompt_mean += share * from_prompt
        self.output_mean += share * (output - self.output_mean)
        self.prompt_squares += sequences * from_prompt * (prompt - self.prompt_mean)
        self.products += sequences * from_prompt * (output - self.output_mean)


class StageTable:
    """Statistics of the stages of every class."""

    def __init__(self, max_classes: int = 256) -> None:
        """Create an empty table; classes beyond `max_classes` share the entry `other`."""
        self._max_classes = max_classes
        self._classes: dict[str, list[StageStatistics]] = {}
        self._usual: dict[str, tuple[ExpectedStage, ...]] = {}
        """Usual stages of each class, cached until the class is observed again."""

    def observe_stages(self, application_class: str, stages: Sequence[StageServed]) -> str:
        """Learn the stages of a finished application; no effect if they are unknown.

        Returns:
            The class whose statistics count the application: `other` beyond the bound.
        """
        name = self._class_or_other(application_class)
        if stages:
            self._usual.pop(name, None)
            known = self._classes.setdefault(name, [])
            stages = stages[:MAXIMUM_STAGES]
            while len(known) < len(stages):
                known.append(StageStatistics())
            for stage, statistics in enumerate(known[: len(stages)]):
                statistics.add_application(stages[stage:])
        return name

    def expect(
        self,
        application_class: str,
        stage: int,
        prompt_tokens: float,
        max_tokens: Tokens | None,
        inferences: int = 1,
    ) -> Expectation | None:
        """Return the expected length of an inference at a stage, and the work that remains.

        Args:
            application_class: Class of the application.
            stage: Stage of the inference; the first is 0.
            prompt_tokens: Prompt of one of its sequences.
            max_tokens: Largest output of one of its sequences; None if not bounded.
            inferences: Inferences submitted at this stage so far, with this one.
        """
        known = self._classes.get(self._class_or_other(application_class))
        if not known:
            return None
        sequences = sum(statistics.sequences for statistics in known)
        if not sequences:
            return None
        mean = sum(s.sequences * s.output_mean for s in known) / sequences
        if stage >= len(known):
            return Expectation(_limit_output(mean, max_tokens), 1.0, None)
        statistics = known[stage]
        says_more = stage > 0 or inferences > statistics.fan_out_mean
        return Expectation(
            _limit_output(statistics.output_tokens(prompt_tokens, mean), max_tokens),
            max(1.0, statistics.inferences_to_come),
            statistics.remaining(inferences) if says_more else None,
        )

    def expected_stages(self, application_class: str, stage: int) -> tuple[ExpectedStage, ...]:
        """Return the expected stages of an application from `stage` on.

        A stage is expected if at least half of the applications that reached `stage` reached it,
        too. Each has the means of the applications that had it. Empty if no application of the
        class has reached `stage`.

        Deadlines under VTC predicted with these stages (`lab.foretold`) differ from those with true
        stages by 25 % when an application arrives, and by 17 % when a later stage begins: means
        over the classes of the nine-class suite (300 applications in 540 and in 270 s, seeds 201
        and 203, a table of 900 others). With all stages ever seen, weighted by the chance that they
        are reached, they differ by 33 and 25 %. Scaling by a larger fan-out than usual gains half a
        percentage point.
        """
        name = self._class_or_other(application_class)
        known = self._classes.get(name, ())
        if stage >= len(known):
            return ()
        reached = known[stage].applications
        end = bisect_left(known, True, key=lambda later: 2 * later.applications < reached)
        if name not in self._usual:
            self._usual[name] = _usual_stages(known)
        return self._usual[name][stage:end]

    def stages_to_send(
        self, application_class: str, stage: int, inferences: int
    ) -> tuple[ExpectedStage, ...]:
        """Return the expected stages to send with an inference that begins a later stage.

        The stages from the first on were sent when the application was opened.
        """
        begins = stage > 0 and inferences == 1
        return self.expected_stages(application_class, stage) if begins else ()

    def to_dict(self) -> dict[str, list[dict[str, Any]]]:
        """Return the statistics of every class by stage, as JSON."""
        return {
            name: [statistics.to_dict() for statistics in stages]
            for name, stages in self._classes.items()
        }

    @classmethod
    def from_dict(cls, classes: Mapping[str, Any], max_classes: int = 256) -> Self:
        """Return the table from the JSON of `to_dict`.

        If there are more classes than the bound, those with the fewest applications are dropped.

        Raises:
            StoreError: If statistics are not valid; the message names class, stage and field.
        """
        table = cls(max_classes)
        restored = {name: _restore_stages(name, stages) for name, stages in classes.items()}
        table._classes = largest_classes(
            restored, lambda stages: stages[0].applications, max_classes
        )
        return table

    def _class_or_other(self, application_class: str) -> str:
        return entry_of_class(application_class, self._classes, self._max_classes)


def _usual_stages(known: Sequence[StageStatistics]) -> tuple[ExpectedStage, ...]:
    """Return the mean of each stage of a class over the applications that reached it.

    Rounded to whole tokens and hundredths, because all digits are stored with each application.
    """
    to_come = [here.applications * here.kv_token_time_to_come for here in known]
    costs = map(operator.sub, to_come, [*to_come[1:], 0.0])
    return tuple(
        ExpectedStage(
            round(here.fan_out_mean, 2),
            round(here.compute_tokens),
            max(0, round(cost / here.applications)),
            round(here.longest_output),
            round(here.gap_mean_s or 0, 2),
        )
        for here, cost in zip(known, costs, strict=True)
    )


def _restore_stages(name: str, stages: object) -> list[StageStatistics]:
    where = f"stages of class {name[:80]!r}"
    if not isinstance(stages, list) or not 1 <= len(stages) <= MAXIMUM_STAGES:
        raise StoreError(f"{where}: a list of 1 to {MAXIMUM_STAGES} stages is allowed")
    try:
        return [StageStatistics.from_dict(s, f"stage {n}") for n, s in enumerate(stages)]
    except ValueError as error:
        raise StoreError(f"{where}, {error}") from error


def _limit_output(output_tokens: float, max_tokens: Tokens | None) -> Tokens:
    expected = max(1, math.ceil(round(output_tokens, 6)))
    return expected if max_tokens is None else min(expected, max_tokens)
