"""Sessions of coding agents: the gain of keeping their contexts in the prefix cache."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from justitia_ray.lab.report.experiment import (
    Arm,
    Chart,
    Experiment,
    Found,
    ReportMetric,
    Scale,
    Task,
    compare_with,
    measure_each,
)
from justitia_ray.lab.report.statistics import curve
from justitia_ray.sim.sessions.arms import ARMS, ArmOptions
from justitia_ray.sim.sessions.play import SessionResult, SessionSettings, play_sessions
from justitia_ray.sim.sessions.profiles import PROFILES
from justitia_ray.sim.sessions.trace import SESSIONS_FILE, Session, read_sessions
from justitia_ray.units import Seconds

_REPLICAS = (1, 4)
_CELLS = ((0.9, 0.0), (1.5, 0.0), (3.0, 0.0), (3.0, 1.0), (3.0, 2.0))
"""Load and size of host memory of each simulated case, relative to the KV memory."""
_LONGEST_GAP_S: Seconds = 600.0
"""Longest pause of a user in seconds; longer pauses, one in twenty, are cut.

Otherwise runs would last for days without other results.
"""
_QUICK_SESSIONS, _QUICK_PROFILES, _QUICK_REPLICAS = 60, tuple(PROFILES)[-1:], (4,)
_QUICK_CELLS = ((0.9, 0.0), (3.0, 0.0))
_PINNED = "pinned"


class BestRun(NamedTuple):
    """The run with the settings of the lowest mean completion time."""

    setting: int
    result: SessionResult


def run_each_setting(
    sessions: Sequence[Session],
    settings: SessionSettings,
    grid: Iterable[ArmOptions],
    times_s: Callable[[SessionResult], Sequence[Seconds]],
) -> BestRun:
    """Simulate sessions with each setting of a scheduler; return the run of least mean time.

    Args:
        sessions: The sessions.
        settings: Settings of the runs, but for the scheduler's options.
        grid: Options of the scheduler, one entry for each run.
        times_s: Returns the time of each session of a run.
    """
    runs = [
        BestRun(place, play_sessions(sessions, replace(settings, options=options)))
        for place, options in enumerate(grid)
    ]
    return min(runs, key=lambda run: _mean(times_s(run.result)))


def time_figures(times_s: Sequence[Seconds]) -> dict[str, float | None]:
    """Return mean, 90th percentile and maximum of the sessions' times."""
    ordered = sorted(times_s)
    return {
        "mean_s": _mean(times_s),
        "p90_s": ordered[-(-9 * len(ordered) // 10) - 1],
        "worst_s": ordered[-1],
    }


def _mean(times_s: Sequence[Seconds]) -> Seconds:
    return sum(times_s) / len(times_s)


@dataclass(frozen=True, slots=True)
class SessionPlay:
    """Simulated runs of recorded agent sessions, one for each setting of a scheduler."""

    data_dir: Path
    settings: SessionSettings
    sessions: int | None = None
    """Number of recorded sessions to simulate; None: all."""

    def run(self) -> BestRun:
        """Simulate the sessions with each setting; return the run of least mean completion time.

        Raises:
            ConfigError: If the data directory lacks the sessions.
        """
        sessions = _read_recorded_sessions(self.data_dir)[: self.sessions]
        return run_each_setting(sessions, self.settings, ARMS[self.settings.arm].grid, _served_s)

    def configuration(self) -> Mapping[str, Any]:
        return {
            **asdict(self.settings),
            "tried": [dict(options) for options in ARMS[self.settings.arm].grid],
            "sessions": self.sessions,
            "longest_gap_s": _LONGEST_GAP_S,
        }


@lru_cache(maxsize=1)
def _read_recorded_sessions(data_dir: Path) -> list[Session]:
    return read_sessions(data_dir / SESSIONS_FILE, _LONGEST_GAP_S)


def _load_and_host_label(load: float, host: float) -> str:
    return f"{load:g}x, host {host:g} M" if host else f"{load:g}x"


def _group_label(profile: str, replicas: int, load: float, host: float) -> str:
    return f"{profile}, {replicas} replica{'s'[: replicas > 1]}, {_load_and_host_label(load, host)}"


def _arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    sessions = _QUICK_SESSIONS if scale.is_quick else None
    return {
        Arm(_group_label(name, replicas, load, host), arm): SessionPlay(
            scale.data_dir,
            SessionSettings(arm, PROFILES[name], replicas, load, seed, host=host),
            sessions,
        )
        for name in scale.pick(tuple(PROFILES), _QUICK_PROFILES)
        for replicas in scale.pick(_REPLICAS, _QUICK_REPLICAS)
        for load, host in scale.pick(_CELLS, _QUICK_CELLS)
        for arm in ARMS
    }


def _served_s(result: SessionResult) -> list[Seconds]:
    return [row.served_s for row in result.sessions]


def _session_figures(best: BestRun) -> Mapping[str, float | None]:
    result = best.result
    minutes = result.under_load_s / 60
    return {
        **time_figures(_served_s(result)),
        "turns_a_minute": result.turns_under_load / minutes if result.turns_under_load else None,
        "cached": result.cached_tokens / result.prompt_tokens,
        "preemptions": result.preemptions,
        "setting": best.setting,
        "at_once": result.at_once,
        "sessions": len(result.sessions),
        "turns": result.turns,
    }


def _charts(scale: Scale, found: Found) -> list[Chart]:
    cells = scale.pick(_CELLS, _QUICK_CELLS)
    charts = []
    for name in scale.pick(tuple(PROFILES), _QUICK_PROFILES):
        for replicas in scale.pick(_REPLICAS, _QUICK_REPLICAS):
            groups = [_group_label(name, replicas, load, host) for load, host in cells]
            series = [
                curve(
                    arm,
                    (
                        (
                            float(x),
                            [
                                _mean(_served_s(outcomes[Arm(group, arm)].result))
                                for _, outcomes in found
                            ],
                        )
                        for x, group in enumerate(groups)
                    ),
                )
                for arm in ARMS
            ]
            charts.append(
                Chart(
                    name=f"sessions-{name}-{replicas}",
                    title=f"Completion without gaps, {name}, replicas: {replicas}",
                    x_label="load",
                    y_label="seconds",
                    series=series,
                    kind="bars",
                    categories=[_load_and_host_label(load, host) for load, host in cells],
                    is_log_y=True,
                )
            )
    return charts


_METRICS = (
    ReportMetric("mean_s", "mean completion", unit="s", digits=0),
    ReportMetric("p90_s", "p90", unit="s", digits=0),
    ReportMetric("worst_s", "worst", unit="s", digits=0),
    ReportMetric("turns_a_minute", "turns a minute", better="high"),
    ReportMetric("cached", "prompt tokens cached", is_share=True, better="high"),
    ReportMetric("preemptions", "preemptions", digits=0),
    ReportMetric("setting", "best setting", digits=0, better=None),
    ReportMetric("at_once", "sessions at once", digits=0, better=None),
    ReportMetric("sessions", "sessions", digits=0, better=None),
    ReportMetric("turns", "turns", digits=0, better=None),
)

SESSIONS = Experiment(
    name="sessions",
    title="Agents keep their context",
    source="the papers have nothing like it",
    about=(
        "Recorded sessions of coding agents, unscaled, on one and four replicas whose memory and "
        "iterations follow vLLM's scheduler and prefix cache block for block. As many sessions are "
        "there at once as have contexts of 0.9, 1.5 and 3 times the replicas' memory, at 3 also "
        "with host memory of one and two times the KV memory; when one has ended the next begins. "
        "Completion is without the gaps in which tools run and people read, of ten minutes at "
        "most. `pinned` is bare vLLM servers with sticky sessions. "
        "`justitia` is the scheduling core, which knows costs and lengths; `justitia-class-mean` "
        "knows only their means over all sessions. The other arms are re-implementations of other "
        "schedulers from their papers, none the authors' code: `lmetric` (arXiv 2603.15202), "
        "`cache-ttl` (2511.02230), `thunder-agent` (2602.13692), `concur` (2601.22705), `mori` "
        "(2606.00866, without its order of host memory) and `gittins` (the order of Hermes, "
        "2506.14851). Each of them gets its best of up to six settings in every cell, by the "
        "mean; ours has one. Sessions end before the first turn that exceeds a replica's memory; "
        "sub-agents, 1.3 % of the turns, are left out. The H200 was measured; the two H100 were "
        "not."
    ),
    arms=_arms,
    measure=measure_each(_session_figures),
    metrics=_METRICS,
    comparisons=compare_with(_PINNED, "mean_s", "p90_s", "worst_s", "turns_a_minute"),
    charts=_charts,
    quick_seeds=1,
)
