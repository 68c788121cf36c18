"""Limits of a scheduler in total and per tenant, and refusals beyond them."""

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import EndApplication, Refusal, Refuse, RefuseApplication
from justitia_ray.core.drain import TenantQuota
from justitia_ray.core.state import (
    DeadlineKind,
    Deadlines,
    SchedulerLimits,
)
from tests.core_driver import CoreDriver


@pytest.fixture
def limited_driver() -> CoreDriver:
    """Return a core with limits of ten applications and ten inferences, eight per tenant."""
    return CoreDriver(
        SchedulerCore(limits=SchedulerLimits(waiting_inferences=10, open_applications=10))
    )


def open_applications(driver: CoreDriver, tenant: str, count: int = 20) -> int:
    """Open as many applications as a tenant may, and return their number."""
    for i in range(count):
        driver.open(f"{tenant}-{i}", tenant=tenant)
    return driver.core.state.open_applications.count_of(tenant)


def test_greedy_tenant_leaves_room_for_others(limited_driver: CoreDriver) -> None:
    """A caller that never closes its applications must not block the service for others.

    Of ten, t may have n with n < 4 * (10 - n) before the last: 8. Then u may have 1 with 1 <= 4 *
    (10 - 9), and one more while 1 < 4 * 1: 2.
    """
    assert 8 == open_applications(limited_driver, "t")
    assert 2 == open_applications(limited_driver, "u")
    assert 0 == open_applications(limited_driver, "v")


def test_greedy_tenants_get_equal_parts_of_the_limit() -> None:
    quota = TenantQuota(900)
    for _ in range(900):
        for tenant in ("t", "u"):
            if quota.has_room(tenant):
                quota.arrive(tenant)

    assert (400, 400, 800) == (quota.count_of("t"), quota.count_of("u"), quota.total)
    assert quota.has_room("v")


def test_shortfall_is_the_number_of_ends_before_the_next_admission() -> None:
    """A restored queue may exceed a tenant's part, so that callers wait for several ends."""
    quota = TenantQuota(10)
    for tenant in "t" * 8 + "u":
        quota.arrive(tenant)
    needed = quota.shortfall("t")
    for _ in range(needed - 1):
        quota.depart("t", 0.0)
        assert not quota.has_room("t")
    quota.depart("t", 0.0)

    assert quota.has_room("t")
    assert 0 == quota.shortfall("t") == TenantQuota().shortfall("t")


def test_full_queue_refuses_every_tenant() -> None:
    quota = TenantQuota(2)
    for _ in range(4):
        quota.arrive("t")

    assert quota.is_full()
    assert 3 == quota.shortfall("u")


def test_queue_without_a_limit_admits_every_inference() -> None:
    """Simulators hold whole workloads."""
    quota = TenantQuota()
    for _ in range(1_000):
        quota.arrive("t")

    assert quota.has_room("t")


def test_refused_application_is_reported_and_leaves_no_state(limited_driver: CoreDriver) -> None:
    """The ingress stores an opened application until its end is reported."""
    open_applications(limited_driver, "t")
    actions = limited_driver.open("late", tenant="t")

    (refused,) = actions
    assert isinstance(refused, RefuseApplication)
    assert ("late", Refusal.TOO_MANY_APPLICATIONS) == (refused.application_id, refused.reason)
    assert "late" not in limited_driver.core.state.applications
    assert "late" not in limited_driver.core.take_changed()


def test_inference_of_a_refused_application_may_be_retried(limited_driver: CoreDriver) -> None:
    """The caller made no mistake, unlike one that names an unknown application."""
    open_applications(limited_driver, "t")
    limited_driver.open("late", tenant="t")
    (refused,) = limited_driver.submit("q", "late")
    unknown = limited_driver.submit("q", "never-heard-of")

    assert isinstance(refused, Refuse)
    assert Refusal.TOO_MANY_APPLICATIONS == refused.reason
    assert refused.retry_after_s is not None
    assert [Refuse("q", "i0", Refusal.UNKNOWN_APPLICATION)] == unknown


def test_places_freed_below_the_application_limit_are_used_again(
    limited_driver: CoreDriver,
) -> None:
    open_applications(limited_driver, "t")
    limited_driver.open("late", tenant="t")
    limited_driver.handle(ev.ApplicationClosed("t-0"))
    limited_driver.open("late", tenant="t")

    assert [] == limited_driver.submit("q", "late")
    assert ["q"] == limited_driver.waiting("late")


def test_idle_applications_make_room_when_they_expire(limited_driver: CoreDriver) -> None:
    """An application that is never closed ends after its idle time."""
    open_applications(limited_driver, "t")
    ended = limited_driver.wait(601.0)

    assert 8 == sum(isinstance(action, EndApplication) for action in ended)
    assert 8 == open_applications(limited_driver, "again")


def test_full_queue_refuses_new_inferences_and_keeps_waiting_ones(
    limited_driver: CoreDriver,
) -> None:
    """Admitted inferences are not dropped for later ones."""
    limited_driver.open("a", tenant="t")
    for i in range(8):
        assert [] == limited_driver.submit(f"q{i}", "a")
    refused = limited_driver.submit("q8", "a")

    wait_s = 1.04 * (1 + 0.3)  # one caller leaves, at the assumed rate of one per second
    assert [Refuse("q8", "i0", Refusal.QUEUE_FULL, retry_after_s=wait_s)] == refused
    assert [f"q{i}" for i in range(8)] == limited_driver.waiting("a")


def test_tenant_is_admitted_although_another_tenant_fills_the_queue(
    limited_driver: CoreDriver,
) -> None:
    """A tenant that fills its own part must not delay the others."""
    limited_driver.open("a", tenant="t")
    for i in range(20):
        limited_driver.submit(f"q{i}", "a")
    limited_driver.open("b", tenant="u")

    assert [] == limited_driver.submit("mine", "b")


def test_ended_inference_makes_room_in_the_queue(limited_driver: CoreDriver) -> None:
    """Running inferences count too, and each end is subtracted once."""
    limited_driver.open("a", tenant="t")
    for i in range(8):
        limited_driver.submit(f"q{i}", "a")
    limited_driver.handle(ev.InferenceCancelled("q0"))
    limited_driver.handle(ev.InferenceCancelled("q0"))

    assert [] == limited_driver.submit("q8", "a")
    (refused,) = limited_driver.submit("q9", "a")
    assert isinstance(refused, Refuse)
    assert Refusal.QUEUE_FULL == refused.reason


def test_inference_admitted_before_a_restart_is_never_refused(
    limited_driver: CoreDriver,
) -> None:
    """A lowered limit or changed shares must not drop waiting inferences."""
    open_applications(limited_driver, "t")
    arrival = ev.ApplicationArrived("known", "class", "t", 1, 100, "i0", resubmitted=True)
    taken = limited_driver.handle(arrival)
    for i in range(30):
        taken += limited_driver.submit(f"q{i}", "known", resubmitted=True)

    assert [] == taken
    assert 30 == len(limited_driver.waiting("known"))


def test_restored_applications_count_against_the_application_limit() -> None:
    driver = CoreDriver()
    driver.open("a", tenant="t")
    driver.open("b", tenant="t")
    driver.hand_over(SchedulerCore(limits=SchedulerLimits(open_applications=10)))
    assert 2 == driver.core.state.open_applications.count_of("t")

    driver.handle(ev.ApplicationClosed("a"))
    assert 1 == driver.core.state.open_applications.total


def test_due_deadlines_are_in_order_of_time_and_then_of_insertion() -> None:
    """Replays must see expirations in the same order."""
    deadlines = Deadlines()
    deadlines.set(2.0, DeadlineKind.REPLICA, "z")
    deadlines.set(1.0, DeadlineKind.LEASE, "b")
    deadlines.set(1.0, DeadlineKind.APPLICATION, "a")
    deadlines.set(3.0, DeadlineKind.CLAIM, "c")

    expected = [
        (DeadlineKind.LEASE, "b"),
        (DeadlineKind.APPLICATION, "a"),
        (DeadlineKind.REPLICA, "z"),
    ]

    assert expected == list(deadlines.due(2.0))
    assert deadlines.next() == 3.0


def test_deadline_set_for_now_while_deadlines_are_handled_is_due() -> None:
    """A deadline may be renewed while due deadlines are taken."""
    deadlines = Deadlines()
    deadlines.set(1.0, DeadlineKind.LEASE, "a")
    seen = []
    for _, name in deadlines.due(5.0):
        seen.append(name)
        if name == "a":
            deadlines.set(5.0, DeadlineKind.LEASE, "b")
            deadlines.set(5.1, DeadlineKind.LEASE, "c")

    assert (seen, deadlines.next()) == (["a", "b"], 5.1)


def test_empty_heap_of_deadlines_has_no_next() -> None:
    """The driver then only waits for events."""
    deadlines = Deadlines()

    assert (deadlines.next(), list(deadlines.due(1e9))) == (None, [])


def test_postponed_deadline_leaves_one_heap_entry() -> None:
    """An application that falls idle a hundred times must not leave a hundred entries."""
    deadlines = Deadlines()
    for instant in range(100):
        deadlines.set(600.0 + instant, DeadlineKind.APPLICATION, "a")

    assert (1, 600.0) == (len(deadlines), deadlines.next())
    assert ([], 699.0) == (list(deadlines.due(698.9)), deadlines.next())
    assert [(DeadlineKind.APPLICATION, "a")] == list(deadlines.due(699.0))
    assert 0 == len(deadlines)


def test_deadline_moved_forward_is_due_once() -> None:
    deadlines = Deadlines()
    deadlines.set(5.0, DeadlineKind.LEASE, "a")
    deadlines.set(3.0, DeadlineKind.LEASE, "a")

    assert [(DeadlineKind.LEASE, "a")] == list(deadlines.due(4.0))
    assert [] == list(deadlines.due(9.0))


def test_one_application_may_have_two_deadlines() -> None:
    """An application may expire as idle, or because its ingress stays away after a restart."""
    deadlines = Deadlines()
    deadlines.set(1.0, DeadlineKind.RETURN, "a")
    deadlines.set(2.0, DeadlineKind.APPLICATION, "a")

    assert [(DeadlineKind.RETURN, "a"), (DeadlineKind.APPLICATION, "a")] == list(deadlines.due(2.0))


def test_infinite_deadline_is_never_due_and_replaces_an_earlier_one() -> None:
    """A simulator's replicas never time out, and must not fill the heap."""
    deadlines = Deadlines()
    deadlines.set(float("inf"), DeadlineKind.REPLICA, "a")
    assert (0, None) == (len(deadlines), deadlines.next())

    deadlines.set(1.0, DeadlineKind.REPLICA, "a")
    deadlines.set(float("inf"), DeadlineKind.REPLICA, "a")
    assert [] == list(deadlines.due(5.0))


def test_places_reserved_for_refused_callers_count_as_taken() -> None:
    quota = TenantQuota(10)
    for _ in range(6):
        quota.arrive("t")

    assert [True, False] == [quota.has_room("t", kept) for kept in ((1, 1), (2, 2))]
    assert [True, False] == [quota.has_room("u", kept) for kept in ((0, 3), (0, 4))]
    assert [False, True] == [quota.is_full(kept) for kept in ((0, 3), (0, 4))]
    assert [-1, 0, 1] == [quota.shortfall("t", (n, n)) for n in range(3)]


def test_refused_caller_is_admitted_before_a_new_one() -> None:
    quota, now = TenantQuota(10), 0.0
    while quota.admits("t", now, is_retry=False):
        quota.arrive("t")
    wait_s = quota.next_slot("t", now)
    quota.depart("t", now)
    falsely = quota.admits("u", now, is_retry=True)
    before = quota.admits("t", now, is_retry=False)
    now += wait_s

    assert (8, True, False) == (quota.total + 1, falsely, before)
    assert not quota.admits("t", now, is_retry=False)
    assert quota.admits("t", now, is_retry=True)
    assert quota.admits("t", now, is_retry=False)
    assert TenantQuota().admits("t", now, is_retry=None)


def test_reservations_for_refused_callers_take_at_most_a_quarter_of_a_limit() -> None:
    quota = TenantQuota(100)
    for _ in range(1_000):
        quota.next_slot("t", 0.0)
    admitted = 0
    while quota.admits("t", 0.0, is_retry=False):
        quota.arrive("t")
        admitted += 1

    assert 55 == admitted
