"""The virtual clock against numbers computed by hand."""

import math

from justitia_ray.core.clock.virtual_clock import VirtualClock
from tests.exact import exact


def _clock_with_charges(*charges: tuple[str, int, int]) -> VirtualClock:
    clock = VirtualClock(exact(0))
    for sequence, (name, amount, weight) in enumerate(charges):
        clock.charge(name, exact(amount), exact(weight), sequence)
    return clock


def _finish_tag(clock: VirtualClock, name: str) -> float:
    return clock.session(name).finish


def test_first_charge_of_a_busy_period_moves_virtual_time() -> None:
    clock = _clock_with_charges()
    for period in (0, 3):
        for packet in (1, 2, 3):
            clock.charge("a", exact(1), exact(1), 0)

            assert period + packet == _finish_tag(clock, "a")

        clock.serve(exact(3))


def test_refund_of_a_whole_backlog_puts_the_tag_at_virtual_time() -> None:
    clock = VirtualClock()
    clock.charge("a", 0.3, 0.7, 0)
    clock.serve(0.1)
    session = clock.session("a")
    clock.refund("a", 0.7 * (session.finish - clock.virtual_time))

    assert clock.virtual_time == session.finish
    assert not session.active


def test_refund_after_the_departure_of_a_session_leaves_its_tag_unchanged() -> None:
    clock = _clock_with_charges(("a", 2, 1), ("b", 20, 1))
    clock.serve(exact(4))  # V = 2, a departs
    clock.serve(exact(3))  # V = 5
    clock.refund("a", exact(1))

    assert (_finish_tag(clock, "a"), clock.virtual_time) == (2, 6)


def test_rounding_never_moves_virtual_time_past_a_finish_tag() -> None:
    clock = VirtualClock(2.550690257394217)
    clock.charge("a", 0.49543508709194095, 0.3, 0)
    clock.charge("b", 100.0, 0.1, 1)
    finish = clock.session("a").finish
    clock.serve(math.nextafter((finish - clock.virtual_time) * clock.active_weight, 0))

    assert (finish, False) == (clock.virtual_time, clock.session("a").active)


def test_ended_session_stays_until_gps_has_served_its_debt() -> None:
    clock = _clock_with_charges(("a", 4, 1), ("b", 9, 1))
    clock.release("a")

    assert "a" in clock

    clock.serve(exact(7))  # V = 3.5

    assert ("a" in clock, []) == (True, clock.take_forgotten())

    clock.serve(exact(2))  # a departs at V = 4 after 8

    assert ("a" in clock, ["a"]) == (False, clock.take_forgotten())
    assert clock.take_forgotten() == []


def test_released_inactive_session_is_forgotten_at_once() -> None:
    clock = _clock_with_charges(("a", 4, 1))
    clock.serve(exact(4))
    clock.release("a")
    clock.release("unknown")

    assert ("a" in clock, ["a"]) == (False, clock.take_forgotten())


def test_refunded_debt_ends_a_released_session() -> None:
    clock = _clock_with_charges(("a", 4, 1), ("b", 9, 1))
    clock.release("a")
    clock.refund("a", exact(4))

    assert ("a" in clock, 0, 1) == (False, clock.virtual_time, clock.active_weight)


def test_new_charge_of_a_released_session_is_added_to_its_debt() -> None:
    clock = _clock_with_charges(("a", 8, 2), ("b", 9, 1))
    clock.serve(exact(6))  # V = 2, a is owed 4
    clock.release("a")
    clock.charge("a", exact(3), exact(1), 7)

    session = clock.session("a")

    assert (session.finish, session.weight, session.sequence, session.released) == (9, 1, 7, False)
    assert (clock.active_weight, clock.take_forgotten(), clock.backlog()) == (2, [], 14)


def test_weight_change_of_a_session_keeps_its_debt() -> None:
    clock = _clock_with_charges(("a", 4, 1), ("b", 9, 1))
    clock.serve(exact(2))  # V = 1, a is owed 3
    clock.reweigh("a", exact(3))

    session = clock.session("a")

    assert (session.finish, session.weight, clock.owed("a")) == (2, 3, 3)
    assert (clock.virtual_time, clock.active_weight, clock.backlog()) == (1, 4, 11)

    clock.serve(exact(4))

    assert (clock.virtual_time, clock.is_active("a")) == (2, False)


def test_weight_change_of_a_session_without_debt_keeps_its_tag() -> None:
    clock = _clock_with_charges(("a", 4, 1))
    clock.serve(exact(4))
    clock.reweigh("a", exact(2))

    session = clock.session("a")

    assert (session.finish, session.weight, clock.active_weight) == (4, 2, 0)


def test_released_session_keeps_its_debt_at_another_weight() -> None:
    """A tenant whose applications have all ended may get another weight."""
    clock = _clock_with_charges(("a", 4, 1), ("b", 9, 1))
    clock.release("a")
    clock.reweigh("a", exact(2))

    assert (clock.owed("a"), clock.session("a").released, clock.active_weight) == (4, True, 3)

    clock.serve(exact(6))

    assert ("a" in clock, ["a"]) == (False, clock.take_forgotten())


def test_restored_clock_continues_like_the_original() -> None:
    """A new leader must compute the tags that its predecessor would have computed."""
    clock = _clock_with_charges(("a", 6, 1), ("b", 12, 3))
    clock.serve(exact(8))
    clock.release("b")
    other = VirtualClock(clock.virtual_time)
    for name, session in clock.sessions().items():
        other.restore_session(
            name, session.finish, session.weight, session.sequence, released=session.released
        )
    for each in (clock, other):
        each.serve(exact(9))

    assert (clock.virtual_time, "b" in clock) == (5, False)
    assert (other.virtual_time, "b" in other) == (5, False)


def test_empty_clock_has_weight_zero_despite_rounding() -> None:
    """In floats, 0.1 + 0.2 + 0.3 - 0.1 - 0.2 - 0.3 is not 0, and such errors would add up."""
    clock = VirtualClock()
    for _ in range(2):
        for sequence, weight in enumerate((0.1, 0.2, 0.3)):
            clock.charge(f"s{weight}", 1.0, weight, sequence)

        assert 0 < clock.active_weight

        clock.serve(10.0)

        assert 0 == clock.active_weight


def test_session_with_a_charge_of_zero_stays_inactive() -> None:
    clock = _clock_with_charges(("a", 0, 1))

    assert (0, False) == (clock.active_weight, clock.session("a").active)


def test_reopened_session_keeps_a_debt_below_one_unit() -> None:
    clock = _clock_with_charges(("a", 4, 1), ("b", 100, 1))
    clock.serve(exact(15, 2))
    clock.release("a")
    clock.charge("a", exact(2), exact(1), 5)

    assert exact(15, 4) + exact(1, 4) + 2 == _finish_tag(clock, "a")


def test_size_of_the_departure_heap_is_limited_by_the_active_sessions() -> None:
    clock = _clock_with_charges(*((f"s{number}", 1_000, 1) for number in range(10)))
    for _ in range(300):
        clock.charge("s0", exact(1), exact(1), 0)

        assert len(clock._departures) <= 64 + 4 * 10


def test_departure_heap_is_rarely_compacted() -> None:
    clock = _clock_with_charges(*((f"s{number}", 1_000, 1) for number in range(100)))
    compacted = 0
    for _ in range(400):
        departures = clock._departures
        clock.charge("s0", exact(1), exact(1), 0)
        compacted += clock._departures is not departures

    assert compacted <= 400 // 100


def test_session_ends_when_gps_has_served_its_whole_debt() -> None:
    clock = VirtualClock()
    clock.charge("a", 0.3, 1.5, 0)
    clock.serve(0.1)
    owed = (clock.session("a").finish - clock.virtual_time) * clock.active_weight
    assert clock.virtual_time + owed / clock.active_weight < clock.session("a").finish
    clock.serve(owed)

    assert not clock.session("a").active
