"""Sizes and training settings of the S3 predictor; imports neither torch nor transformers."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

_Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True, config=ConfigDict(strict=True))
class S3Config:
    """Settings of a DistilBERT regressor and its fine-tuning, by default at full size.

    The papers use DistilBERT with 66 million parameters, trained on the same samples as the MLPs
    for about 2 h on a V100 (v1, Sec. IV-B and Table II). They do not give learning rate, batch size
    and epochs; these are the usual ones of fine-tuning (Devlin et al. 2019, App. A.3).

    Raises:
        ValueError: If a value is out of range; the message names field, value and allowed range.
    """

    layers: _Count = 6
    heads: _Count = 12
    dim: _Count = 768
    """Length of the vector of a token, a multiple of `heads`."""
    hidden_dim: _Count = 3072
    vocabulary: Annotated[int, Field(ge=100)] = 30_522
    """Maximum number of word pieces in a tokenizer that is built from the training texts."""
    max_length: Annotated[int, Field(ge=8, le=512)] = 512
    """Number of word pieces that are read from an input, at most DistilBERT's number of positions.
    """
    epochs: _Count = 4
    batch_size: _Count = 16
    learning_rate: Annotated[float, Field(ge=0, le=1)] = 5e-5
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.01
    held_back: Annotated[float, Field(ge=0, le=0.5)] = 0.1
    """Share of samples held back from training, to measure the spread of predictions."""
    target: Literal["log", "cost"] = "log"
    """Quantity that the network learns: ln(cost), or the cost."""
    names_class: bool = False
    """Whether the class name precedes the text; the papers' S3 reads only the text."""


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
"""Sizes of a network that a CPU trains from random weights in seconds."""
