"""Arrays of a model file, checked so that nothing computed with them can go wrong."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Arrays = Mapping[str, NDArray[np.generic]]

LARGEST = 1e6
"""Numbers in a model are within this, so that no sum or product of them overflows."""


def floats(arrays: Arrays, name: str, shape: tuple[int, ...]) -> Floats:
    """Return an array of float64 within ±LARGEST.

    Args:
        arrays: By name.
        name: Which one.
        shape: What it must have; -1 stands for any length of at least 1.

    Raises:
        ValueError: If it is missing or another; the message names it.
    """
    array: Floats = _array(arrays, name, np.dtype(np.float64), shape)
    if not (np.abs(array) <= LARGEST).all():
        raise ValueError(f"{name} must be finite and within ±{LARGEST:g}")
    return array


def integers(arrays: Arrays, name: str, shape: tuple[int, ...], low: int, high: int) -> Integers:
    """Return an array of int64 from `low` to `high` - 1; otherwise as `floats`.

    Raises:
        ValueError: If it is missing or another; the message names it.
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
