"""Growth of contexts: a turn that continues a context leaves a longer one."""

from justitia_ray.core.least_squares import KEEP
from justitia_ray.units import Tokens

_MOST = 1.25
"""Largest growth factor of a context, so that a tenant's fast-growing contexts take little memory
from others.
"""


class ContextGrowth:
    """Learns the factor by which a turn lengthens a context, from turns with a cached context."""

    def __init__(self) -> None:
        self._before = 0.0
        self._after = 0.0

    def add(self, before: Tokens, after: Tokens) -> None:
        """Record the length of a context in tokens before a turn's prompt, and after its answer."""
        self._before = KEEP * self._before + before
        self._after = KEEP * self._after + after

    @property
    def factor(self) -> float:
        """Mean length of a context after a turn, relative to its length before the turn.

        It is weighted by tokens, and limited to 1 to 1.25.
        """
        return min(_MOST, max(1.0, self._after / self._before)) if self._before else 1.0
