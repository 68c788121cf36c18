"""Trained functions from a row of a design matrix to ln(cost), validated on reading; numpy only.

Each gives one row the same value, bit for bit, whichever rows come with it: a matrix product of
[rows, 1, columns] is one vector product per row.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Arrays = Mapping[str, NDArray[np.generic]]

LARGEST = 1e6
"""Bound of the numbers in a model, so that no sum or product of them overflows."""


def floats(arrays: Arrays, name: str, shape: tuple[int, ...]) -> Floats:
    """Return an array of float64 within ±LARGEST.

    Args:
        arrays: Arrays by name.
        name: Name of the array.
        shape: Its shape; -1 stands for any length of at least 1.

    Raises:
        ValueError: If the array is missing or has another type, shape or range; the message names
            it.
    """
    array: Floats = _array(arrays, name, np.dtype(np.float64), shape)
    if not (np.abs(array) <= LARGEST).all():
        raise ValueError(f"{name} must be finite and within ±{LARGEST:g}")
    return array


def integers(arrays: Arrays, name: str, shape: tuple[int, ...], low: int, high: int) -> Integers:
    """Return an array of int64 from `low` to `high` - 1; otherwise as `floats`.

    Raises:
        ValueError: If the array is missing or has another type, shape or range; the message names
            it.
    """
    array: Integers = _array(arrays, name, np.dtype(np.int64), shape)
    if array.size and not (low <= array.min() and array.max() < high):
        raise ValueError(f"{name} must be from {low} to {high - 1}")
    return array


def _array(arrays: Arrays, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    if name not in arrays:
        raise ValueError(f"{name} is missing")
    array = arrays[name]
    fits = len(array.shape) == len(shape) and all(
        length == expected or (expected == -1 and length >= 1)
        for length, expected in zip(array.shape, shape, strict=True)
    )
    if array.dtype != dtype or not fits:
        raise ValueError(
            f"{name} is {array.dtype} {list(array.shape)}: {dtype} {list(shape)} is allowed"
        )
    return array


_MOST_ABREAST = 256
"""Largest number of networks, trees, and features of trees. This and the next three limits bound
the memory and the time of a prediction, even with a hostile file."""
_MOST_NEURONS = 4096
_MOST_LAYERS = 8
_MOST_DEPTH = 64
_LEAST_OUTPUT = 1e-3
"""Lower bound of a network's cost output: ln needs a value above 0."""


@dataclass(frozen=True, slots=True)
class Regressor(ABC):
    """A trained function from rows to ln(cost), stored as arrays."""

    name: ClassVar[str]

    @abstractmethod
    def log_costs(self, rows: Floats) -> Floats:
        """Return ln(cost) of each row, float64 [rows]."""

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the arrays of the function, for `from_arrays`."""
        return {field.name: np.atleast_1d(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    @abstractmethod
    def from_arrays(cls, arrays: Arrays, columns: int) -> Self:
        """Return the function that `arrays` was called on.

        Raises:
            ValueError: If an array is missing or not usable; the message names it.
        """


@dataclass(frozen=True, slots=True)
class Constant(Regressor):
    """A function that gives every row the same value."""

    name: ClassVar[str] = "constant"
    log_cost: Floats
    """ln(cost) of every row, shape [1]."""

    def log_costs(self, rows: Floats) -> Floats:
        """Return ln(cost) of each row, float64 [rows]."""
        return np.full(len(rows), self.log_cost[0])

    @classmethod
    def from_arrays(cls, arrays: Arrays, columns: int) -> Self:
        """Return the constant that `arrays` was called on; see `Regressor.from_arrays`."""
        return cls(floats(arrays, "log_cost", (1,)))


@dataclass(frozen=True, slots=True)
class Linear(Regressor):
    """A weighted sum of a row and an intercept."""

    name: ClassVar[str] = "linear"
    weights: Floats
    """Weight of each column, shape [columns]."""
    intercept: Floats
    """Intercept, shape [1]."""

    def log_costs(self, rows: Floats) -> Floats:
        """Return ln(cost) of each row, float64 [rows]."""
        answers: Floats = _each_row(rows, self.weights[:, None])[:, 0] + self.intercept[0]
        return answers

    @classmethod
    def from_arrays(cls, arrays: Arrays, columns: int) -> Self:
        """Return the sum that `arrays` was called on; see `Regressor.from_arrays`."""
        return cls(floats(arrays, "weights", (columns,)), floats(arrays, "intercept", (1,)))


@dataclass(frozen=True, slots=True)
class NetworkRegressor(Regressor):
    """The mean of several small multi-layer perceptrons with ReLU between the layers."""

    name: ClassVar[str] = "network"
    layers: tuple[tuple[Floats, Floats], ...]
    """Weights [members, from, to] and biases [members, 1, to] of each layer; the last has one
    output."""
    log_unit: float | None = None
    """None: the output is ln(cost). Otherwise the output is the cost in units of e^log_unit."""

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
        """Return the arrays of the function, for `from_arrays`."""
        arrays: dict[str, NDArray[np.generic]] = {}
        for number, (weights, biases) in enumerate(self.layers):
            arrays |= {f"weights{number}": weights, f"biases{number}": biases}
        if self.log_unit is not None:
            arrays["log_unit"] = np.array([self.log_unit])
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Arrays, columns: int) -> Self:
        """Return the networks that `arrays` was called on; see `Regressor.from_arrays`."""
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
class Forest(Regressor):
    """The mean of regression trees over the measures and a few directions of the terms."""

    name: ClassVar[str] = "forest"
    projection: Floats
    """[columns, features] Projection of a row to the features of the trees."""
    feature: Integers
    """[trees, nodes] Feature that a node compares."""
    threshold: Floats
    """[trees, nodes] Largest value of the feature for which the left node follows."""
    left: Integers
    """[trees, nodes] Left child; at a leaf, the leaf itself."""
    right: Integers
    """[trees, nodes] Right child; at a leaf, the leaf itself."""
    value: Floats
    """[trees, nodes] ln(cost) at a leaf."""
    depth: int
    """Largest number of steps from a root to a leaf."""

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

    @classmethod
    def from_arrays(cls, arrays: Arrays, columns: int) -> Self:
        """Return the forest that `arrays` was called on; see `Regressor.from_arrays`."""
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
    kind.name: kind for kind in (Constant, Linear, NetworkRegressor, Forest)
}
"""Regressor classes by name."""


def _each_row(rows: Floats, weights: Floats) -> Floats:
    """Return rows @ weights, as one vector product per row."""
    product: Floats = np.matmul(rows[:, None, :], weights)[:, 0, :]
    return product
