"""Trained networks from a row of a design matrix to ln(cost), validated on reading; numpy only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Arrays = Mapping[str, NDArray[np.generic]]

LARGEST = 1e6
"""Limit of the numbers in a model; no sum or product of numbers within it overflows."""


def floats(arrays: Arrays, name: str, shape: tuple[int, ...]) -> Floats:
    """Return an array as float64, checked to be within ±LARGEST.

    Args:
        arrays: Arrays by name.
        name: Name of the array.
        shape: Shape of the array; -1 allows any length of at least 1.

    Raises:
        ValueError: If the array is missing or has another type, shape or range; the message names
            it.
    """
    array: Floats = _checked_array(arrays, name, np.dtype(np.float64), shape)
    if not (np.abs(array) <= LARGEST).all():
        raise ValueError(f"{name} must be finite and within ±{LARGEST:g}")
    return array


def integers(arrays: Arrays, name: str, shape: tuple[int, ...], low: int, high: int) -> Integers:
    """Return an array as int64, checked to be from `low` to `high` - 1.

    Raises:
        ValueError: If the array is missing or has another type, shape or range; the message names
            it.
    """
    array: Integers = _checked_array(arrays, name, np.dtype(np.int64), shape)
    if array.size and not (low <= array.min() and array.max() < high):
        raise ValueError(f"{name} must be from {low} to {high - 1}")
    return array


def _checked_array(
    arrays: Arrays, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> NDArray[Any]:
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


_MOST_MEMBERS = 256
"""Maximum number of networks in a model file, as a protection against hostile files, like the two
limits below.
"""
_MOST_NEURONS = 4096
_MOST_LAYERS = 8
_LEAST_OUTPUT = 1e-3
"""Lower bound of a network's cost output, because its logarithm is taken."""


@dataclass(frozen=True, slots=True)
class NetworkRegressor:
    """Mean of several small multi-layer perceptrons with ReLU between layers.

    A row gets the same value, bit for bit, whichever other rows are predicted with it: a matrix
    product of [rows, members, 1, columns] is one vector product for each row and network.
    """

    layers: tuple[tuple[Floats, Floats], ...]
    """Weights [members, from, to] and biases [members, 1, to] by layer; the last layer has one
    output.
    """
    log_unit: float | None = None
    """Logarithm of the unit of the output cost; None: the output is ln(cost)."""

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
        arrays: dict[str, NDArray[np.generic]] = {}
        for number, (weights, biases) in enumerate(self.layers):
            arrays |= {f"weights{number}": weights, f"biases{number}": biases}
        if self.log_unit is not None:
            arrays["log_unit"] = np.array([self.log_unit])
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Arrays, columns: int) -> Self:
        """Return the networks with arrays from `arrays`.

        Args:
            arrays: Arrays by name.
            columns: Length of a row.

        Raises:
            ValueError: If an array is missing or not usable; the message names it.
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
        if members > _MOST_MEMBERS:
            raise ValueError(f"weights0 has {members} members: at most {_MOST_MEMBERS} are allowed")
        log_unit = float(floats(arrays, "log_unit", (1,))[0]) if "log_unit" in arrays else None
        return cls(tuple(layers), log_unit)
