"""Checks of what a store says a record of numbers holds."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any


def checked_numbers(kind: type[Any], values: Mapping[str, Any]) -> dict[str, int | float]:
    """Return the values of a dataclass whose fields are all numbers with defaults.

    Where the default is an integer, so must the value be.

    Raises:
        ValueError: If a field is missing, unknown, of another type or not finite; the message names
            it.
    """
    expected = {field.name: type(field.default) for field in fields(kind)}
    if wrong := sorted(expected.keys() ^ set(values)):
        raise ValueError(f"fields missing or unknown: {', '.join(wrong)}")
    for name, number in expected.items():
        value = values[name]
        allowed = (int,) if number is int else (int, float)
        if type(value) not in allowed or not math.isfinite(value):
            raise ValueError(f"{name} is {value!r}: a finite {number.__name__} is allowed")
    return dict(values)
