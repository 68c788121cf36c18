"""What `scripts/bench_live` measured on live engines, beside the simulator's word on it.

The runs are recorded: a report reads their figures from `live.json` and runs nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from justitia_ray.errors import ConfigError
from justitia_ray.report.experiment import (
    Arm,
    Comparison,
    Experiment,
    Measures,
    Metric,
    Outcomes,
    Scale,
    Target,
    Task,
)

LIVE = "live.json"
MOST_ERROR = 0.15
"""Of the simulated mean completion time, either way."""
_OWN = "justitia"
_MICROSECOND = 1e-6
_FIELDS = ("arms", "seeds", "machine", "load", "model", "elephant", "version")


@dataclass(frozen=True, slots=True)
class Recorded:
    """The figures of one arm on one seed, from a file."""

    path: Path
    seed: int
    arm: str

    def run(self) -> Mapping[str, Any]:
        """Return `live`, `simulated`, `machine` and `classes` of the arm.

        Raises:
            ConfigError: If the file cannot be read.
        """
        row = next(s for s in read_live(self.path)["seeds"] if s["seed"] == self.seed)
        return {
            "live": row["live"][self.arm],
            "simulated": row["simulated"][self.arm],
            "machine": row["machine"][self.arm],
            "error": row["error"][self.arm],
            "classes": {name: arms[self.arm] for name, arms in row["classes"].items()},
        }

    def configuration(self) -> Mapping[str, Any]:
        """Return machine, load and model of the recording."""
        live = read_live(self.path)
        return {name: live[name] for name in ("version", "machine", "load", "model")}


@dataclass(frozen=True, slots=True)
class RecordedElephant:
    """The figures of the elephant's run under one policy, from a file."""

    path: Path
    arm: str

    def run(self) -> Mapping[str, Any]:
        """Return the elephant's figures.

        Raises:
            ConfigError: If the file cannot be read.
        """
        found: Mapping[str, Any] = read_live(self.path)["elephant"]["arms"][self.arm]
        return found

    def configuration(self) -> Mapping[str, Any]:
        """Return machine and load of the recording."""
        live = read_live(self.path)
        return {"machine": live["machine"], "load": live["elephant"]["load"]}


@lru_cache(maxsize=2)
def read_live(path: Path) -> Mapping[str, Any]:
    """Read what `scripts/bench_live` wrote.

    Raises:
        ConfigError: If the file cannot be read or lacks a field; names it.
    """
    try:
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    missing = [name for name in _FIELDS if not isinstance(values, dict) or name not in values]
    if missing:
        raise ConfigError(
            f"{path}: must hold {', '.join(_FIELDS)} as scripts/bench_live writes them, lacks"
            f" {', '.join(missing)}"
        )
    found: Mapping[str, Any] = values
    return found


def live_experiments(directory: Path) -> tuple[Experiment, ...]:
    """Return the sections about a directory that `scripts/bench_live` wrote.

    Raises:
        ConfigError: If its `live.json` cannot be read or lacks a field.
    """
    path = directory.resolve() / LIVE
    live = read_live(path)
    about = _about(live)
    seeds = tuple(int(row["seed"]) for row in live["seeds"])
    experiments = [_policies(path, live, seeds, about), _classes(path, live, seeds)]
    if live["elephant"]:
        experiments.append(_elephant(path, live))
    return tuple(experiments)


def _policies(
    path: Path, live: Mapping[str, Any], seeds: tuple[int, ...], about: str
) -> Experiment:
    names = [str(name) for name in live["arms"]]
    return Experiment(
        name="live",
        title="Live: nine classes on real engines",
        source="measured by scripts/bench_live; beside Justitia v1, Fig. 8 to 10",
        about=about,
        arms=lambda _, seed: {Arm("", name): Recorded(path, seed, name) for name in names},
        measure=_measure_policies,
        metrics=(
            Metric("mean_jct_s", "mean JCT", unit="s"),
            Metric("p90_jct_s", "p90 JCT", unit="s"),
            Metric("no_later_than_vtc", "no later than vtc", is_share=True, better="high"),
            Metric("worst_ratio_to_vtc", "worst over vtc", digits=2, unit="x"),
            Metric("kv_utilization", "KV held", is_share=True, better=None),
            Metric("preemptions", "preemptions", better=None),
            Metric("decision_p50_us", "decision p50", unit="µs", is_timing=True),
            Metric("decision_p99_us", "decision p99", unit="µs", is_timing=True),
            Metric("simulated_mean_jct_s", "mean JCT simulated", unit="s", better=None),
            Metric("error", "simulated is off by", is_share=True, better=None),
            Metric("absolute_error", "either way", is_share=True, better=None),
        ),
        comparisons=(
            Comparison("mean_jct_s", "vtc"),
            Comparison("mean_jct_s", "fcfs"),
            Comparison("simulated_mean_jct_s", "vtc"),
        ),
        targets=(
            *(
                Target(
                    f"simulated mean JCT against that on real engines, {name}",
                    Arm("", name),
                    "absolute_error",
                    at_most=MOST_ERROR,
                )
                for name in names
            ),
            Target(
                "mean JCT on real engines, justitia against vtc",
                Arm("", _OWN),
                "mean_jct_s",
                at_most=0.0,
                against="vtc",
            ),
        ),
        recorded_seeds=seeds,
    )


def _measure_policies(_: Scale, outcomes: Outcomes) -> Measures:
    return {
        arm: {
            **{
                name: found["live"][name]
                for name in (
                    "mean_jct_s",
                    "p90_jct_s",
                    "no_later_than_vtc",
                    "worst_ratio_to_vtc",
                    "kv_utilization",
                    "preemptions",
                )
            },
            "decision_p50_us": _microseconds(found["machine"]["decisions"]["p50_s"]),
            "decision_p99_us": _microseconds(found["machine"]["decisions"]["p99_s"]),
            "simulated_mean_jct_s": found["simulated"]["mean_jct_s"],
            "error": found["error"],
            "absolute_error": _absolute(found["error"]),
        }
        for arm, found in outcomes.items()
    }


def _classes(path: Path, live: Mapping[str, Any], seeds: tuple[int, ...]) -> Experiment:
    names = [str(name) for name in live["arms"]]
    classes = sorted({name for row in live["seeds"] for name in row["classes"]})

    def arms(_: Scale, seed: int) -> Mapping[Arm, Task]:
        return {Arm(c, name): Recorded(path, seed, name) for c in classes for name in names}

    return Experiment(
        name="live-classes",
        title="Live: completion times by class",
        source="measured by scripts/bench_live; beside Justitia v1, Fig. 9",
        about=(
            "The same runs, class by class. A class that a seed has no application of has no "
            "figures here."
        ),
        arms=arms,
        measure=_measure_classes,
        metrics=(
            Metric("applications", "applications", better=None),
            Metric("mean_jct_s", "mean JCT", unit="s"),
            Metric("p90_jct_s", "p90 JCT", unit="s"),
            Metric("simulated_mean_jct_s", "mean JCT simulated", unit="s", better=None),
        ),
        comparisons=(Comparison("mean_jct_s", "vtc"),),
        recorded_seeds=seeds,
    )


def _measure_classes(_: Scale, outcomes: Outcomes) -> Measures:
    return {arm: found["classes"].get(arm.group, {}) for arm, found in outcomes.items()}


def _elephant(path: Path, live: Mapping[str, Any]) -> Experiment:
    load = live["elephant"]["load"]
    names = [str(name) for name in live["elephant"]["arms"]]
    return Experiment(
        name="live-elephant",
        title="Live: an elephant among mice",
        source="measured by scripts/bench_live; beside Justitia v1, Fig. 11",
        about=(
            f"One {load['elephant']} arrives, then {load['mice']} small applications, one every "
            f"{load['mouse_every_s']:.2g} s: {load['mice_load']:.0%} of what the engines delivered "
            "in the calibration. Lag and bound are those that the scheduler exports for the "
            "elephant when all of it has run; a policy that promises no bound has none."
        ),
        arms=lambda _, __: {Arm("", name): RecordedElephant(path, name) for name in names},
        measure=lambda _, outcomes: {
            arm: {**found, "absolute_error": _absolute(found.get("error"))}
            for arm, found in outcomes.items()
        },
        metrics=(
            Metric("elephant_jct_s", "JCT of the elephant", unit="s"),
            Metric("mice_jct_s", "mean JCT of the mice", unit="s"),
            Metric("lag_s", "lag of the elephant", unit="s", better=None),
            Metric("bound_s", "its bound", unit="s", better=None),
            Metric("simulated_elephant_jct_s", "simulated", unit="s", better=None),
            Metric("simulated_mice_jct_s", "mice simulated", unit="s", better=None),
            Metric("mean_jct_s", "mean JCT of all", unit="s"),
            Metric("simulated_mean_jct_s", "simulated", unit="s", better=None),
            Metric("absolute_error", "off by, either way", is_share=True, better=None),
        ),
        comparisons=(Comparison("elephant_jct_s", "srjf"),),
        targets=(
            *(
                Target(
                    f"simulated mean JCT of elephant and mice against that on real engines, {name}",
                    Arm("", name),
                    "absolute_error",
                    at_most=MOST_ERROR,
                )
                for name in names
            ),
            Target(
                "JCT of the elephant on real engines, justitia against srjf",
                Arm("", _OWN),
                "elephant_jct_s",
                at_most=0.0,
                against="srjf",
            ),
        ),
        recorded_seeds=(int(load["seed"]),),
    )


def _about(live: Mapping[str, Any]) -> str:
    load, machine = live["load"], live["machine"]
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    return (
        f"{load['applications']} applications a seed, arriving in {load['window_s']:.0f} s, played "
        f"by agent programs on {load['replicas']} engines of {load['kv_tokens']:,} KV tokens "
        f"({load['config']}), every policy on the same load, in an order that turns with the seed. "
        "The predictor knows the same at the start of every run. The simulator is given arrivals, "
        "sizes and tool times as they were played and the costs as the service predicted them, on "
        "an engine profile fitted on other loads of the same session. Medians and spreads are in "
        f"live.json. Measured with justitia_ray {live['version']}: {facts}."
    )


def _absolute(error: float | None) -> float | None:
    return None if error is None else abs(error)


def _microseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / _MICROSECOND
