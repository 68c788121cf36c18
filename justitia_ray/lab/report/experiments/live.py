"""Measurements of `scripts/bench_live` on live engines, compared with simulations of the same runs.

The runs are recorded: a report reads their figures from `live.json`, and simulates nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from justitia_ray.errors import ConfigError
from justitia_ray.lab.report.experiment import (
    Arm,
    Experiment,
    Measures,
    Outcomes,
    PairedComparison,
    ReportMetric,
    Target,
    compare_with,
    measure_each,
)
from justitia_ray.lab.report.experiments.nine_class import MEAN, P90
from justitia_ray.sim.result_files import read_object

LIVE = "live.json"
MOST_ERROR = 0.15
"""Largest allowed error of the simulated mean completion time, relative to the real one."""
_OWN = "justitia"
_MICROSECOND = 1e-6
_FIELDS = ("arms", "seeds", "machine", "load", "model", "elephant", "version")
_SIMULATED = ReportMetric("simulated_mean_jct_s", "mean JCT simulated", unit="s", better=None)


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """Recorded run of the service.

    Runs are compared by identity, so that equal figures stay separate.
    """

    figures: Mapping[str, Any]
    """Measured figures of the run."""
    about: Mapping[str, Any]
    """Machine, load and model of the run."""

    def run(self) -> Mapping[str, Any]:
        return self.figures

    def configuration(self) -> Mapping[str, Any]:
        return self.about


_Runs: TypeAlias = Mapping[int, Mapping[str, Recorded]]
"""Recorded runs of the service, by seed and variant."""


def live_experiments(directory: Path) -> tuple[Experiment, ...]:
    """Return the report's experiments on real engines, from the files of `scripts/bench_live`.

    Raises:
        ConfigError: If its `live.json` cannot be read or lacks a field.
    """
    path = directory.resolve() / LIVE
    live = read_object(path)
    if missing := [name for name in _FIELDS if name not in live]:
        raise ConfigError(
            f"{path}: must hold {', '.join(_FIELDS)} as scripts/bench_live writes them, lacks"
            f" {', '.join(missing)}"
        )
    about = {name: live[name] for name in ("version", "machine", "load", "model")}
    runs = {
        int(row["seed"]): {str(name): Recorded(row, about) for name in live["arms"]}
        for row in live["seeds"]
    }
    classes = sorted({name for row in live["seeds"] for name in row["classes"]})
    experiments = [_compare_policies(live, runs), _compare_classes(classes, runs)]
    if live["elephant"]:
        experiments.append(_compare_elephant(live))
    return tuple(experiments)


_COMPARISONS = (
    PairedComparison("mean_jct_s", "vtc"),
    PairedComparison("mean_jct_s", "fcfs"),
    PairedComparison("mean_jct_s", _OWN),
    PairedComparison("simulated_mean_jct_s", "vtc"),
)
_AGAINST_VTC = Target(
    "mean JCT on real engines, justitia against vtc",
    Arm("", _OWN),
    "mean_jct_s",
    at_most=0.0,
    against="vtc",
)


def _compare_policies(live: Mapping[str, Any], runs: _Runs) -> Experiment:
    return Experiment(
        name="live",
        title="Live: nine classes on real engines",
        source="measured by scripts/bench_live; beside Justitia v1, Fig. 8 to 10",
        about=_describe_recording(live),
        arms=lambda _, seed: {Arm("", name): run for name, run in runs[seed].items()},
        measure=lambda outcomes: {
            arm: _row_figures(row, arm.name) for arm, row in outcomes.items()
        },
        metrics=(
            MEAN,
            P90,
            ReportMetric("no_later_than_vtc", "no later than vtc", is_share=True, better="high"),
            ReportMetric("worst_ratio_to_vtc", "worst over vtc", digits=2, unit="x"),
            ReportMetric("kv_utilization", "KV held", is_share=True, better=None),
            ReportMetric("preemptions", "preemptions", better=None),
            ReportMetric("decision_p50_us", "decision p50", unit="µs", is_timing=True),
            ReportMetric("decision_p99_us", "decision p99", unit="µs", is_timing=True),
            _SIMULATED,
            ReportMetric("error", "simulated is off by", is_share=True, better=None),
            ReportMetric("absolute_error", "either way", is_share=True, better=None),
        ),
        comparisons=tuple(one for one in _COMPARISONS if one.against in live["arms"]),
        targets=(
            *_error_targets(
                "simulated mean JCT", [name for name in live["arms"] if name != live.get("control")]
            ),
            *([_AGAINST_VTC] if {_OWN, "vtc"} <= {*live["arms"]} else []),
        ),
        recorded_seeds=tuple(runs),
    )


def _error_targets(what: str, names: Iterable[object]) -> list[Target]:
    """Return a target for each variant that limits the simulator's error."""
    return [
        Target(
            f"{what} against that on real engines, {name}",
            Arm("", str(name)),
            "absolute_error",
            at_most=MOST_ERROR,
        )
        for name in names
    ]


_PLAYED = (
    *("mean_jct_s", "p90_jct_s", "no_later_than_vtc", "worst_ratio_to_vtc"),
    *("kv_utilization", "preemptions"),
)
"""Names in `summary.json` of the figures that were measured on real engines."""


def _row_figures(row: Mapping[str, Any], arm: str) -> Mapping[str, float | None]:
    live, decisions = row["live"][arm], row["machine"][arm]["decisions"]
    return {
        **{name: live[name] for name in _PLAYED},
        "decision_p50_us": _microseconds(decisions["p50_s"]),
        "decision_p99_us": _microseconds(decisions["p99_s"]),
        "simulated_mean_jct_s": row["simulated"][arm]["mean_jct_s"],
        "error": row["error"][arm],
        "absolute_error": _absolute_error(row["error"][arm]),
    }


def _compare_classes(classes: Sequence[str], runs: _Runs) -> Experiment:
    return Experiment(
        name="live-classes",
        title="Live: completion times by class",
        source="measured by scripts/bench_live; beside Justitia v1, Fig. 9",
        about=(
            "The same runs, class by class. A class that a seed has no application of has no "
            "figures here."
        ),
        arms=lambda _, seed: {
            Arm(name, arm): run for name in classes for arm, run in runs[seed].items()
        },
        measure=_measure_classes,
        metrics=(
            ReportMetric("applications", "applications", better=None),
            MEAN,
            P90,
            _SIMULATED,
        ),
        comparisons=compare_with("vtc", "mean_jct_s"),
        recorded_seeds=tuple(runs),
    )


def _measure_classes(outcomes: Outcomes) -> Measures:
    return {
        arm: row["classes"][arm.group][arm.name] if arm.group in row["classes"] else {}
        for arm, row in outcomes.items()
    }


def _compare_elephant(live: Mapping[str, Any]) -> Experiment:
    load, figures = live["elephant"]["load"], live["elephant"]["arms"]
    about = {"machine": live["machine"], "load": load}
    runs = {Arm("", str(name)): Recorded(of_arm, about) for name, of_arm in figures.items()}
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
        arms=lambda _, __: runs,
        measure=measure_each(
            lambda found: {**found, "absolute_error": _absolute_error(found.get("error"))}
        ),
        metrics=(
            ReportMetric("elephant_jct_s", "JCT of the elephant", unit="s"),
            ReportMetric("mice_jct_s", "mean JCT of the mice", unit="s"),
            ReportMetric("lag_s", "lag of the elephant", unit="s", better=None),
            ReportMetric("bound_s", "its bound", unit="s", better=None),
            ReportMetric("simulated_elephant_jct_s", "simulated", unit="s", better=None),
            ReportMetric("simulated_mice_jct_s", "mice simulated", unit="s", better=None),
            ReportMetric("mean_jct_s", "mean JCT of all", unit="s"),
            ReportMetric("simulated_mean_jct_s", "simulated", unit="s", better=None),
            ReportMetric("absolute_error", "off by, either way", is_share=True, better=None),
        ),
        comparisons=compare_with("srjf", "elephant_jct_s"),
        targets=(
            *_error_targets("simulated mean JCT of elephant and mice", figures),
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


def _describe_recording(live: Mapping[str, Any]) -> str:
    load, machine = live["load"], live["machine"]
    noise = ""
    if control := live.get("control"):  # Results of earlier releases have no control run.
        noise = (
            f"{control} is vtc played once more: what it differs from vtc by is the noise by which "
            "to read the other arms. "
        )
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    return (
        f"{load['applications']} applications a seed, arriving in {load['window_s']:g} s, played "
        f"by agent programs on {load['replicas']} engines of {load['kv_tokens']:,} KV tokens "
        f"({load['config']}), every policy on the same load, in an order that turns with the seed. "
        "The predictor knows the same at the start of every run. The simulator is given arrivals, "
        "sizes and tool times as they were played and the costs as the service predicted them, on "
        f"an engine profile fitted on other loads of the same session. {noise}Medians and spreads "
        f"are in live.json. Measured with justitia_ray {live['version']}: {facts}."
    )


def _absolute_error(error: float | None) -> float | None:
    return None if error is None else abs(error)


def _microseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / _MICROSECOND
