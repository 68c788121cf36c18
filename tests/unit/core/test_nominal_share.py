"""The paper's clock: V moves with time at M per iteration, and a tag never changes."""

from justitia_ray.core.unsettled_share import NominalShare
from justitia_ray.core.virtual_clock import VirtualClock
from tests.exact import exact


def _share(kv_tokens: int = 100) -> NominalShare:
    """Return a clock of half-second iterations: 200 token·iterations a second for 100 tokens."""
    share = NominalShare(exact(1, 2), VirtualClock(exact(0)))
    share.set_rate(kv_tokens, exact(10))
    return share


def test_v_moves_at_the_kv_memory_per_iteration() -> None:
    """M per second instead of per iteration would be SJF or FCFS in disguise."""
    share = _share()
    share.arrive("a", exact(1000), exact(1), 0)
    share.advance(exact(11))

    assert share.clock.virtual_time == 200


def test_arrival_is_tagged_at_its_exact_instant() -> None:
    """V has moved between two events: F = V(a) + C/w with V(a) of the arrival itself."""
    share = _share()
    share.arrive("a", exact(1000), exact(1), 0)
    share.advance(exact(21, 2))  # V = 100
    share.arrive("b", exact(300), exact(3), 1)
    share.advance(exact(11))  # 100 more, W = 4

    assert (share.tag("a"), share.tag("b"), share.clock.virtual_time) == (1000, 200, 125)


def test_replica_that_joins_changes_the_rate_from_then_on() -> None:
    """The half second before it joined is served at the old rate."""
    share = _share()
    share.arrive("a", exact(1000), exact(1), 0)
    share.set_rate(300, exact(21, 2))
    share.advance(exact(11))

    assert share.clock.virtual_time == 100 + 300


def test_v_rests_while_gps_has_nothing_to_serve() -> None:
    """GPS finishes 50 after a quarter of a second, and waits."""
    share = _share()
    share.arrive("a", exact(50), exact(1), 0)
    share.advance(exact(100))
    share.arrive("b", exact(7), exact(1), 1)

    assert (share.clock.virtual_time, share.tag("b")) == (50, 57)


def test_clock_that_goes_back_moves_nothing() -> None:
    """V never falls, nor is a second served twice."""
    share = _share()
    share.arrive("a", exact(1000), exact(1), 0)
    share.advance(exact(11))
    share.advance(exact(5))
    share.advance(exact(11))

    assert share.clock.virtual_time == 200


def test_service_is_booked_and_moves_nothing() -> None:
    """What was attained is reported at the end; the paper does not settle."""
    share = _share()
    share.arrive("a", exact(50), exact(1), 0)

    assert share.deliver([("a", exact(80))]) == []
    assert (
        share.accounts["a"].attained,
        share.accounts["a"].charged,
        share.clock.virtual_time,
        share.tag("a"),
    ) == (80, 50, 0, 50)


def test_tool_gap_changes_nothing() -> None:
    """The paper keeps an application in GPS through its tool gaps: what `served` is for."""
    share = _share()
    share.arrive("a", exact(50), exact(1), 0)
    share.withdraw("a")

    assert (share.resume("a"), share.tag("a"), share.clock.active_weight) == (False, 50, 1)


def test_application_that_ended_stays_in_gps_until_v_reaches_its_tag() -> None:
    """GPS has not finished it yet, and shares with it until then."""
    share = _share()
    share.arrive("a", exact(50), exact(1), 0)
    share.arrive("b", exact(500), exact(1), 1)

    assert share.settle("a") == 50
    assert ("a" in share.clock, share.clock.active_weight) == (True, 2)

    share.advance(exact(21, 2))

    assert ("a" in share.clock, share.clock.active_weight) == (False, 1)


def test_weight_change_keeps_what_gps_owes() -> None:
    """It owes 400 at V = 100, which weight 4 has after 100 more of V."""
    share = _share()
    share.arrive("a", exact(500), exact(1), 0)
    share.advance(exact(21, 2))
    share.reweigh("a", exact(4))

    assert (share.tag("a"), share.clock.backlog(), share.accounts["a"].weight) == (200, 400, 4)


def test_time_before_the_first_replica_is_not_served() -> None:
    """The rate is 0 until a replica has told its memory: V starts where the clock was given."""
    share = NominalShare(exact(1, 2), VirtualClock(exact(7)))
    share.advance(exact(0))
    share.arrive("a", exact(1000), exact(1), 0)
    share.advance(exact(10))

    assert (7, 1007) == (share.clock.virtual_time, share.tag("a"))
