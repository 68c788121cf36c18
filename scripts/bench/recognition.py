"""Simulated part of `scripts/bench_recognition`: one load under several ways of recognition."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from justitia_ray.lab.report.experiments.nine_class import GAP_AT_1X_S
from justitia_ray.lab.report.tasks import PAPER_ENGINE
from justitia_ray.sim.predictions import LEARNED
from justitia_ray.sim.recognition import APPLICATION, WAYS, RecognitionCounts, count_recognised
from justitia_ray.sim.results import percentile
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import simulate
from justitia_ray.sim.suites import SuiteOptions, build_suite
from justitia_ray.units import Seconds

ORACLE = "oracle"
MIXES = {"paper": "paper", "recorded": "recorded", "agents": "ALFWI=22,FV=22,KBQAV=5,CC=5"}
"""Mixes of classes by name; in `agents` four in five applications resend the whole conversation."""


@dataclass(frozen=True, slots=True)
class SimulatedVariant:
    """Simulated combination: policy, unit that counts as an application, and cost prediction."""

    recognised: str = APPLICATION
    prediction: str = ORACLE
    policy: str = "justitia"

    def __str__(self) -> str:
        kind = f"{self.recognised}, {self.prediction}"
        return kind if self.policy == "justitia" else f"{kind}, {self.policy}"


REFERENCE = SimulatedVariant()
OTHERS = (SimulatedVariant(policy="vtc"), SimulatedVariant(policy="srjf"))


def ways(predictions: Sequence[str] = (ORACLE, LEARNED)) -> tuple[SimulatedVariant, ...]:
    """Return all simulated combinations for these predictions, with the reference first."""
    found = [
        SimulatedVariant(recognised, prediction)
        for prediction in predictions
        for recognised in WAYS
    ]
    return tuple(dict.fromkeys((REFERENCE, *found, *OTHERS)))


@dataclass(frozen=True, slots=True)
class Times:
    """Completion times of one run."""

    mean_s: Seconds
    p90_s: Seconds
    worst_s: Seconds
    by_class: dict[str, Seconds]
    """Mean completion time in seconds, by class."""


def times_of(completed: Sequence[tuple[str, Seconds]]) -> Times:
    """Return the completion-time figures of at least one (class, completion time) pair."""
    jcts = [jct_s for _, jct_s in completed]
    p90_s = percentile(jcts, 90)
    assert p90_s is not None
    names = sorted({name for name, _ in completed})
    return Times(
        fmean(jcts),
        p90_s,
        max(jcts),
        {name: fmean(jct_s for of, jct_s in completed if of == name) for name in names},
    )


@dataclass(slots=True)
class SimulatedLoad:
    """Runs of one mix at one density, in the order of seeds."""

    mix: str
    density: float
    times: dict[str, list[Times]] = field(default_factory=dict)
    tallies: list[dict[str, RecognitionCounts]] = field(default_factory=list)


def simulate_load(
    mix: str,
    density: float,
    chosen: Sequence[SimulatedVariant],
    seeds: Sequence[int],
    count: int,
    data_dir: Path | None,
    say: Callable[[str], None],
) -> SimulatedLoad:
    """Simulate one mix at one density under every combination and seed.

    Args:
        mix: A name in `MIXES`.
        density: 1 is 300 applications in 18 minutes, as in the paper.
        chosen: What is compared.
        seeds: Of the loads.
        count: Applications of a load.
        data_dir: Recorded runs and arrivals; None: they are made up.
        say: Told of every run.
    """
    found = SimulatedLoad(mix, density)
    for seed in seeds:
        options = SuiteOptions(
            count=count,
            window_s=round(count * GAP_AT_1X_S / density, 6),
            seed=seed,
            data_dir=data_dir,
            mix=MIXES[mix],
        )
        applications = build_suite("nine-class", options)
        found.tallies.append(count_recognised(applications))
        for way in chosen:
            settings = RunSettings(
                PAPER_ENGINE,
                way.policy,
                prediction=way.prediction,
                seed=seed,
                recognised=way.recognised,
            )
            run = simulate(applications, settings)
            completed = [
                (one.application_class, one.jct_s)
                for one in run.applications
                if one.jct_s is not None
            ]
            times = times_of(completed)
            found.times.setdefault(str(way), []).append(times)
            say(f"{mix} {density:g}x, seed {seed}, {way}: mean {times.mean_s:.1f} s")
    return found
