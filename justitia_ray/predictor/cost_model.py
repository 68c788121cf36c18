"""What every model of one class's cost answers, however it was trained."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from justitia_ray.predictor.input_features import InputFeatures
from justitia_ray.units import KvTokenTime


@dataclass(frozen=True, slots=True)
class CostPrediction:
    """A cost and its spread, token·iterations; 0 < p10 <= kv_token_time <= p90, all finite."""

    kv_token_time: KvTokenTime
    p10: KvTokenTime
    p90: KvTokenTime


class CostModel(Protocol):
    """A trained model of one application class. Pure: the same input, the same prediction."""

    @property
    def kind(self) -> str:
        """Name of the recipe: `mlp`, `paper`, `ridge`, `forest`, `median`, …."""

    @property
    def samples(self) -> int:
        """Finished applications that it was trained on."""

    def predict(self, inputs: Sequence[InputFeatures]) -> list[CostPrediction]:
        """Predict the cost of each input, in one pass."""
