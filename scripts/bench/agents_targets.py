"""Targets for agents that keep their context, measured by `scripts/bench_agents --targets`."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scripts.bench.agents_arms import OURS, OURS_OFF, PINNED
from scripts.bench.agents_player import Play
from scripts.bench.agents_report import Pair, figures
from scripts.bench.statistics import Verdict, paired_differences, paired_ratios, spread

PLAN = (
    ("synthetic", 8),
    ("synthetic", 16),
    ("synthetic", 32),
    ("synthetic", 64),
    ("common", 48),
)
"""Benchmark loads, each with its numbers of concurrent agents."""
CACHING, WORKING_SET = "caching", "working set"


@dataclass(frozen=True, slots=True)
class Measure:
    """Figure of a benchmark run for which targets exist."""

    name: str
    read: Callable[[Play], float]
    limit: str
    """Format string with which a limit is printed."""
    is_upper: bool
    """Whether the limit is an upper bound; otherwise it is a lower bound."""
    digits: int
    compare: Callable[[Sequence[float], Sequence[float]], list[float]] | None = paired_ratios
    """Function that compares this service's values with the baseline's; None if no baseline is
    used.
    """
    baseline: str = PINNED.name


MEAN = Measure("mean", lambda play: figures(play)["mean_s"], "{:.2f}", True, 2)
P90 = Measure("p90", lambda play: figures(play)["p90_s"], "{:.2f}", True, 2)
MAKESPAN = Measure("makespan", lambda play: play.elapsed_s, "{:.2f}", True, 2)
TURNS = Measure("turns a minute", lambda play: play.turns_per_minute, "{:.2f}", False, 2)
CACHED = Measure(
    "cached share", lambda play: 100 * play.cached_share, "{:.0f} %", False, 1, compare=None
)
CACHED_MORE = replace(CACHED, limit="{:+.0f} points", compare=paired_differences)
PREEMPTED_MORE = Measure(
    "preemptions",
    lambda play: math.nan if play.preemptions is None else play.preemptions,
    "{:+.0f}",
    True,
    0,
    compare=paired_differences,
    baseline=OURS_OFF.name,
)


@dataclass(frozen=True, slots=True)
class AgentTarget:
    """Limit for the median of a figure over all repeats of a load."""

    group: str
    load: str
    agents: int
    measure: Measure
    limit: float
    limit_on_gpu: float | None = None
    """Limit for runs on a GPU; None if it is the same as on the CPU."""


TARGETS = (
    AgentTarget(CACHING, "synthetic", 8, MEAN, 1.10, 1.03),
    AgentTarget(CACHING, "synthetic", 8, CACHED_MORE, -2),
    AgentTarget(CACHING, "synthetic", 8, PREEMPTED_MORE, 0),
    AgentTarget(CACHING, "synthetic", 16, MEAN, 1.15),
    AgentTarget(CACHING, "synthetic", 16, CACHED_MORE, 0),
    AgentTarget(CACHING, "synthetic", 16, PREEMPTED_MORE, 0),
    AgentTarget(CACHING, "synthetic", 32, MEAN, 1.0),
    AgentTarget(CACHING, "synthetic", 32, CACHED_MORE, 0),
    AgentTarget(CACHING, "synthetic", 32, PREEMPTED_MORE, 0),
    AgentTarget(CACHING, "common", 48, MAKESPAN, 1.10),
    AgentTarget(WORKING_SET, "synthetic", 8, CACHED, 80),
    AgentTarget(WORKING_SET, "synthetic", 16, MEAN, 0.95),
    AgentTarget(WORKING_SET, "synthetic", 16, P90, 0.9),
    AgentTarget(WORKING_SET, "synthetic", 16, CACHED, 80),
    AgentTarget(WORKING_SET, "synthetic", 32, MEAN, 0.70),
    AgentTarget(WORKING_SET, "synthetic", 32, P90, 0.9),
    AgentTarget(WORKING_SET, "synthetic", 32, TURNS, 1.3),
    AgentTarget(WORKING_SET, "synthetic", 32, CACHED, 80),
    AgentTarget(WORKING_SET, "synthetic", 64, MEAN, 0.60),
    AgentTarget(WORKING_SET, "synthetic", 64, P90, 0.9),
    AgentTarget(WORKING_SET, "synthetic", 64, CACHED, 80),
)


def verdicts(pairs: Sequence[Pair], *, on_gpu: bool) -> list[Verdict]:
    """Return for each target whether it is met, with median, minimum and maximum.

    Targets whose load or baseline was not played are left out.
    """
    found = []
    for target in TARGETS:
        if on_gpu and target.group == WORKING_SET:
            continue
        measure = target.measure
        needed = {OURS.name} if measure.compare is None else {OURS.name, measure.baseline}
        of_load = [
            pair
            for pair in pairs
            if pair.load == label(target.load, target.agents) and needed <= pair.plays.keys()
        ]
        if not of_load:
            continue
        values = [measure.read(pair.plays[OURS.name]) for pair in of_load]
        if measure.compare is not None:
            others = [measure.read(pair.plays[measure.baseline]) for pair in of_load]
            values = measure.compare(values, others)
        limit = target.limit
        if on_gpu and target.limit_on_gpu is not None:
            limit = target.limit_on_gpu
        median = statistics.median(values)
        found.append(
            Verdict(
                _describe_target(target, limit),
                median <= limit if measure.is_upper else median >= limit,
                spread(values).format(measure.digits),
            )
        )
    return found


def label(name: str, agents: int) -> str:
    return f"{name} of {agents}"


def _describe_target(target: AgentTarget, limit: float) -> str:
    measure = target.measure
    load = "" if target.load == "synthetic" else f", {target.load}"
    over = "" if measure.compare is None else f" over {measure.baseline}"
    return (
        f"{target.group}, {target.agents} agents{load}: {measure.name}{over},"
        f" {'at most' if measure.is_upper else 'at least'} {measure.limit.format(limit)}"
    )
