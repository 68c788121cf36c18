"""Trained functions from a row of a design matrix to ln(cost); numpy only.

Each gives one row the same value, bit for bit, whichever rows come with it: a matrix product of
[rows, 1, columns] is one vector product a row.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from justitia_ray.predictor.checked_arrays import Arrays, Floats, Integers, floats, integers

_MOST_ABREAST = 256
"""Networks, trees, and features that trees look at: these and the next three bound the memory and
the time that a prediction may take, whoever made the file."""
_MOST_NEURONS = 4096
_MOST_LAYERS = 8
_MOST_DEPTH = 64
_LEAST_OUTPUT = 1e-3
"""Of a network that answers the cost: it may say 0 or less, of which there is no logarithm."""


class Regressor(Protocol):
    """What every trained function can do."""

    name: ClassVar[str]

    def log_costs(self, rows: Floats) -> Floats:
        """Return ln(cost) of each row, float64 [rows]."""

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return what it consists of, for `from_arrays`."""

    @classmethod
    def from_arrays(cls, arrays: Arrays, columns: int) -> Self:
        """Return the function that `arrays` was called on.

        Raises:
            ValueError: If an array is missing or could not be computed with; the message names it.
        """


@dataclass(frozen=True, slots=True)
class Constant:
    """The same for every row."""

    name: ClassVar[str] = "constant"
    log_cost: Floats
    """[1]"""

    def log_costs(self, rows: Floats) -> Floats:
        """Return ln(cost) of each row, float64 [rows]."""
        return np.full(len(rows), self.log_cost[0])

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return what it consists of, for `from_arrays`."""
        return {"log_cost": self.log_cost}

    @classmethod
    def from_arrays(cls, arrays: Arrays, columns: int) -> Self:
        """Return the function that `arrays` was called on.

        Raises:
            ValueError: If an array is missing or could not be computed with; the message names it.
        """
        return cls(floats(arrays, "log_cost", (1,)))


@dataclass(frozen=True, slots=True)
class Linear:
    """A weighted sum and an intercept."""

    name: ClassVar[str] = "linear"
    weights: Floats
    """[columns]"""
    intercept: Floats
    """[1]"""

    def log_costs(self, rows: Floats) -> Floats:
        """Return ln(cost) of each row, float64 [rows]."""
        answers: Floats = _each_row(rows, self.weights[:, None])[:, 0] + self.intercept[0]
        return answers

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return what it consists of, for `from_arrays`."""
        return {"weights": self.weights, "intercept": self.intercept}

    @classmethod
    def from_arrays(cls, arrays: Arrays, columns: int) -> Self:
        """Return the function that `arrays` was called on.

        Raises:
            ValueError: If an array is missing or could not be computed with; the message names it.
        """
        return cls(floats(arrays, "weights", (columns,)), floats(arrays, "intercept", (1,)))


@dataclass(frozen=True, slots=True)
class Network:
    """The mean of several small multi-layer perceptrons with ReLU between the layers."""

    name: ClassVar[str] = "network"
    layers: tuple[tuple[Floats, Floats], ...]
    """Weights [members, from, to] and biases [members, 1, to] of each; the last has one output."""
    log_unit: float | None = None
    """None: the output is ln(cost). Otherwise it is the cost itself, in units of e to this."""

    def log_costs(self, rows: Floats) -> Floats:
        """Return ln(cost) of each row, float64 [rows]."""
        state = rows[:, None, None, :]
        for number, (weights, biases) in enumerate(self.layers):
            state = np.matmul(np.maximum(state, 0.0) if number else state, weights) + biases
        output: Floats = state[:, :, 0, 0].mean(axis=1)
        if self.log_unit is None:
            return output
        costs: Floats = np.log(np.maximum(output, _LEAST_OUTPUT)) + self.log_unit
        return costs

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return what it consists of, for `from_arrays`."""
        arrays: dict[str, NDArray[np.generic]] = {}
        for number, (weights, biases) in enumerate(self.layers):
            arrays |= {f"weights{number}": weights, f"biases{number}": biases}
        if self.log_unit is not None:
            arrays["log_unit"] = np.array([self.log_unit])
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Arrays, columns: int) -> Self:
        """Return the function that `arrays` was called on.

        Raises:
            ValueError: If an array is missing or could not be computed with; the message names it.
        """
        layers: list[tuple[Floats, Floats]] = []
        members, width = -1, columns
        while f"weights{len(layers)}" in arrays or not layers:
            number = len(layers)
            weights = floats(arrays, f"weights{number}", (members, width, -1))
            members, _, width = weights.shape
            if width > _MOST_NEURONS or number >= _MOST_LAYERS:
                raise ValueError(
                    f"weights{number} has {width} neurons: at most {_MOST_NEURONS}, in"
                    f" {_MOST_LAYERS} layers, are allowed"
                )
            layers.append((weights, floats(arrays, f"biases{number}", (members, 1, width))))
        if width != 1:
            raise ValueError(f"weights{len(layers) - 1} must have one output, has {width}")
        if members > _MOST_ABREAST:
            raise ValueError(f"weights0 has {members} members: at most {_MOST_ABREAST} are allowed")
        log_unit = float(floats(arrays, "log_unit", (1,))[0]) if "log_unit" in arrays else None
        return cls(tuple(layers), log_unit)


@dataclass(frozen=True, slots=True)
class Forest:
    """The mean of regression trees over the measures and a few directions of the terms."""

    name: ClassVar[str] = "forest"
    projection: Floats
    """[columns, features] What the trees look at."""
    feature: Integers
    """[trees, nodes] Which one a node asks for."""
    threshold: Floats
    """[trees, nodes] Up to it the way goes left."""
    left: Integers
    """[trees, nodes] Where it then comes to; at a leaf, the leaf again."""
    right: Integers
    """[trees, nodes] Likewise."""
    value: Floats
    """[trees, nodes] ln(cost) at a leaf."""
    depth: int
    """Steps from a root to its farthest leaf."""

    def log_costs(self, rows: Floats) -> Floats:
        """Return ln(cost) of each row, float64 [rows]."""
        features = _each_row(rows, self.projection)
        trees = np.arange(len(self.feature))[None, :]
        node = np.zeros((len(rows), len(self.feature)), dtype=np.int64)
        row = np.arange(len(rows))[:, None]
        for _ in range(self.depth):
            goes_left = features[row, self.feature[trees, node]] <= self.threshold[trees, node]
            node = np.where(goes_left, self.left[trees, node], self.right[trees, node])
        answers: Floats = self.value[trees, node].mean(axis=1)
        return answers

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return what it consists of, for `from_arrays`."""
        return {
            "projection": self.projection,
            "feature": self.feature,
            "threshold": self.threshold,
            "left": self.left,
            "right": self.right,
            "value": self.value,
            "depth": np.array([self.depth]),
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays, columns: int) -> Self:
        """Return the function that `arrays` was called on.

        Raises:
            ValueError: If an array is missing or could not be computed with; the message names it.
        """
        projection = floats(arrays, "projection", (columns, -1))
        feature = integers(arrays, "feature", (-1, -1), 0, projection.shape[1])
        shape = feature.shape
        if max(shape[0], projection.shape[1]) > _MOST_ABREAST:
            raise ValueError(
                f"feature and projection have {shape[0]} trees on {projection.shape[1]} features:"
                f" at most {_MOST_ABREAST} are allowed"
            )
        left, right = (integers(arrays, name, shape, 0, shape[1]) for name in ("left", "right"))
        depth = integers(arrays, "depth", (1,), 0, _MOST_DEPTH + 1)
        threshold, value = (floats(arrays, name, shape) for name in ("threshold", "value"))
        return cls(projection, feature, threshold, left, right, value, int(depth[0]))


REGRESSORS: dict[str, type[Regressor]] = {
    kind.name: kind for kind in (Constant, Linear, Network, Forest)
}
"""By name."""


def _each_row(rows: Floats, weights: Floats) -> Floats:
    """Return rows @ weights, one vector product a row."""
    product: Floats = np.matmul(rows[:, None, :], weights)[:, 0, :]
    return product
