"""From an input's features to the numbers that a model computes with; numpy only.

A row holds the measures, as standardised logarithms, then the TF-IDF weight of each term that the
class is known by.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from justitia_ray.predictor.input_features import InputFeatures

FARTHEST = 4.0
"""Standard deviations from the mean beyond which a measure counts no further: a linear model must
not follow an input of 1 MB to a cost of its own."""


@dataclass(frozen=True, slots=True)
class DesignMatrix:
    """How the inputs of one class become rows; fitted once, on the inputs of its training."""

    mean: NDArray[np.float64]
    """[measures] Mean of ln(1 + measure)."""
    scale: NDArray[np.float64]
    """[measures] Its standard deviation, > 0."""
    buckets: NDArray[np.int64]
    """[terms] Buckets of the terms that it knows, ascending."""
    idf: NDArray[np.float64]
    """[terms] Inverse document frequency of each."""

    @property
    def columns(self) -> int:
        """Length of a row."""
        return len(self.mean) + len(self.buckets)

    def rows(self, inputs: Sequence[InputFeatures]) -> NDArray[np.float64]:
        """Return float64 [inputs, columns]; each row depends on its own input only."""
        measures = len(self.mean)
        matrix = np.zeros((len(inputs), self.columns))
        for row, features in zip(matrix, inputs, strict=True):
            logs = np.log1p(np.array(features.measures, dtype=np.float64))
            row[:measures] = np.clip((logs - self.mean) / self.scale, -FARTHEST, FARTHEST)
            if len(self.buckets):
                self._weigh_terms(features, row[measures:])
        return matrix

    def _weigh_terms(self, features: InputFeatures, weights: NDArray[np.float64]) -> None:
        """Write (1 + ln count)·idf of the known terms, scaled to length 1."""
        terms = np.array(features.terms, dtype=np.int64)
        places = np.minimum(np.searchsorted(self.buckets, terms), len(self.buckets) - 1)
        known = self.buckets[places] == terms
        places = places[known]
        if len(places):
            counts = np.array(features.counts, dtype=np.float64)[known]
            found = (1.0 + np.log(counts)) * self.idf[places]
            weights[places] = found / np.sqrt(np.sum(found * found))
