"""Targets for agents that keep their context, measured by `scripts/bench_agents --targets`."""

import statistics
from collections.abc import Callable, Sequence

from scripts.bench.agents_arms import OURS, PINNED
from scripts.bench.agents_player import Play
from scripts.bench.agents_report import Pair, figures
from scripts.bench.statistics import Verdict, paired_differences, paired_ratios, spread

PLAN = (("synthetic", 8), ("synthetic", 16), ("synthetic", 32), ("common", 48))
"""Loads, each with the number of concurrent agents."""
_MOST_MEAN = {8: 1.10, 16: 1.15, 32: 1.0}
"""Highest allowed mean completion time relative to the pinned vLLM servers, by agents."""
_MOST_MEAN_ON_GPU = {**_MOST_MEAN, 8: 1.03}
_MOST_MAKESPAN = 1.10
_LEAST_CACHED_POINTS = {8: -2.0, 16: 0.0, 32: 0.0}
"""Least allowed cached share minus that of the pinned vLLM servers, in percentage points."""


def verdicts(pairs: Sequence[Pair], *, on_gpu: bool) -> list[Verdict]:
    """Return a verdict for each target: median, minimum and maximum over the pairs."""
    found = []
    most_mean = _MOST_MEAN_ON_GPU if on_gpu else _MOST_MEAN
    for name, agents in PLAN:
        of_load = [
            pair
            for pair in pairs
            if pair.load == label(name, agents) and {OURS.name, PINNED.name} <= pair.plays.keys()
        ]
        if not of_load:
            continue
        if name == "common":
            ratios = paired_ratios(*_both(of_load, lambda play: play.elapsed_s))
            found.append(_at_most(f"{agents} agents, common: makespan", ratios, _MOST_MAKESPAN))
            continue
        means = paired_ratios(*_both(of_load, lambda play: figures(play)["mean_s"]))
        found.append(_at_most(f"{agents} agents: mean", means, most_mean[agents]))
        points = paired_differences(*_both(of_load, lambda play: 100 * play.cached_share))
        least = _LEAST_CACHED_POINTS[agents]
        found.append(
            Verdict(
                f"{agents} agents: cached share over {PINNED.name}, at least {least:+.0f} points",
                statistics.median(points) >= least,
                spread(points).format(1),
            )
        )
    return found


def label(name: str, agents: int) -> str:
    """Return the name of a load with a number of concurrent agents."""
    return f"{name} of {agents}"


def _both(
    pairs: Sequence[Pair], figure: Callable[[Play], float]
) -> tuple[list[float], list[float]]:
    return (
        [figure(pair.plays[OURS.name]) for pair in pairs],
        [figure(pair.plays[PINNED.name]) for pair in pairs],
    )


def _at_most(what: str, ratios: Sequence[float], most: float) -> Verdict:
    target = f"{what} over {PINNED.name}, at most {most:.2f}"
    return Verdict(target, statistics.median(ratios) <= most, spread(ratios).format(2))
