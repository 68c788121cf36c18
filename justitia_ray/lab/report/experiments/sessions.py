"""Sessions of coding agents: the value of keeping their contexts in the prefix cache."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

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
from justitia_ray.sim.sessions.arms import ARMS
from justitia_ray.sim.sessions.play import SessionResult, SessionSettings, play_sessions
from justitia_ray.sim.sessions.profiles import PROFILES, LongContextProfile
from justitia_ray.sim.sessions.trace import SESSIONS_FILE, Session, read_sessions
from justitia_ray.units import Seconds

_REPLICAS = 4
_LOADS = (0.5, 0.9, 3.0)
_LONGEST_GAP_S: Seconds = 600.0
"""Longest pause of a user: longer ones, one in twenty, are cut to ten minutes. Runs that lasted for
days would not differ otherwise."""
_QUICK_SESSIONS, _QUICK_LOADS, _QUICK_PROFILES = 60, (0.9, 3.0), tuple(PROFILES)[-1:]
_PINNED = "pinned"


@dataclass(frozen=True, slots=True)
class SessionPlay:
    """A run of the recorded sessions."""

    data_dir: Path
    settings: SessionSettings
    sessions: int | None = None
    """Number of sessions, from the start of the file; None: all."""

    def run(self) -> SessionResult:
        """Simulate the sessions and return the result.

        Raises:
            ConfigError: If the data directory lacks the sessions.
        """
        return play_sessions(_recorded(self.data_dir)[: self.sessions], self.settings)

    def configuration(self) -> Mapping[str, Any]:
        """Return the settings and the number of sessions."""
        return {
            **asdict(self.settings),
            "sessions": self.sessions,
            "longest_gap_s": _LONGEST_GAP_S,
        }


@lru_cache(maxsize=1)
def _recorded(data_dir: Path) -> list[Session]:
    return read_sessions(data_dir / SESSIONS_FILE, _LONGEST_GAP_S)


def _group(profile: LongContextProfile, load: float) -> str:
    return f"{profile.name}, {load:g}x"


def _arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    sessions = _QUICK_SESSIONS if scale.is_quick else None
    return {
        Arm(_group(PROFILES[name], load), arm): SessionPlay(
            scale.data_dir,
            SessionSettings(arm, PROFILES[name], _REPLICAS, load, seed),
            sessions,
        )
        for name in scale.pick(tuple(PROFILES), _QUICK_PROFILES)
        for load in scale.pick(_LOADS, _QUICK_LOADS)
        for arm in ARMS
    }


def _mean_s(result: SessionResult) -> Seconds:
    return sum(row.served_s for row in result.sessions) / len(result.sessions)


def _figures(result: SessionResult) -> Mapping[str, float | None]:
    served = sorted(row.served_s for row in result.sessions)
    minutes = result.under_load_s / 60
    return {
        "mean_s": _mean_s(result),
        "p90_s": served[-(-9 * len(served) // 10) - 1],
        "worst_s": served[-1],
        "turns_a_minute": result.turns_under_load / minutes if result.turns_under_load else None,
        "cached": result.cached_tokens / result.prompt_tokens,
        "preemptions": result.preemptions,
        "at_once": result.at_once,
        "sessions": len(served),
        "turns": result.turns,
    }


def _charts(scale: Scale, found: Found) -> list[Chart]:
    loads = [f"{load:g}x" for load in scale.pick(_LOADS, _QUICK_LOADS)]
    charts = []
    for name in scale.pick(tuple(PROFILES), _QUICK_PROFILES):
        groups = [f"{name}, {load}" for load in loads]
        series = [
            curve(
                arm,
                (
                    (float(x), [_mean_s(outcomes[Arm(group, arm)]) for _, outcomes in found])
                    for x, group in enumerate(groups)
                ),
            )
            for arm in ARMS
        ]
        charts.append(
            Chart(
                name=f"sessions-{name}",
                title=f"Completion without gaps, {name}",
                x_label="load",
                y_label="seconds",
                series=series,
                kind="bars",
                categories=loads,
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
    ReportMetric("at_once", "sessions at once", digits=0, better=None),
    ReportMetric("sessions", "sessions", digits=0, better=None),
    ReportMetric("turns", "turns", digits=0, better=None),
)

SESSIONS = Experiment(
    name="sessions",
    title="Agents keep their context",
    source="the papers have nothing like it",
    about=(
        "Recorded sessions of coding agents, unscaled, on four replicas whose memory and "
        "iterations follow vLLM's scheduler and prefix cache block for block. As many sessions are "
        "there at once as have contexts of 0.5, 0.9 and 3 times the replicas' memory; when one has "
        "ended the next begins. Completion is without the gaps in which tools run and people "
        "read, of ten minutes at most. `pinned` is bare vLLM servers with sticky sessions; "
        "`lmetric` sends each turn where uncached tokens times requests are least "
        "(re-implemented from arXiv 2603.15202); `justitia` is the scheduling core, which knows "
        "costs and lengths. Sessions end before the first turn that exceeds a replica's memory; "
        "sub-agents, 1.3 % of the turns, are left out. The H200 was measured; the two H100 were "
        "not."
    ),
    arms=_arms,
    measure=measure_each(_figures),
    metrics=_METRICS,
    comparisons=compare_with(_PINNED, "mean_s", "p90_s", "worst_s", "turns_a_minute"),
    charts=_charts,
    quick_seeds=1,
)
