"""Nine classes of applications under schedulers of agents, on replicas with a prefix cache."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from justitia_ray.lab.report.experiment import (
    Arm,
    Experiment,
    Measures,
    Outcomes,
    ReportMetric,
    Scale,
    Task,
    compare_with,
)
from justitia_ray.lab.report.experiments import nine_class
from justitia_ray.lab.report.experiments.sessions import (
    BestRun,
    run_each_setting,
    time_figures,
)
from justitia_ray.lab.report.tasks import SuiteLoad
from justitia_ray.sim.engine_profile import load_profile
from justitia_ray.sim.sessions.applications import sessions_of
from justitia_ray.sim.sessions.arms import APPLICATION_ARMS
from justitia_ray.sim.sessions.play import SessionResult, SessionSettings
from justitia_ray.sim.sessions.profiles import LongContextProfile
from justitia_ray.sim.sessions.trace import Session
from justitia_ray.units import Seconds, Tokens

_ENGINE = "a10g-llama2-7b"
_BLOCK_SIZE: Tokens = 16
_DENSITIES, _QUICK_DENSITIES = (1, 2, 3), (3,)
_REPLICAS, _QUICK_REPLICAS = (1, 4), (1,)
_VTC, _PINNED = "vtc", "pinned"


@dataclass(frozen=True, slots=True)
class ApplicationPlay:
    """Runs of a load of applications with an arm, one for each of its settings."""

    load: SuiteLoad
    settings: SessionSettings

    def run(self) -> BestRun:
        """Simulate the load with each setting; return the run of least mean completion time.

        Raises:
            ConfigError: If the data directory lacks files.
        """
        grid = APPLICATION_ARMS[self.settings.arm].grid
        return run_each_setting(
            _sessions_of(self.load),
            self.settings,
            grid,
            lambda result: [*_completions_s(result).values()],
        )

    def configuration(self) -> Mapping[str, Any]:
        """Return the load, the settings of the run, and those that are tried."""
        grid = APPLICATION_ARMS[self.settings.arm].grid
        return {
            **self.load.configuration(),
            **asdict(self.settings),
            "tried": [dict(options) for options in grid],
        }


@lru_cache(maxsize=2)
def _sessions_of(load: SuiteLoad) -> list[Session]:
    return sessions_of(load.build(), _BLOCK_SIZE)


def _group(replicas: int, density: float) -> str:
    return f"{replicas} replica{'s'[: replicas > 1]}, {density:g}x"


def _arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    profile = LongContextProfile.of_engine(load_profile(_ENGINE), _ENGINE, _BLOCK_SIZE)
    return {
        Arm(_group(replicas, density), arm): ApplicationPlay(
            nine_class.load(scale, seed, density * replicas),
            SessionSettings(arm, profile, replicas, load=None, seed=seed),
        )
        for replicas in scale.pick(_REPLICAS, _QUICK_REPLICAS)
        for density in scale.pick(_DENSITIES, _QUICK_DENSITIES)
        for arm in APPLICATION_ARMS
    }


def _completions_s(result: SessionResult) -> dict[str, Seconds]:
    return {row.name: row.completion_s for row in result.sessions}


def _measure(outcomes: Outcomes) -> Measures:
    found: dict[Arm, Mapping[str, float | None]] = {}
    for arm, best in outcomes.items():
        result = best.result
        reference = _completions_s(outcomes[Arm(arm.group, _VTC)].result)
        completions = _completions_s(result)
        ratios = [completions[name] / reference[name] for name in reference]
        found[arm] = {
            **time_figures([*completions.values()]),
            "no_later_than_vtc": sum(ratio <= 1 for ratio in ratios) / len(ratios),
            "worst_ratio_to_vtc": max(ratios),
            "cached": result.cached_tokens / result.prompt_tokens,
            "preemptions": result.preemptions,
            "setting": best.setting,
        }
    return found


NINE_CLASS_RIVALS = Experiment(
    name="nine-class-rivals",
    title="Nine classes under schedulers of agents",
    source="the papers have nothing like it",
    about=(
        "The main load of nine classes on one replica, and four times as dense on four replicas, "
        f"with the memory and the iteration times of the profile `{_ENGINE}`, but vLLM's scheduler "
        "and prefix cache, block for block. Turns of FV and ALFWI continue their prompts; samples "
        "of SC, scores of DM and solutions of CC that are equally long have one prompt; nothing "
        "else is cached, since templates are not recorded. Completion includes tool gaps. The arms "
        "are those of the recorded sessions, with calls in parallel: `thunder-agent` and `mori` "
        "count the sum or the longest of a program's contexts, `cache-ttl` pins the turns of FV "
        "and ALFWI, `gittins` knows classes and stages. Each gets its best settings in every cell, "
        "by the mean; ours has one. `justitia` knows costs and lengths, `justitia-class-mean` the "
        "means of each class."
    ),
    arms=_arms,
    measure=_measure,
    metrics=(
        ReportMetric("mean_s", "mean completion", unit="s"),
        ReportMetric("p90_s", "p90", unit="s"),
        ReportMetric("worst_s", "longest", unit="s"),
        ReportMetric("no_later_than_vtc", "no later than under VTC", is_share=True, better="high"),
        ReportMetric("worst_ratio_to_vtc", "worst against VTC", digits=2, unit="×"),
        ReportMetric("cached", "prompt tokens cached", is_share=True, better="high"),
        ReportMetric("preemptions", "preemptions", digits=0),
        ReportMetric("setting", "best setting", digits=0, better=None),
    ),
    comparisons=compare_with(_PINNED, "mean_s", "p90_s", "worst_s"),
    quick_seeds=1,
)
