"""Exact arithmetic in place of floats."""

from fractions import Fraction
from typing import cast


def exact(numerator: int | Fraction, denominator: int = 1) -> float:
    """Return a fraction, typed as the float that it replaces (see `justitia_ray.units`)."""
    return cast("float", Fraction(numerator, denominator))
