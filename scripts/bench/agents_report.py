"""Report of scripts/bench_agents: figures of each play, and comparison of pairs."""

import csv
import statistics
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from justitia_ray.cli.text_table import text_table
from scripts.bench.agents import AGENT, SINGLE
from scripts.bench.agents_player import Play, TurnSample
from scripts.bench.statistics import percentile, spread


@dataclass(frozen=True, slots=True)
class Pair:
    """Results of one load on all arms, which are called one after the other."""

    load: str
    repeat: int
    agents: int
    plays: dict[str, Play]
    """Result of each arm, by the arm's name."""


def figures(play: Play) -> dict[str, float]:
    """Return the figures of one run; completion times cover only sessions that ended."""
    ended = list(play.completion_s.values())
    latencies = [turn.latency_s for turn in play.turns]
    return {
        "mean_s": statistics.fmean(ended) if ended else float("nan"),
        "p90_s": percentile(ended, 90) if ended else float("nan"),
        "turns_per_minute": play.turns_per_minute,
        "turn_p50_s": percentile(latencies, 50) if latencies else float("nan"),
        "makespan_s": play.elapsed_s,
        "cached_share": play.cached_share,
        **({} if play.preemptions is None else {"preemptions": play.preemptions}),
        **_figures_by_kind(play),
        "count_moved_turns": play.count_moved_turns,
        "sessions": len(ended),
        "errors": len(play.errors),
    }


def _figures_by_kind(play: Play) -> dict[str, float]:
    """Return mean completion time and cached share, for agents and for single calls.

    Empty if the play has no single calls.
    """
    singles = {name for name in play.completion_s if name.startswith(SINGLE)}
    found: dict[str, float] = {}
    if not singles:
        return found
    for kind, is_single in ((AGENT, False), (SINGLE, True)):
        ended = [s for name, s in play.completion_s.items() if (name in singles) == is_single]
        turns = [turn for turn in play.turns if (turn.session in singles) == is_single]
        prompts = sum(turn.prompt_tokens for turn in turns)
        found[f"{kind}_mean_s"] = statistics.fmean(ended) if ended else float("nan")
        cached = sum(turn.cached_tokens for turn in turns)
        found[f"{kind}_cached_share"] = cached / prompts if prompts else 0.0
    return found


def session_kinds_table(pairs: Sequence[Pair]) -> str:
    """Return mean completion time and cached share by kind of session: medians over repeats.

    Empty if no load has several kinds.
    """
    names = [f"{kind}_{name}" for kind in (AGENT, SINGLE) for name in ("mean_s", "cached_share")]
    rows = [("load", "arm", *names)]
    for load in dict.fromkeys(pair.load for pair in pairs):
        of_load = [pair for pair in pairs if pair.load == load]
        for arm in dict.fromkeys(name for pair in of_load for name in pair.plays):
            found = [figures(pair.plays[arm]) for pair in of_load if arm in pair.plays]
            if all(name in one for one in found for name in names):
                spans = [spread([one[name] for one in found]).format(3) for name in names]
                rows.append((load, arm, *spans))
    return text_table(rows, numbers_from=2) if len(rows) > 1 else ""


def worst_completion_ratio(play: Play, baseline: Play) -> float:
    """Return the largest ratio of a session's completion time to its time under the baseline."""
    ratios = [
        play.completion_s[name] / s
        for name, s in baseline.completion_s.items()
        if name in play.completion_s
    ]
    return max(ratios, default=float("nan"))


def table(pairs: Sequence[Pair], baseline: str) -> str:
    """Return a table of medians (minimum to maximum) over the repeats, by load and arm."""
    rows = [
        (
            "load",
            "agents",
            "arm",
            "mean, s",
            "p90, s",
            f"mean over {baseline}",
            f"worst to {baseline}",
            "makespan, s",
            f"over {baseline}",
            "turns/min",
            "cached, %",
            "preemptions",
            "errors",
        )
    ]
    for load in dict.fromkeys(pair.load for pair in pairs):
        of_load = [pair for pair in pairs if pair.load == load]
        for arm in dict.fromkeys(name for pair in of_load for name in pair.plays):
            paired = [pair for pair in of_load if arm in pair.plays]
            own = [figures(pair.plays[arm]) for pair in paired]
            compared = [pair for pair in paired if baseline in pair.plays]
            ratios = [
                figures(pair.plays[arm])["mean_s"] / figures(pair.plays[baseline])["mean_s"]
                for pair in compared
            ]
            spans = [
                pair.plays[arm].elapsed_s / pair.plays[baseline].elapsed_s
                for pair in compared
                if pair.plays[baseline].turns
            ]
            preempted = [one["preemptions"] for one in own if "preemptions" in one]
            worst = [
                worst_completion_ratio(pair.plays[arm], pair.plays[baseline]) for pair in compared
            ]
            rows.append(
                (
                    load,
                    str(of_load[0].agents),
                    arm,
                    spread([one["mean_s"] for one in own]).format(2),
                    spread([one["p90_s"] for one in own]).format(2),
                    spread(ratios).format(2) if ratios else "",
                    spread(worst).format(2) if worst else "",
                    spread([pair.plays[arm].elapsed_s for pair in paired]).format(1),
                    spread(spans).format(2) if spans else "",
                    spread([one["turns_per_minute"] for one in own]).format(1),
                    spread([100 * one["cached_share"] for one in own]).format(1),
                    spread(preempted).format(0) if preempted else "",
                    str(sum(int(one["errors"]) for one in own)),
                )
            )
    return text_table(rows, numbers_from=3)


def turn_time_table(pairs: Sequence[Pair]) -> str:
    """Return a table of where a turn's time goes (queue, replica, other), as medians over repeats.

    The column `rest` is the time outside queue and replica: HTTP, the ingress and its token count,
    delivery of lease and payload, and the way back.
    """
    rows = [
        (
            "load",
            "arm",
            "turn, s",
            "queued, s",
            "on the replica, s",
            "rest, s",
            "computed prompt tokens a turn",
            "moved turns",
            "CPU ms a turn",
            "of it not engines",
        )
    ]
    for load in dict.fromkeys(pair.load for pair in pairs):
        of_load = [pair for pair in pairs if pair.load == load]
        for arm in dict.fromkeys(name for pair in of_load for name in pair.plays):
            plays = [pair.plays[arm] for pair in of_load if arm in pair.plays]
            hops = [_mean_turn_times(play) for play in plays if play.turns]
            if hops:
                medians = [statistics.median(column) for column in zip(*hops, strict=True)]
                digits = (3, 3, 3, 3, 0, 0, 0, 0)
                shown = [f"{value:.{n}f}" for value, n in zip(medians, digits, strict=True)]
                rows.append((load, arm, *shown))  # type: ignore[arg-type]
    return text_table(rows, numbers_from=2)


def _mean_turn_times(play: Play) -> tuple[float, ...]:
    turns, count = play.turns, len(play.turns)
    whole = statistics.fmean(turn.latency_s for turn in turns)
    queued = statistics.fmean(turn.queued_s for turn in turns)
    ran = statistics.fmean(turn.ran_s for turn in turns)
    computed = statistics.fmean(turn.prompt_tokens - turn.cached_tokens for turn in turns)
    cpu_s = sum(play.cpu_s.values())
    beside = cpu_s - play.cpu_s.get("engine", 0.0)
    return (
        *(whole, queued, ran, whole - queued - ran, computed, float(play.count_moved_turns)),
        *(1_000 * cpu_s / count, 1_000 * beside / count),
    )


def document(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    return [
        {
            "load": pair.load,
            "repeat": pair.repeat,
            "agents": pair.agents,
            "arm": arm,
            "figures": {key: round(value, 4) for key, value in figures(play).items()},
            "completion_s": {name: round(s, 4) for name, s in play.completion_s.items()},
            "cpu_s": {role: round(s, 3) for role, s in play.cpu_s.items()},
            "errors": list(play.errors),
        }
        for pair in pairs
        for arm, play in pair.plays.items()
    ]


def write_turns(file: Path, pairs: Sequence[Pair]) -> None:
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["load", "repeat", "arm", *(field.name for field in fields(TurnSample))])
        for pair in pairs:
            for arm, play in pair.plays.items():
                for turn in play.turns:
                    values = (round(v, 4) if isinstance(v, float) else v for v in astuple(turn))
                    writer.writerow([pair.load, pair.repeat, arm, *values])
