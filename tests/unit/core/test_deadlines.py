"""The heap of instants at which something may lapse."""

from justitia_ray.core.deadlines import Deadlines, Lapse


def test_due_comes_in_order_of_time_and_then_of_setting() -> None:
    """Replays must see lapses in the same order: a tie is never left to luck."""
    deadlines = Deadlines()
    deadlines.set(2.0, Lapse.REPLICA, "z")
    deadlines.set(1.0, Lapse.LEASE, "b")
    deadlines.set(1.0, Lapse.APPLICATION, "a")
    deadlines.set(3.0, Lapse.CLAIM, "c")

    expected = [(Lapse.LEASE, "b"), (Lapse.APPLICATION, "a"), (Lapse.REPLICA, "z")]

    assert expected == list(deadlines.due(2.0))
    assert deadlines.next() == 3.0


def test_what_is_set_meanwhile_for_now_is_due_too() -> None:
    """A lapse may renew itself while the due ones are taken; for later, it stays."""
    deadlines = Deadlines()
    deadlines.set(1.0, Lapse.LEASE, "a")
    seen = []
    for _, name in deadlines.due(5.0):
        seen.append(name)
        if name == "a":
            deadlines.set(5.0, Lapse.LEASE, "b")
            deadlines.set(5.1, Lapse.LEASE, "c")

    assert (seen, deadlines.next()) == (["a", "b"], 5.1)


def test_empty_heap_has_no_next() -> None:
    """The driver then waits for events only."""
    deadlines = Deadlines()

    assert (deadlines.next(), list(deadlines.due(1e9))) == (None, [])


def test_setting_again_for_later_leaves_one_entry() -> None:
    """An application that falls idle a hundred times must not leave a hundred entries."""
    deadlines = Deadlines()
    for instant in range(100):
        deadlines.set(600.0 + instant, Lapse.APPLICATION, "a")

    assert (1, 600.0) == (len(deadlines), deadlines.next())
    assert ([], 699.0) == (list(deadlines.due(698.9)), deadlines.next())
    assert [(Lapse.APPLICATION, "a")] == list(deadlines.due(699.0))
    assert 0 == len(deadlines)


def test_setting_for_earlier_wakes_then_and_not_again() -> None:
    """The later instant no longer holds, and its entry must not bring the name up twice."""
    deadlines = Deadlines()
    deadlines.set(5.0, Lapse.LEASE, "a")
    deadlines.set(3.0, Lapse.LEASE, "a")

    assert [(Lapse.LEASE, "a")] == list(deadlines.due(4.0))
    assert [] == list(deadlines.due(9.0))


def test_one_name_may_wait_for_two_things() -> None:
    """An application may lapse and, restored, not return: neither is the other."""
    deadlines = Deadlines()
    deadlines.set(1.0, Lapse.RETURN, "a")
    deadlines.set(2.0, Lapse.APPLICATION, "a")

    assert [(Lapse.RETURN, "a"), (Lapse.APPLICATION, "a")] == list(deadlines.due(2.0))


def test_what_is_set_for_never_is_not_due_and_forgets_what_was_set() -> None:
    """A simulator's replicas are never taken for lost, and must not fill the heap."""
    deadlines = Deadlines()
    deadlines.set(float("inf"), Lapse.REPLICA, "a")
    assert (0, None) == (len(deadlines), deadlines.next())

    deadlines.set(1.0, Lapse.REPLICA, "a")
    deadlines.set(float("inf"), Lapse.REPLICA, "a")
    assert [] == list(deadlines.due(5.0))
