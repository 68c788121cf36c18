"""Sizes and training of the S3 rival; needs neither torch nor transformers."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

_Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True, config=ConfigDict(strict=True))
class S3Config:
    """A DistilBERT regressor and how it is fine-tuned; by default DistilBERT at full size.

    The papers say of theirs that it is DistilBERT with 66 million parameters, trained on the same
    samples as the MLPs for about 2 h on a V100 (v1, Sec. IV-B and Table II); learning rate, batches
    and epochs are the usual ones of fine-tuning (Devlin et al. 2019, App. A.3), not theirs.

    Raises:
        ValueError: If a value is out of range; field, value and what is allowed are named.
    """

    layers: _Count = 6
    heads: _Count = 12
    dim: _Count = 768
    """Width of a token's state; a multiple of `heads`."""
    hidden_dim: _Count = 3072
    vocabulary: Annotated[int, Field(ge=100)] = 30_522
    """Most word pieces, where the tokenizer is built from the training texts."""
    max_length: Annotated[int, Field(ge=8, le=512)] = 512
    """Word pieces that are read of an input; what is beyond is cut off: at most
    the positions that DistilBERT knows."""
    epochs: _Count = 4
    batch_size: _Count = 16
    learning_rate: Annotated[float, Field(ge=0, le=1)] = 5e-5
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.01
    held_back: Annotated[float, Field(ge=0, le=0.5)] = 0.1
    """Share of the samples that is not trained on: the spread is that of their residuals."""
    target: Literal["log", "cost"] = "log"
    """Target of the squared error: ln(cost), or the cost itself."""
    names_class: bool = False
    """Whether the class's name stands before the text. The papers' S3 knows only the text."""


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
"""Sizes that a CPU trains from random weights in seconds, without pretrained weights."""
