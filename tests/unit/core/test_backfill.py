"""`backfill`: what may start before a first in line that fits nowhere."""

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from tests.core_driver import CoreDriver, granted


def _blocked(backfill: object, *, kv: int = 100, **options: object) -> CoreDriver:
    """Return an FCFS core in which `held` runs, 60 to 80 in 20 iterations, and `first` waits."""
    driver = CoreDriver(SchedulerCore("fcfs", {"backfill": backfill, **options}))
    driver.pull(kv=kv)
    _ask(driver, "held", 60, 20)
    _ask(driver, "first", 50, 20)
    assert ["first"] == driver.waiting("first")
    return driver


def _ask(driver: CoreDriver, name: str, prompt: int, output: int) -> list[str]:
    """Open an application of one inference."""
    driver.open(name)
    return granted(driver.submit(name, name, prompt=prompt, output=output))


def test_nothing_passes_by_default() -> None:
    """Strict order is what the bound is derived for."""
    assert [] == _ask(_blocked(0), "tiny", 1, 1)


def test_one_that_ends_before_the_first_could_start_may_go() -> None:
    """`first` starts when `held` ends, after 20 iterations; 10 + 5 fit beside that."""
    driver = _blocked("unlimited")

    assert ["short"] == _ask(driver, "short", 10, 5)
    assert 1 == driver.inference("first").passes


def test_longer_one_may_go_if_it_leaves_room_for_the_first() -> None:
    """At 20 `held` ends and `first` starts; at 40 that holds 70, and p + 40 fit beside it."""
    driver = _blocked("unlimited", kv=120)

    assert [] == _ask(driver, "longer", 11, 50)
    assert 0 == driver.inference("first").passes
    assert ["long"] == _ask(driver, "long", 10, 50)


def test_first_is_passed_as_often_as_is_allowed() -> None:
    """Predictions err, so the count is what bounds its delay."""
    driver = _blocked(2)

    assert ["s1"] == _ask(driver, "s1", 2, 2)
    assert ["s2"] == _ask(driver, "s2", 2, 2)
    assert [] == _ask(driver, "s3", 2, 2)
    assert 2 == driver.inference("first").passes


def test_everybody_who_is_passed_counts_it() -> None:
    """The second in line has been passed too, and must not pay with its own turn again."""
    driver = _blocked(2)
    _ask(driver, "second", 45, 20)
    _ask(driver, "s1", 2, 2)
    _ask(driver, "s2", 2, 2)

    assert (2, 2) == (driver.inference("first").passes, driver.inference("second").passes)

    driver.pull(finished={driver.lease_of("held"): 20}, kv=100)

    assert ["second"] == driver.waiting("second")
    assert [] == _ask(driver, "s3", 1, 1)


def test_passing_turns_no_order_round() -> None:
    """Who waits keeps the place, and starts as soon as there is room."""
    driver = _blocked("unlimited")
    _ask(driver, "second", 45, 2)

    assert ["short"] == _ask(driver, "short", 2, 2)

    driver.handle(ev.InferenceCancelled("short"))

    assert ["first", "second"] == granted(driver.handle(ev.InferenceCancelled("held")))


def test_only_so_many_are_looked_at() -> None:
    """A walk over ten thousand applications for each event would cost more than it gives."""
    driver = _blocked("unlimited")
    for number in range(16):
        _ask(driver, f"large{number}", 50, 20)

    assert [] == _ask(driver, "short", 2, 2)
    assert granted(driver.handle(ev.InferenceCancelled("large3"))) == ["short"]


def test_draining_replica_is_not_filled_up() -> None:
    """Backfilling asks the same replicas."""
    driver = _blocked("unlimited")
    driver.handle(ev.PullAnswered("r0"))

    assert [] == _ask(driver, "short", 2, 2)


@pytest.mark.parametrize(("cap", "expected"), [(1.0, ["short"]), (0.5, [])])
def test_cap_holds_for_those_who_pass(cap: float, expected: list[str]) -> None:
    """`held` has 80 of 100, and its application may not take more while `first` waits."""
    driver = _blocked("unlimited", kv_share_cap=cap)

    assert expected == granted(driver.submit("short", "held", prompt=2, output=2))


def test_client_with_work_set_aside_has_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tenant's other application has been granted all; the one in line still waits."""
    driver = CoreDriver(SchedulerCore("drr", {"backfill": "unlimited", "unit": "tenant"}))
    left: list[str] = []
    monkeypatch.setattr(driver.core.order.policy, "left", left.append)
    driver.pull(kv=100)
    _ask(driver, "held", 60, 20)
    _ask(driver, "first", 50, 20)
    left.clear()

    assert ["short"] == _ask(driver, "short", 2, 2)
    assert [] == left
    assert ["first"] == granted(driver.handle(ev.InferenceCancelled("held")))
    assert ["tenant"] == left
