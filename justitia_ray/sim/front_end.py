"""What all calls pass on their way to the engines and back: one process, one call at a time."""

from justitia_ray.units import Seconds


class FrontEnd:
    """A queue in the order of coming.

    Args:
        takes_s: How long a call occupies it, each way; 0: calls pass at once.
    """

    def __init__(self, takes_s: Seconds = 0.0) -> None:
        self._takes_s = takes_s
        self._free_at: Seconds = 0.0
        self._passed = 0
        self._passing_s: Seconds = 0.0

    def passed_at(self, now: Seconds) -> Seconds:
        """Let a call in, and return when it is through."""
        self._free_at = max(now, self._free_at) + self._takes_s
        self._passed += 1
        self._passing_s += self._free_at - now
        return self._free_at

    @property
    def mean_s(self) -> Seconds:
        """How long calls took to pass, in the mean."""
        return self._passing_s / self._passed if self._passed else 0.0
