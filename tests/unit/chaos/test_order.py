"""The measure of the order finds a shuffled order, and excuses only what was in flight."""

import random

from justitia_ray.chaos.journal import Run
from justitia_ray.chaos.kinds import Kind
from justitia_ray.chaos.notes import Call, Tag
from justitia_ray.chaos.order import OrderMeasure, Window, measure_order
from tests.unit.chaos.made_up import call, run

MANY = 40


def served(tags: list[int], epoch: int = 1) -> tuple[list[Run], list[Call]]:
    """Return applications of one inference each, all called at 0, granted in the order given.

    One more of the largest tag is called at 10 and granted last of all; and one is called at 5, so
    that everything granted after it is known to have been granted after 5.
    """
    calls = [call("first.0", 5.0), *(call(f"t{tag}.0") for tag in tags)]
    runs = [run("first.0", f"{epoch}-0", 5.5, priority=-1)]
    runs += [
        run(f"t{tag}.0", f"{epoch}-{rank}", 6.0 + rank, priority=tag)
        for rank, tag in enumerate(tags, 1)
    ]
    return runs, calls


def measured(tags: list[int], *windows: Window) -> OrderMeasure:
    return measure_order(*served(tags), windows)


def test_order_of_the_tags_is_kept() -> None:
    """Each grant was held against all that waited: n(n-1)/2 pairs, and those of the first."""
    found = measured(list(range(MANY)))

    assert MANY * (MANY - 1) // 2 + MANY == found.pairs
    assert (0, ()) == (found.inverted, found.unexplained)


def test_shuffled_order_is_found() -> None:
    """A measure that let this pass would prove nothing."""
    tags = list(range(MANY))
    random.Random(1).shuffle(tags)
    inversions = sum(tags[i] > tags[j] for i in range(MANY) for j in range(i + 1, MANY))

    assert inversions > 100
    assert inversions == len(measured(tags).unexplained)


def test_one_exchange_is_found_and_named() -> None:
    """Of two neighbours, the later tag was granted first."""
    found = measured([1, 3, 2, 4])

    assert ("t3.0 (1-2) before t2.0 (1-3)",) == found.unexplained


def test_inversion_by_what_was_in_flight_at_a_fault_is_explained() -> None:
    """Its first grant may have come in its turn, and have died with the replica."""
    found = measured([1, 3, 2, 4], Window(Kind.REPLICA_KILLED, 7.0, 8.0))

    assert (1, ()) == (found.inverted, found.unexplained)


def test_fault_that_was_over_before_explains_nothing() -> None:
    """Else one fault would excuse a whole run."""
    found = measured([1, 3, 2, 4], Window(Kind.REPLICA_KILLED, 1.0, 2.0))

    assert 1 == len(found.unexplained)


def test_redis_and_callers_explain_nothing() -> None:
    """They take no lease away."""
    for kind in (Kind.REDIS_KILLED, Kind.CALLERS_LEFT, Kind.PREDICTOR_KILLED):
        assert 1 == len(measured([1, 3, 2, 4], Window(kind, 0.0, 50.0)).unexplained)


def test_what_came_later_did_not_wait() -> None:
    """A smaller tag that was not there yet was not passed over."""
    runs, calls = served([5])
    calls.append(call("late.0", 4.5))
    runs.append(run("late.0", "1-2", 9.0, priority=0))

    assert 0 == measure_order(runs, calls, ()).inverted
    assert 1 == measure_order(runs, calls, (), settle_s=0.1).inverted


def test_application_is_not_held_against_itself() -> None:
    """Its tag may rise between two of its inferences."""
    calls = [call("first.0", 5.0), call("a.0"), call("a.1")]
    runs = [
        run("first.0", "1-0", 5.5, priority=-1),
        run("a.0", "1-1", 6.0, priority=9),
        run("a.1", "1-2", 7.0, priority=3),
    ]

    assert 2 == measure_order(runs, calls, ()).pairs


def test_order_is_kept_by_each_scheduler_by_itself() -> None:
    """Ranks of two epochs are not comparable; an exchange in the second is found there."""
    runs, calls = served([1, 2])
    later, others = served([8, 7], epoch=2)

    assert ("t8.0 (2-1) before t7.0 (2-2)",) == measure_order(
        runs + later, calls + others, ()
    ).unexplained


def test_nothing_is_judged_while_submissions_are_held_up() -> None:
    """The scheduler cannot have granted in the order of what it had not been told."""
    found = measured([1, 3, 2, 4], Window(Kind.SCHEDULER_STOPPED, 3.0, 4.5))

    assert 0 == found.pairs


def test_tag_that_changed_over_a_restart_is_found() -> None:
    """The order among those who wait is what must outlive the scheduler."""
    found = measure_order([], [], (), [Tag("a", 5.0, 5.0), Tag("b", 5.0, 6.5)])

    assert 2 == found.tags
    assert ("b: 5.0 became 6.5",) == found.tags_changed
