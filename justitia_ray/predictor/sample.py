"""What is kept of a finished application to learn from."""

from dataclasses import dataclass

from justitia_ray.predictor.input_features import InputFeatures
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
