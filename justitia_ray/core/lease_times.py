"""Time for a prompt token and for an iteration, learned from the lengths of ended leases.

A lease lasts about x·b + d·τ seconds: x the prompt tokens that its engine computes from its grant
to its first token, those of leases ahead included, and d its iterations. τ contains the prompts
that are computed in the meantime.
"""

from justitia_ray.units import Seconds, Tokens

_KEEP = 0.98
"""Weight of all earlier leases with each new one: some 50 leases count."""
_LEAST_LEASES = 8.0
"""Sum of weights below which the times are unknown."""
_LEAST_SPREAD = 1e-3
"""Determinant, as a share of the greatest possible, below which leases are too much alike to tell
prompts from iterations.
"""


class LeaseTimes:
    """The plane through decaying samples and the origin, by least squares. O(1) a lease."""

    def __init__(self) -> None:
        self._leases = 0.0
        self._xx = self._xd = self._dd = self._xs = self._ds = 0.0

    def record(self, computed_tokens: Tokens, iterations: Tokens, lasted_s: Seconds) -> None:
        """Record an ended lease.

        Args:
            computed_tokens: Prompt tokens that its engine computed before its first token.
            iterations: Tokens of its longest sequence.
            lasted_s: Time from its grant to its end.
        """
        x, d, s = computed_tokens, iterations, lasted_s
        self._leases = _KEEP * self._leases + 1
        self._xx = _KEEP * self._xx + x * x
        self._xd = _KEEP * self._xd + x * d
        self._dd = _KEEP * self._dd + d * d
        self._xs = _KEEP * self._xs + x * s
        self._ds = _KEEP * self._ds + d * s

    def estimate(self) -> tuple[Seconds, Seconds] | None:
        """Return the times of a computed prompt token and of an iteration; None: unknown."""
        determinant = self._xx * self._dd - self._xd * self._xd
        if self._leases < _LEAST_LEASES or determinant <= _LEAST_SPREAD * self._xx * self._dd:
            return None
        token_s = (self._xs * self._dd - self._ds * self._xd) / determinant
        iteration_s = (self._ds * self._xx - self._xs * self._xd) / determinant
        return (token_s, iteration_s) if token_s > 0 and iteration_s > 0 else None
