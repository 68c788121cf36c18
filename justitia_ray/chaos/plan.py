"""Which faults strike, in which order and company: a function of the seed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from justitia_ray.chaos.kinds import ABOUT, Kind
from justitia_ray.errors import ConfigError
from justitia_ray.units import Seconds

EARLIEST_S: Seconds = 0.8
LATEST_S: Seconds = 1.8
"""After the first arrival of its phase: by then every seat is taken and some wait."""

_ALONE = frozenset({Kind.SCALED, Kind.REDEPLOYED})
"""Serve carries these out over many seconds: what strikes meanwhile is another phase's."""
_EXCLUSIVE = (
    frozenset({Kind.REDIS_KILLED, Kind.REDIS_STOPPED, Kind.REDIS_EMPTIED}),
    frozenset({Kind.SCHEDULER_KILLED, Kind.SCHEDULER_STOPPED}),
    # The state is then gone on both sides, and nothing could keep the order.
    frozenset({Kind.SCHEDULER_KILLED, Kind.REDIS_EMPTIED}),
)
"""Kinds that do not strike at once: the same process, or everything there is of the state."""


@dataclass(frozen=True, slots=True)
class Strike:
    """One or more faults at one instant."""

    number: int
    """Which phase of the load it strikes, from 0."""
    kinds: tuple[Kind, ...]
    after_s: Seconds
    """After the phase's load began to arrive."""
    draw: float
    """In [0, 1): chooses whom it hits of those that it could hit."""


def draw_plan(
    seed: int, kinds: Sequence[Kind], times: int = 1, pairs: int = 0
) -> tuple[Strike, ...]:
    """Return the strikes of a run, each kind alone so many times, and so many pairs, shuffled.

    Args:
        seed: The same seed and arguments give the same plan.
        kinds: Which to draw from; their order does not matter.
        times: How often each strikes alone.
        pairs: Strikes of two kinds at once; no pair comes twice.

    Raises:
        ConfigError: If a kind is named twice, or the kinds do not make so many pairs.
    """
    if len(set(kinds)) != len(kinds):
        raise ConfigError(f"kinds are {', '.join(kinds)}: each may be named once")
    random_source = random.Random(f"plan {seed}")
    chosen = [kind for kind in ABOUT if kind in kinds]
    possible = possible_pairs(chosen)
    if pairs > len(possible):
        raise ConfigError(f"pairs is {pairs}: these kinds make {len(possible)} at most")
    strikes: list[tuple[Kind, ...]] = [(kind,) for kind in chosen for _ in range(times)]
    strikes += random_source.sample(possible, pairs)
    random_source.shuffle(strikes)
    return tuple(
        Strike(number, struck, random_source.uniform(EARLIEST_S, LATEST_S), random_source.random())
        for number, struck in enumerate(strikes)
    )


def possible_pairs(kinds: Sequence[Kind]) -> list[tuple[Kind, Kind]]:
    """Return every two of these kinds that can strike at once."""
    return [
        (one, other)
        for i, one in enumerate(kinds)
        for other in kinds[i + 1 :]
        if _together(one, other)
    ]


def _together(one: Kind, other: Kind) -> bool:
    if {one, other} & _ALONE:
        return False
    return not any({one, other} <= group for group in _EXCLUSIVE)
