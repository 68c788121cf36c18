"""Durable records, as JSON has them, and the checks of what comes back from a store."""

from collections.abc import Mapping
from math import isfinite
from typing import Any, TypeAlias

Record: TypeAlias = dict[str, Any]

NUMBER = (int, float)


def checked(record: Record, name: str, kinds: tuple[type, ...]) -> Any:
    """Return a field of a record.

    Raises:
        KeyError: If it is missing.
        TypeError, ValueError: If it is not one of these kinds, or not finite.
    """
    value = record[name]
    # A bool is an int to Python, but never a count.
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise TypeError(f"{name}: {value!r}")
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{name}: {value!r}")
    return value


def positive(record: Record, name: str) -> Any:
    """Return a field that is a number above 0; raises what `checked` raises."""
    value = checked(record, name, NUMBER)
    if value <= 0:
        raise ValueError(f"{name}: {value!r} must be above 0")
    return value


def checked_mapping(value: object) -> Mapping[str, Any]:
    """Return a mapping of a stored record.

    Raises:
        TypeError: If it is none.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r} is not a mapping")
    return value


def checked_number(value: object) -> float:
    """Return a finite number of a stored record.

    Raises:
        TypeError, ValueError: If it is none.
    """
    # A bool is an int to Python, but never a number of a record.
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a number")
    if not isfinite(value):
        raise ValueError(f"{value!r} is not finite")
    return value


def checked_weight(value: object) -> float:
    """Return a number above 0 of a stored record.

    Raises:
        TypeError, ValueError: If it is none.
    """
    number = checked_number(value)
    if number <= 0:
        raise ValueError(f"{value!r} is not above 0")
    return number


def checked_count(value: object) -> int:
    """Return a whole number of at least 0 of a stored record.

    Raises:
        TypeError, ValueError: If it is none.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a whole number")
    if value < 0:
        raise ValueError(f"{value!r} is below 0")
    return value
