"""What is kept of a finished application to learn from."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from justitia_ray.cost import kv_token_time
from justitia_ray.predictor.input_features import InputFeatures, features_of
from justitia_ray.units import KvTokenTime, Tokens


@dataclass(frozen=True, slots=True)
class Sample:
    """One application that ran to its end."""

    kv_token_time: KvTokenTime
    """What it really cost, > 0."""
    inferences: int
    """How many it made, at least 1."""
    output_tokens: Tokens
    """Of all of them together."""
    features: InputFeatures | None
    """Of its input; None if that was not known."""
    input_text: str | None = None
    """Kept only where the configuration says `store_inputs`, and in offline training."""

    @classmethod
    def of_calls(cls, calls: Iterable[tuple[Tokens, Tokens]], text: str) -> Self:
        """Return the sample of a run whose input and calls are known.

        Args:
            calls: Prompt and output tokens of each inference; at least one.
            text: The input, which is kept.
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
        """Return the same without the text, to be sent or stored."""
        return replace(self, input_text=None)
