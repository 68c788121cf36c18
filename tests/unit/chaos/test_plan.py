"""The plan is a function of its seed, and holds what was asked for."""

from collections import Counter

import pytest

from justitia_ray.chaos.kinds import ABOUT, Kind
from justitia_ray.chaos.plan import EARLIEST_S, LATEST_S, draw_plan
from justitia_ray.errors import ConfigError


def test_same_seed_gives_the_same_plan() -> None:
    """A run that failed has to be run again as it was."""
    assert draw_plan(7, tuple(Kind), 2, 8) == draw_plan(7, tuple(Kind), 2, 8)
    assert draw_plan(7, tuple(Kind), 2, 8) != draw_plan(8, tuple(Kind), 2, 8)


def test_order_of_the_named_kinds_does_not_matter() -> None:
    """Nobody should have to remember in which order he named them."""
    assert draw_plan(1, tuple(Kind)) == draw_plan(1, tuple(reversed(Kind)))


@pytest.mark.parametrize("times", [1, 2, 3])
def test_each_kind_strikes_alone_as_often_as_asked(times: int) -> None:
    """A kind that luck left out would be unproven."""
    plan = draw_plan(3, tuple(Kind), times, pairs=5)
    alone = Counter(strike.kinds[0] for strike in plan if len(strike.kinds) == 1)

    assert dict.fromkeys(Kind, times) == alone
    assert 5 == sum(len(strike.kinds) == 2 for strike in plan)


def test_strikes_are_numbered_and_come_while_the_load_does() -> None:
    """The number is the phase of the load that a strike hits."""
    plan = draw_plan(3, tuple(Kind), 2, 4)

    assert list(range(len(plan))) == [strike.number for strike in plan]
    assert all(EARLIEST_S <= strike.after_s <= LATEST_S for strike in plan)
    assert all(0.0 <= strike.draw < 1.0 for strike in plan)


def test_pairs_are_different_and_can_strike_at_once() -> None:
    """Redis cannot be stopped while it is dead."""
    pairs = [set(strike.kinds) for strike in draw_plan(3, tuple(Kind), 0, 40)]

    assert 40 == len({frozenset(pair) for pair in pairs})
    assert {Kind.REDIS_KILLED, Kind.REDIS_STOPPED} not in pairs
    assert {Kind.SCHEDULER_KILLED, Kind.REDIS_EMPTIED} not in pairs
    assert not any(Kind.REDEPLOYED in pair for pair in pairs)


def test_more_pairs_than_there_are_is_refused() -> None:
    """A shorter plan than was asked for would look like a whole one."""
    with pytest.raises(ConfigError, match=r"pairs is 2: these kinds make 1 at most"):
        draw_plan(1, (Kind.REPLICA_KILLED, Kind.INGRESS_KILLED), 1, 2)


def test_kind_named_twice_is_refused() -> None:
    """It would strike twice as often as the others."""
    with pytest.raises(ConfigError, match="each may be named once"):
        draw_plan(1, (Kind.SCALED, Kind.SCALED))


def test_every_kind_is_described() -> None:
    """The table of the result is made of these descriptions."""
    assert set(Kind) == set(ABOUT)
