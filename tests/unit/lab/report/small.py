"""A small report whose arms compute a number instead of simulating."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from justitia_ray.lab.report.experiment import (
    Arm,
    Chart,
    Experiment,
    Found,
    PairedComparison,
    ReportMetric,
    Scale,
    Series,
    Target,
    Task,
    measure_each,
)

SCALE = Scale(seeds=(1, 2, 3), data_dir=Path("nowhere"))


@dataclass(frozen=True, slots=True)
class ComputedTask:
    """Task whose result is `base` plus a tenth of the seed."""

    base: float
    seed: int

    def run(self) -> float:
        return self.base + self.seed / 10

    def configuration(self) -> Mapping[str, Any]:
        return {"base": self.base, "seed": self.seed}


@dataclass(frozen=True, slots=True)
class FailingTask:
    def run(self) -> float:
        raise ValueError("no\nluck")

    def configuration(self) -> Mapping[str, Any]:
        return {}


def small_experiment(name: str = "small", task: type[FailingTask] | None = None) -> Experiment:
    """Return an experiment of two arms, ours and theirs, of 10 and 20 s."""

    def arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
        ours: Task = ComputedTask(10, seed) if task is None else task()
        return {Arm("1x", "justitia"): ours, Arm("1x", "vtc"): ComputedTask(20, seed)}

    return Experiment(
        name=name,
        title=f"The {name} <experiment>",
        source="Fig. 0",
        about="Nothing & nobody.",
        arms=arms,
        measure=measure_each(lambda outcome: {"jct_s": outcome}),
        metrics=(ReportMetric("jct_s", "JCT", digits=2, unit="s"),),
        comparisons=(PairedComparison("jct_s", "vtc"), PairedComparison("jct_s", "justitia")),
        targets=(
            Target("half of VTC", Arm("1x", "justitia"), "jct_s", at_most=-0.5, against="vtc"),
            Target("at most 11 s", Arm("1x", "justitia"), "jct_s", at_most=11.0),
        ),
        charts=charts,
    )


def charts(scale: Scale, found: Found) -> list[Chart]:
    points = [(float(seed), outcomes[Arm("1x", "justitia")]) for seed, outcomes in found]
    other = [(float(seed), outcomes[Arm("1x", "vtc")]) for seed, outcomes in found]
    series = [Series("justitia", points, [p[1] - 1 for p in points], [p[1] + 1 for p in points])]
    return [Chart("small", "By seed", "seed", "s", [*series, Series("vtc", other)])]
