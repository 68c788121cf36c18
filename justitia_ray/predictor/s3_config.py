"""Sizes and training of the S3 rival; needs neither torch nor transformers."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

from justitia_ray.errors import ConfigError


@dataclass(frozen=True, slots=True)
class S3Config:
    """A DistilBERT regressor and how it is fine-tuned; by default DistilBERT at full size.

    The papers say of theirs that it is DistilBERT with 66 million parameters, trained on the same
    samples as the MLPs for about 2 h on a V100 (v1, Sec. IV-B and Table II); learning rate, batches
    and epochs are the usual ones of fine-tuning (Devlin et al. 2019, App. A.3), not theirs.

    Raises:
        ConfigError: If a value is out of range; field, value and what is allowed are named.
    """

    layers: int = 6
    heads: int = 12
    dim: int = 768
    """Width of a token's state; a multiple of `heads`."""
    hidden_dim: int = 3072
    vocabulary: int = 30_522
    """Most word pieces, where the tokenizer is built from the training texts."""
    max_length: int = 512
    """Word pieces that are read of an input; what is beyond is cut off."""
    epochs: int = 4
    batch_size: int = 16
    learning_rate: float = 5e-5
    weight_decay: float = 0.01
    held_back: float = 0.1
    """Share of the samples that is not trained on: the spread is that of their residuals."""
    target: Literal["log", "cost"] = "log"
    """What the squared error is of: ln(cost), or the cost itself."""
    names_class: bool = False
    """Whether the class's name stands before the text. The papers' S3 knows only the text."""

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigError(f"{name} is {value!r}: a whole number >= {least} is allowed")
        if self.dim % self.heads:
            raise ConfigError(f"dim is {self.dim}: a multiple of heads, {self.heads}, is allowed")
        if self.max_length > MOST_PIECES:
            raise ConfigError(f"max_length is {self.max_length}: at most {MOST_PIECES} is allowed")
        for name, most in (("learning_rate", 1.0), ("weight_decay", 1.0), ("held_back", 0.5)):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value <= most:
                raise ConfigError(f"{name} is {value!r}: a number from 0 to {most:g} is allowed")
        if self.target not in ("log", "cost"):
            raise ConfigError(f"target is {self.target!r}: log or cost is allowed")
        if type(self.names_class) is not bool:
            raise ConfigError(f"names_class is {self.names_class!r}: true or false is allowed")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON can say them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the configuration that `to_dict` was called on.

        Raises:
            ConfigError: If a field is missing, unknown or wrong; the message names it.
        """
        if wrong := sorted({field.name for field in fields(cls)} ^ set(values)):
            raise ConfigError(f"fields missing or unknown: {', '.join(wrong)}")
        return cls(**values)


MOST_PIECES = 512
"""Positions that DistilBERT knows."""
_LEAST = {
    "layers": 1,
    "heads": 1,
    "dim": 1,
    "hidden_dim": 1,
    "vocabulary": 100,
    "max_length": 8,
    "epochs": 1,
    "batch_size": 1,
}

TINY = S3Config(
    layers=2,
    heads=4,
    dim=64,
    hidden_dim=256,
    vocabulary=2_000,
    max_length=64,
    epochs=12,
    learning_rate=1e-3,
)
"""What a CPU trains from random weights in seconds: where no pretrained weights are at hand."""
