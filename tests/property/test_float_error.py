"""Rounding errors of the clock's floats against exact arithmetic after years of service.

A double near 10¹⁵ is a multiple of 1/8: ulp(V). Every event rounds V and a tag by half of that at
most, and a departure passes the rounding to the applications that stay. So Σ w·(F − V), what GPS
owes, is off by a random walk with steps of about ulp(V)·W; it has no direction, and ends when no
application is active.

Below, 3,000 events at V = 10¹⁵ leave the distance of a tag from V off by less than 20
token·iterations per weight (an application costs thousands), and 20,000 events that never let GPS
fall idle leave the sum off by less than 2·ulp(V)·W·√n. At V = 10⁹ all errors are a millionth of
that.
"""

import random
from fractions import Fraction
from math import sqrt, ulp

import pytest

from justitia_ray.core.clock.fair_share import NominalShare, ServedShare
from justitia_ray.core.clock.virtual_clock import VirtualClock
from tests.exact import exact
from tests.property.share_steps import apply_step

_V = 10**15
_EVENTS = 3_000
_WEIGHTS = (1, 2, 3)


def _step_both(
    floats: ServedShare, fractions: ServedShare, draw: random.Random, sequence: int
) -> None:
    """Apply one step of whole work to float and to exact accounts."""
    name, amount = f"a{draw.randrange(4)}", draw.randint(1_000, 1_000_000)
    is_new = name not in floats.accounts
    verb = draw.choice(("deliver", "deliver", "deliver", "withdraw", "resume", "settle"))
    units = draw.choice(_WEIGHTS)
    for share, work, weight in (
        (floats, float(amount), float(units)),
        (fractions, exact(amount), exact(units)),
    ):
        if is_new:
            share.arrive(name, work, weight, sequence)
        else:
            apply_step(share, verb, name, work)


@pytest.mark.parametrize("seed", range(3))
def test_finish_tags_are_exact_at_a_virtual_time_of_a_quadrillion(seed: int) -> None:
    """10¹⁵ token·iterations are ten years of a large cluster; the order must still be exact."""
    floats = ServedShare(VirtualClock(float(_V)))
    fractions = ServedShare(VirtualClock(exact(_V)))
    draw = random.Random(seed)
    for sequence in range(1, _EVENTS + 1):
        _step_both(floats, fractions, draw, sequence)
        for name in floats.accounts:
            ahead = Fraction(floats.tag(name)) - Fraction(floats.clock.virtual_time)
            exactly = fractions.tag(name) - fractions.clock.virtual_time

            assert abs(ahead - exactly) < 20

    assert floats.accounts.keys() == fractions.accounts.keys()
    assert floats.clock.virtual_time > _V + 10**6


@pytest.mark.parametrize("origin", [10**9, _V])
def test_rounding_error_of_the_backlog_is_a_random_walk(origin: int) -> None:
    """An error with a direction would in the end give some applications the service of others."""
    share, draw = ServedShare(VirtualClock(float(origin))), random.Random(1)
    events = 20_000
    for sequence in range(events):
        name, amount = f"a{draw.randrange(40)}", float(draw.randint(1_000, 1_000_000))
        verb = draw.choice(("deliver", "deliver", "deliver", "withdraw", "resume", "settle"))
        if name not in share.accounts:
            share.arrive(name, amount, float(draw.choice(_WEIGHTS)), sequence)
        else:
            apply_step(share, verb, name, amount)
    charged = sum(a.charged - a.attained for a in share.accounts.values() if not a.withdrawn)
    weights = sum(account.weight for account in share.accounts.values())
    step = ulp(share.clock.virtual_time) * weights

    assert share.clock.active_weight > 0
    assert abs(charged - share.clock.backlog()) < 2 * step * sqrt(events)


def test_nominal_clock_is_precise_after_a_billion_seconds() -> None:
    """At 10⁹ s a float's resolution is 2⁻²³ s, which is 0.04 token·iterations at this rate."""
    kv_tokens, iteration_s, started = 10_000, Fraction(3, 100), 10**9
    floats = NominalShare(float(iteration_s), VirtualClock(float(_V)))
    fractions = NominalShare(exact(iteration_s), VirtualClock(exact(_V)))
    for share, begin, work, weights in (
        (floats, float(started), 1e12, (1.0, 2.0)),
        (fractions, exact(started), exact(10**12), (exact(1), exact(2))),
    ):
        share.set_rate(kv_tokens, begin)
        for sequence, weight in enumerate(weights):
            share.arrive(f"a{sequence}", work, weight, sequence)
    draw, now = random.Random(1), Fraction(started)
    for event in range(1, _EVENTS + 1):
        now += Fraction(draw.randint(1, 100), 1000)
        floats.advance(float(now))
        fractions.advance(exact(now))
        off = abs(Fraction(floats.clock.virtual_time) - fractions.clock.virtual_time)
        tick = ulp(float(started)) * kv_tokens / float(iteration_s)

        assert off <= event * (tick + ulp(_V))

    assert off > 0
