"""Quota windows: which usage counts at which time."""

from datetime import UTC, datetime, timedelta

import pytest

from justitia_ray.accounts.windows import UsedWindow
from justitia_ray.core.tenants import Period, Quota, Unit, Window


def _window(per: Period, kind: Window = Window.ROLLING) -> UsedWindow:
    return UsedWindow(Quota(Unit.TOKENS, 100, per, kind))


def _at(*date: int) -> float:
    return datetime(*date, tzinfo=UTC).timestamp()  # type: ignore[misc,arg-type]


def test_rolling_window_counts_for_a_period_and_a_part_at_most() -> None:
    """A shorter window would exceed the limit; usage counts at most one part too long."""
    window = _window(Period.MINUTE)
    window.add(3, 10.5)
    window.add(4, 11.5)

    assert 7 == window.used(70.5)
    assert (4, 1) == (window.used(71), window.reset_s(71))
    assert 0 == window.used(72)


def test_wait_is_until_enough_has_come_back() -> None:
    window = _window(Period.MINUTE)
    window.add(3, 0)
    window.add(4, 30)

    assert [61, 61, 91, None] == [window.wait_s(amount, 0) for amount in (1, 3, 4, 8)]


def test_clock_that_was_set_back_shortens_no_window() -> None:
    """Usage reported with an earlier time counts as long as any other."""
    window = _window(Period.MINUTE)
    window.add(3, 100)
    window.add(4, 20)

    assert 7 == window.used(160.9)


@pytest.mark.parametrize("year", [1970, 1999, 2000, 2026, 2028, 2100])
def test_calendar_months_are_those_of_the_calendar(year: int) -> None:
    """Every month ends where the next one begins in UTC, including leap years."""
    for month in range(1, 13):
        first = datetime(year, month, 1, tzinfo=UTC)
        following = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
        for used_at in (first, following - timedelta(seconds=1)):
            window = _window(Period.MONTH, Window.CALENDAR)
            window.add(1, used_at.timestamp())
            end = following.timestamp()
            assert end - used_at.timestamp() == window.reset_s(used_at.timestamp())
            assert (1, 0) == (window.used(end - 1), window.used(end))


def test_calendar_day_is_that_of_utc() -> None:
    """Usage of a second before midnight is forgotten at midnight."""
    window = _window(Period.DAY, Window.CALENDAR)
    window.add(5, _at(2026, 2, 28, 23, 59, 59))

    assert 0 == window.used(_at(2026, 3, 1))
