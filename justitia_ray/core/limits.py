"""The standing of a limit: whose it is, what it counts, how much is left, and until when."""

from dataclasses import dataclass

from justitia_ray.units import Seconds


@dataclass(frozen=True, slots=True)
class LimitStanding:
    """A limit as callers are told of it."""

    scope: str
    """Path of the tenant's node whose limit it is; `application` for a cap of one application,
    `queue` for a limit of the whole queue."""
    unit: str
    """Unit that is counted: `requests`, `tokens`, `kv_token_time`, `inferences`, `applications`,
    `seconds`."""
    limit: float
    remaining: float
    reset_s: Seconds
    """Time until the limit is whole again, or until something of it comes back."""
    period_s: Seconds | None = None
    """Period of the limit; None: it has none."""
    wanted: float | None = None
    """Amount that a refused call needs; None if it is unknown or nothing was refused."""

    @property
    def is_too_small(self) -> bool:
        """Whether the call that it refuses needs more than there is in a whole period."""
        return self.wanted is not None and self.wanted > self.limit
