"""Observations of finished applications: a sample of each, and its JSON form.

An ingress sends observations to the predictor, Redis stores them until they are learned, and the
training process reads samples.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, GetPydanticSchema, model_serializer

from justitia_ray.core.actions import EndApplication
from justitia_ray.core.entities import Outcome
from justitia_ray.core.stages import MAXIMUM_STAGES, StageServed
from justitia_ray.cost import kv_token_time
from justitia_ray.predictor.class_names import ClassName
from justitia_ray.predictor.input_features import InputFeatures, features_of
from justitia_ray.predictor.stored import AtLeastOne, Count, NotNegative, Positive, Stored
from justitia_ray.units import Tokens

LEAST_TRAINED_ON = 5
"""Minimum number of samples for training; with fewer samples the class mean is as good."""
LEAST_HELD_BACK = 3
LEAST_MINIMUM_SAMPLES = LEAST_TRAINED_ON + LEAST_HELD_BACK
"""Minimum number of samples with which a model of a class can be trained and compared. It is
defined in this module because the configuration starts faster without numpy.
"""


@dataclass(frozen=True, slots=True)
class Sample(Stored):
    """A finished application, as used for training and tests."""

    kv_token_time: Positive
    """True cost of the application, in token·iterations."""
    inferences: AtLeastOne
    """Number of the application's inferences."""
    output_tokens: Count
    """Output tokens of all inferences of the application."""
    features: InputFeatures | None
    """Features of the application's input; None if the input is unknown."""
    input_text: str | None = None
    """Input text, kept only in offline training or with the setting `store_inputs`."""

    @classmethod
    def of_calls(cls, calls: Iterable[tuple[Tokens, Tokens]], text: str) -> Self:
        """Return the sample of a run with known input and calls.

        Args:
            calls: Prompt and output tokens of each inference; at least one.
            text: Input text, which is stored in the sample.
        """
        known = tuple(calls)
        return cls(
            kv_token_time=float(sum(kv_token_time(p, d) for p, d in known)),
            inferences=len(known),
            output_tokens=sum(d for _, d in known),
            features=features_of(text),
            input_text=text,
        )

    def without_text(self) -> Self:
        """Return a copy without the input text, for sending or storing."""
        return replace(self, input_text=None)

    @model_serializer(mode="wrap")
    def _omit_missing_text(self, serialise: Callable[[Self], dict[str, Any]]) -> dict[str, Any]:
        values = serialise(self)
        if self.input_text is None:
            del values["input_text"]
        return values


def _add_later_fields(values: object) -> object:
    if isinstance(values, list | tuple) and len(values) == 5:
        return (*values, None, None)
    return values


_StageNumbers = Annotated[
    tuple[Count, Count, Count, Count, NotNegative, Count | None, NotNegative | None],
    BeforeValidator(_add_later_fields),
    AfterValidator(StageServed._make),
]
_Stage = Annotated[
    StageServed, GetPydanticSchema(lambda _, handler: handler.generate_schema(_StageNumbers))
]
"""Stage of an application, with limits on its numbers."""


@dataclass(frozen=True, slots=True)
class Observation(Stored):
    """A finished application with its class and stages, from which the predictor learns."""

    application_class: ClassName
    sample: Sample
    stages: Annotated[tuple[_Stage, ...], Field(max_length=MAXIMUM_STAGES)] = ()
    """Work of each stage of the application; empty if unknown."""


_CLOSED_BY_CALLERS = ("", "header")
"""Rules that recognise an application by data from its caller, where the caller also closes it."""


def is_lesson(ended: EndApplication) -> bool:
    """Return whether an application ended as planned; only then a predictor may learn its cost.

    A recognised session or conversation, which no caller closes, ends as planned when it expires.
    """
    by_idling = ended.outcome is Outcome.EXPIRED and ended.recognized_by not in _CLOSED_BY_CALLERS
    ran = ended.outcome is Outcome.FINISHED or by_idling
    return ran and not ended.failed and ended.kv_token_time > 0
