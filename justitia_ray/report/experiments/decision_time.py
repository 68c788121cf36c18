"""What a decision takes, by arrival rate and by size (Justitia v1, Table III; v2, Fig. 12)."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from justitia_ray.bench.core_load import ARRIVAL, COMPLETION, GRANT, PULL, SUBMIT, CoreLoad
from justitia_ray.report.chart import Chart, Series
from justitia_ray.report.experiment import (
    Arm,
    Experiment,
    Found,
    Measures,
    Metric,
    Outcomes,
    Scale,
    Target,
    Task,
)
from justitia_ray.report.loads import SuiteLoad
from justitia_ray.report.tasks import Simulation

_RATES = (15, 20, 30, 50, 100)
_SIZES = "live applications"
_STEPS, _COMPLETIONS, _WARM_UP = 16, 8, 4


@dataclass(frozen=True, slots=True)
class TimedRun:
    """Times a whole simulated run: the core's events, and the simulator's own work in it.

    In CPU time: wall time is of whatever else runs, the other runs of the report among it.
    """

    simulation: Simulation

    def run(self) -> float:
        """Return CPU milliseconds an event."""
        self.simulation.prepare()
        started = time.thread_time()
        result = self.simulation.run()
        return (time.thread_time() - started) / result.decisions * 1e3

    def configuration(self) -> Mapping[str, Any]:
        """Return those of the run."""
        return self.simulation.configuration()


@dataclass(frozen=True, slots=True)
class TimedCore:
    """Times the core alone, with so many live applications of ten waiting inferences each."""

    applications: int
    seed: int

    def run(self) -> float:
        """Return CPU milliseconds a decision, over arrivals, submissions, grants and reports."""
        load = CoreLoad(self.applications, self.seed, clock_ns=time.thread_time_ns)
        load.build()
        load.run(_WARM_UP, _COMPLETIONS)
        load.forget()
        load.run(_STEPS, _COMPLETIONS)
        timed = [load.timings[kind] for kind in (ARRIVAL, SUBMIT, PULL, GRANT, COMPLETION)]
        decisions = sum(sum(t.decisions) for t in timed)
        return sum(sum(t.elapsed_ns) for t in timed) / decisions / 1e6

    def configuration(self) -> Mapping[str, Any]:
        """Return the size."""
        return {"live_applications": self.applications, "waiting_each": 10, "seed": self.seed}


def _sizes(scale: Scale) -> list[int]:
    return list(scale.pick((100, 1_000, 10_000), (100, 1_000)))


def _arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    arms: dict[Arm, Task] = {}
    for rate in _RATES:
        count = scale.applications
        load = SuiteLoad(
            "nine-class", seed, scale.data_dir, count=count, window_s=count * 60 / rate
        )
        arms[Arm("", f"{rate} a minute")] = TimedRun(Simulation(load, "justitia"))
    for size in _sizes(scale):
        arms[Arm(_SIZES, f"{size:,}")] = TimedCore(size, seed)
    return arms


def _measure(_: Scale, outcomes: Outcomes) -> Measures:
    return {arm: {"decision_ms": ms} for arm, ms in outcomes.items()}


def _charts(_: Scale, found: Found) -> list[Chart]:
    points = [
        (float(rate), fmean(outcomes[Arm("", f"{rate} a minute")] for _, outcomes in found))
        for rate in _RATES
    ]
    series = [Series("simulated run", points)]
    return [
        Chart(
            "decision-time",
            "Time an event by arrival rate",
            "applications a minute",
            "ms",
            series,
            kind="marks",
        )
    ]


DECISION_TIME = Experiment(
    name="decision-time",
    title="Time a decision",
    source="Justitia v1, Table III; v2, Fig. 12",
    about=(
        "CPU time on this machine, which is wall time where nothing else runs. By rate: that of a "
        "whole simulated run over the events that the core handled, so the simulator’s own work "
        "is in it. By live applications: the core alone, each with ten waiting inferences. "
        "scripts/bench_core measures with more care."
    ),
    arms=_arms,
    measure=_measure,
    metrics=(Metric("decision_ms", "a decision", digits=4, unit="ms", is_timing=True),),
    targets=(
        Target(
            "a decision at 100 applications a minute, as in the paper",
            Arm("", "100 a minute"),
            "decision_ms",
            at_most=8.093,
        ),
    ),
    charts=_charts,
)
