"""Time windows of quotas: each counts the usage in the period that ends now.

A rolling window is stored in sixty parts of its period. Usage counts until the whole part is one
period old. So it counts up to a sixtieth of the period too long and never too short, and no
interval of the period's length exceeds the limit. A calendar window is a day or a month of UTC.
Times are seconds since 1970.
"""

from collections.abc import Mapping
from math import floor

from justitia_ray.core.tenants import Period, Quota, Window
from justitia_ray.units import Seconds

PARTS = 60
_DAY = 86_400
LENGTHS: Mapping[Period, int] = {
    Period.SECOND: 1,
    Period.MINUTE: 60,
    Period.HOUR: 3_600,
    Period.DAY: _DAY,
    Period.MONTH: 30 * _DAY,
}
"""Length of each quota period in seconds; calendar months have their real lengths."""


class UsedWindow:
    """Usage of a quota within its time window."""

    __slots__ = ("_kind", "_length", "_period", "parts")

    def __init__(self, quota: Quota, parts: Mapping[int, float] | None = None) -> None:
        """Create a time window of a quota, empty or with stored usage."""
        self._kind, self._period = quota.window, quota.per
        self._length = LENGTHS[quota.per]
        self.parts: dict[int, float] = dict(sorted((parts or {}).items()))
        """Usage of a quota by part of its time window, oldest part first."""

    @property
    def kind(self) -> str:
        """Period and kind of a quota's time window, as stored with its usage."""
        return f"{self._period}/{self._kind}"

    def add(self, amount: float, now: Seconds) -> None:
        part = self._window_part_at(now)
        if self.parts:
            part = max(part, next(reversed(self.parts)))  # the clock may have been set back
        self.parts[part] = self.parts.get(part, 0) + amount

    def used(self, now: Seconds) -> float:
        """Return the usage that counts at a time, and drop expired parts of the window."""
        while self.parts and self._part_expires_at(next(iter(self.parts))) <= now:
            del self.parts[next(iter(self.parts))]
        return sum(self.parts.values())

    def reset_s(self, now: Seconds) -> Seconds:
        """Return the seconds until the oldest part of the usage expires; 0 without usage."""
        self.used(now)
        return self._part_expires_at(next(iter(self.parts))) - now if self.parts else 0.0

    def wait_s(self, amount: float, now: Seconds) -> Seconds | None:
        """Return the seconds until `amount` of the usage has expired; None: never."""
        self.used(now)
        for part, used in self.parts.items():
            amount -= used
            if amount <= 0:
                return self._part_expires_at(part) - now
        return None

    def _window_part_at(self, now: Seconds) -> int:
        if self._kind is Window.ROLLING:
            return floor(now * PARTS / self._length)
        day = floor(now / _DAY)
        return day if self._period is Period.DAY else _month_of_day(day)

    def _part_expires_at(self, part: int) -> Seconds:
        """Return the time at which usage in a part of the quota's window expires."""
        if self._kind is Window.ROLLING:
            return (part + 1) * self._length / PARTS + self._length
        return (part + 1 if self._period is Period.DAY else _first_day(part + 1)) * _DAY


def _month_of_day(day: int) -> int:
    """Convert a day (days since 1970) to its month (months since year 0)."""
    # Years start in March, so that a leap day is the last day of one (Hinnant's algorithm).
    era, of_era = divmod(day + 719_468, 146_097)
    year = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    return 12 * (year + 400 * era) + (5 * of_year + 2) // 153 + 2


def _first_day(month: int) -> int:
    """Convert a month (months since year 0) to its first day (days since 1970)."""
    year, of_year = divmod(month - 2, 12)
    era, of_era = divmod(year, 400)
    days = 365 * of_era + of_era // 4 - of_era // 100 + (153 * of_year + 2) // 5
    return era * 146_097 + days - 719_468
