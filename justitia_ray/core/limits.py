"""State of a limit: its tenant node, its unit, the remaining amount, and the time of its reset."""

from dataclasses import dataclass

from justitia_ray.units import Seconds


@dataclass(frozen=True, slots=True)
class LimitStanding:
    """State of a limit as it is reported to callers."""

    scope: str
    """Path of the tenant with the limit; `application` for a limit on one application, `queue` for
    a limit on the whole queue.
    """
    unit: str
    """Unit of the limit: `requests`, `tokens`, `kv_token_time`, `inferences`, `applications` or
    `seconds`.
    """
    limit: float
    remaining: float
    reset_s: Seconds
    """Seconds until the whole limit is available again, or a part if parts become free earlier."""
    period_s: Seconds | None = None
    """Period of the limit in seconds; None: the limit has no period."""
    wanted: float | None = None
    """Amount of the limit that a refused call needs; None: unknown, or no call was refused."""

    @property
    def is_too_small(self) -> bool:
        """Return whether the refused call needs more than the limit of a whole period."""
        return self.wanted is not None and self.wanted > self.limit
