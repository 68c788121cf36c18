"""One finished application as JSON: what the ingress tells, what waits in Redis to be learned."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from justitia_ray.core.actions import EndApplication
from justitia_ray.core.entities import Outcome
from justitia_ray.core.stages import MAXIMUM_STAGES, StageServed
from justitia_ray.errors import RequestError
from justitia_ray.predictor.class_mean import check_class_name
from justitia_ray.predictor.sample import Sample
from justitia_ray.predictor.sample_record import sample_from_dict, sample_to_dict


@dataclass(frozen=True, slots=True)
class Observation:
    """An application that ran to its end."""

    application_class: str
    sample: Sample
    stages: tuple[StageServed, ...] = ()
    """What each of its stages took; none if that is not known."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON can say them."""
        return {
            "application_class": self.application_class,
            "sample": sample_to_dict(self.sample),
            "stages": [list(stage) for stage in self.stages],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the observation that `to_dict` was called on.

        Raises:
            ValueError: If a field is missing, unknown or wrong; the message names it.
        """
        if wrong := sorted({"application_class", "sample", "stages"} ^ set(values)):
            raise ValueError(f"fields missing or unknown: {', '.join(wrong)}")
        name, sample, stages = values["application_class"], values["sample"], values["stages"]
        if not isinstance(name, str):
            raise ValueError(f"application_class is {name!r:.80}: a text is allowed")
        try:
            check_class_name(name)
        except RequestError as error:
            raise ValueError(str(error)) from error
        if not isinstance(stages, list) or len(stages) > MAXIMUM_STAGES:
            raise ValueError(f"stages must be a list of at most {MAXIMUM_STAGES}")
        return cls(name, sample_from_dict(sample), tuple(_stage(stage) for stage in stages))


def is_lesson(ended: EndApplication) -> bool:
    """Return whether an application ran to its end: of others the true cost is not known."""
    return ended.outcome is Outcome.FINISHED and not ended.failed and ended.kv_token_time > 0


def _stage(values: object) -> StageServed:
    if (
        not isinstance(values, list)
        or len(values) != len(StageServed._fields)
        or any(type(v) not in (int, float) or not 0 <= v < math.inf for v in values)
        or any(type(v) is not int for v in values[:-1])
    ):
        names = ", ".join(StageServed._fields)
        raise ValueError(f"each of stages must be [{names}], numbers >= 0")
    return StageServed(*values)
