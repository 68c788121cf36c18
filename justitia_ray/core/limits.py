"""Standing of a limit: its node, its unit, the remaining amount, and the time of its reset."""

from dataclasses import dataclass

from justitia_ray.units import Seconds


@dataclass(frozen=True, slots=True)
class LimitStanding:
    """A limit as it is reported to callers."""

    scope: str
    """Path of the tenant's node that has the limit; `application` for a cap of one application,
    `queue` for a limit of the whole queue.
    """
    unit: str
    """Unit that the limit counts: `requests`, `tokens`, `kv_token_time`, `inferences`,
    `applications`, `seconds`.
    """
    limit: float
    remaining: float
    reset_s: Seconds
    """Time until the limit is whole again, or until a part of it is available again."""
    period_s: Seconds | None = None
    """Period of the limit; None: it has none."""
    wanted: float | None = None
    """Amount that a refused call needs; None if it is unknown or nothing was refused."""

    @property
    def is_too_small(self) -> bool:
        """Whether the refused call needs more than the limit of a whole period."""
        return self.wanted is not None and self.wanted > self.limit
