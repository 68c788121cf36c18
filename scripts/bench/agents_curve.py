"""Turns a minute of each arm over the number of concurrent agents.

Servers that take requests as they come fall off a cliff once the contexts of all agents exceed the
KV memory: each is evicted before its next turn.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from justitia_ray.cli.text_table import text_table
from scripts.bench.agents_report import Pair


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Throughput of an arm at one number of concurrent agents: medians over repeated runs."""

    load: str
    """Name of the load, without the number of agents."""
    agents: int
    arm: str
    turns_per_minute: float
    cached_share: float
    of_best: float
    """Turns a minute divided by the arm's highest turns a minute at any number of agents of this
    load.
    """


def curve(pairs: Sequence[Pair]) -> list[CurvePoint]:
    """Return a point for each load, number of agents and arm.

    With loads given as multiples of the memory, repeats have slightly different numbers of agents:
    the median counts.
    """
    points = []
    for load in dict.fromkeys(_name(pair) for pair in pairs):
        of_load = [pair for pair in pairs if _name(pair) == load]
        by_size = [
            [pair for pair in of_load if pair.load == size]
            for size in dict.fromkeys(pair.load for pair in of_load)
        ]
        for arm in dict.fromkeys(arm for pair in of_load for arm in pair.plays):
            played = [[pair for pair in found if arm in pair.plays] for found in by_size]
            medians = [_median_point(arm, found) for found in played if found]
            most = max(turns for _, turns, _ in medians) or 1.0
            points += [
                CurvePoint(load, agents, arm, turns, cached, turns / most)
                for agents, turns, cached in medians
            ]
    return points


def _name(pair: Pair) -> str:
    return pair.load.partition(" ")[0]


def _median_point(arm: str, pairs: Sequence[Pair]) -> tuple[int, float, float]:
    plays = [pair.plays[arm] for pair in pairs]
    return (
        round(statistics.median(pair.agents for pair in pairs)),
        statistics.median(play.turns_per_minute for play in plays),
        statistics.median(play.cached_share for play in plays),
    )


def curve_table(points: Sequence[CurvePoint]) -> str:
    loads = dict.fromkeys(point.load for point in points)
    several = {
        load for load in loads if len({one.agents for one in points if one.load == load}) > 1
    }
    if not several:
        return ""
    arms = list(dict.fromkeys(point.arm for point in points))
    rows = [
        (
            "load",
            "agents",
            *(
                head
                for arm in arms
                for head in (f"{arm}: turns/min", f"{arm}: of its best, %", f"{arm}: cached, %")
            ),
        )
    ]
    known = {(one.load, one.agents, one.arm): one for one in points if one.load in several}
    for load, agents in sorted({(load, agents) for load, agents, _ in known}):
        cells: list[str] = []
        for arm in arms:
            point = known.get((load, agents, arm))
            cells += ["–"] * 3 if point is None else _table_cells(point)
        rows.append((load, str(agents), *cells))
    return text_table(rows, numbers_from=1)


def _table_cells(point: CurvePoint) -> list[str]:
    return [
        f"{point.turns_per_minute:.0f}",
        f"{100 * point.of_best:.0f}",
        f"{100 * point.cached_share:.0f}",
    ]
