"""Quota windows: which usage counts at which time."""

from datetime import UTC, datetime, timedelta

import pytest

from justitia_ray.accounts.windows import UsedWindow
from justitia_ray.core.tenants import Period, Quota, Unit, Window


def _quota_window(per: Period, kind: Window = Window.ROLLING) -> UsedWindow:
    return UsedWindow(Quota(Unit.TOKENS, 100, per, kind))


def _utc_time(*date: int) -> float:
    return datetime(*date, tzinfo=UTC).timestamp()  # type: ignore[misc,arg-type]


def test_usage_in_a_rolling_window_expires_after_at_least_one_period() -> None:
    """Usage counts for the period and at most one subdivision of it longer."""
    window = _quota_window(Period.MINUTE)
    window.add(3, 10.5)
    window.add(4, 11.5)

    assert 7 == window.used(70.5)
    assert (4, 1) == (window.used(71), window.reset_s(71))
    assert 0 == window.used(72)


def test_quota_wait_ends_when_enough_usage_has_expired() -> None:
    window = _quota_window(Period.MINUTE)
    window.add(3, 0)
    window.add(4, 30)

    assert [61, 61, 91, None] == [window.wait_s(amount, 0) for amount in (1, 3, 4, 8)]


def test_setting_the_clock_back_does_not_shorten_a_quota_window() -> None:
    """Usage reported with an earlier time counts as long as other usage."""
    window = _quota_window(Period.MINUTE)
    window.add(3, 100)
    window.add(4, 20)

    assert 7 == window.used(160.9)


@pytest.mark.parametrize("year", [1970, 1999, 2000, 2026, 2028, 2100])
def test_calendar_month_ends_at_the_start_of_the_next_month(year: int) -> None:
    """Months begin and end in UTC, including those of leap years."""
    for month in range(1, 13):
        first = datetime(year, month, 1, tzinfo=UTC)
        following = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
        for used_at in (first, following - timedelta(seconds=1)):
            window = _quota_window(Period.MONTH, Window.CALENDAR)
            window.add(1, used_at.timestamp())
            end = following.timestamp()
            assert end - used_at.timestamp() == window.reset_s(used_at.timestamp())
            assert (1, 0) == (window.used(end - 1), window.used(end))


def test_calendar_day_ends_at_midnight_utc() -> None:
    window = _quota_window(Period.DAY, Window.CALENDAR)
    window.add(5, _utc_time(2026, 2, 28, 23, 59, 59))

    assert 0 == window.used(_utc_time(2026, 3, 1))
