"""What a predictor answers."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self, TypeAlias, get_args

from justitia_ray.units import KvTokenTime, Tokens

Source: TypeAlias = Literal["model", "class", "neighbours", "prior"]
"""What an estimate rests on: a model of the class that looked at the input, the mean of the class,
the means of other classes with inputs of like form, or nothing but the request."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The predicted cost of one application.

    Raises:
        ValueError: If a number is negative or not finite, p10, kv_token_time and p90 are out of
            order, or the source is unknown; the message names the field.
    """

    kv_token_time: KvTokenTime
    """Cost of the whole application, what its charge starts from; token·iterations."""
    p10: KvTokenTime
    """Nine of ten applications like it cost more."""
    p90: KvTokenTime
    """Nine of ten applications like it cost less."""
    output_tokens: Tokens
    """Mean output of one of its inferences, at least 1."""
    source: Source

    def __post_init__(self) -> None:
        for name in ("p10", "kv_token_time", "p90"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value!r}: a finite number >= 0 is allowed")
        if not self.p10 <= self.kv_token_time <= self.p90:
            raise ValueError(
                f"kv_token_time is {self.kv_token_time!r}: p10 {self.p10!r} to p90 {self.p90!r} is"
                " allowed"
            )
        if type(self.output_tokens) is not int or self.output_tokens < 1:
            raise ValueError(f"output_tokens is {self.output_tokens!r}: an integer >= 1 is allowed")
        if self.source not in get_args(Source):
            raise ValueError(f"source is {self.source!r}: one of {get_args(Source)} is allowed")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON can say them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the estimate that `to_dict` was called on.

        Raises:
            ValueError: If a field is missing, unknown or wrong; the message names it.
        """
        expected = {field.name for field in fields(cls)}
        if wrong := sorted(expected ^ set(values)):
            raise ValueError(f"estimate: fields missing or unknown: {', '.join(wrong)}")
        return cls(**values)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
