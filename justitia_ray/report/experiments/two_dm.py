"""KV memory of two document mergings, together and one after the other (Justitia v1, Fig. 3)."""

from collections.abc import Mapping
from statistics import fmean

from justitia_ray.report.chart import Chart, Series
from justitia_ray.report.experiment import (
    Arm,
    Comparison,
    Experiment,
    Found,
    Measures,
    Metric,
    Outcomes,
    Scale,
    Task,
)
from justitia_ray.report.loads import SuiteLoad
from justitia_ray.report.tasks import Simulation
from justitia_ray.sim.results import RunResult

_BLOCK_TOKENS = 16
_STEPS = 240
_TITLES = {"vtc": "concurrently (vtc)", "justitia": "one after the other (justitia)"}


def _arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    load = SuiteLoad("two-dm", seed, scale.data_dir)
    return {Arm("", name): Simulation(load, name, sample_kv=True) for name in _TITLES}


def _measure(_scale: Scale, outcomes: Outcomes) -> Measures:
    measured: dict[Arm, dict[str, float | None]] = {}
    for arm, run in outcomes.items():
        ends = [a.jct_s for a in run.applications if a.jct_s is not None]
        measured[arm] = {
            "mean_jct_s": fmean(ends),
            "first_jct_s": min(ends),
            "last_jct_s": max(ends),
        }
    return measured


def _charts(_scale: Scale, found: Found) -> list[Chart]:
    _, outcomes = found[0]
    return [
        Chart(
            f"two-dm-{name}",
            f"KV blocks of two document mergings served {title}, first seed",
            "time (s)",
            "KV blocks",
            _blocks(outcomes[Arm("", name)]),
            kind="step",
            y_limit=(0.0, 470.0),
        )
        for name, title in _TITLES.items()
    ]


def _blocks(run: RunResult) -> list[Series]:
    """Return what each application held, at evenly spaced instants."""
    series = []
    for number, application in enumerate(run.applications, 1):
        name = application.application_id
        samples = [(at, tokens) for at, who, tokens in run.kv_samples if who == name]
        points: list[tuple[float, float]] = []
        held, next_sample = 0, 0
        for step in range(_STEPS + 1):
            at = run.makespan_s * step / _STEPS
            while next_sample < len(samples) and samples[next_sample][0] <= at:
                held = samples[next_sample][1]
                next_sample += 1
            points.append((at, held / _BLOCK_TOKENS))
        series.append(Series(f"DM {number}", points))
    return series


TWO_DM = Experiment(
    name="two-dm",
    title="Two document mergings: KV memory over time",
    source="Justitia v1, Fig. 3 (v2, Fig. 3)",
    about=(
        "Two document mergings arrive at once. Under vtc each holds about half of the 459 blocks; "
        "under justitia one has all it can use, then the other. The recorded mergings make 105 "
        "calls each, which is many times the paper’s work: seconds differ, differences are to be "
        "compared."
    ),
    arms=_arms,
    measure=_measure,
    metrics=(
        Metric("mean_jct_s", "mean JCT", unit="s"),
        Metric("first_jct_s", "JCT of the first to end", unit="s"),
        Metric("last_jct_s", "JCT of the last", unit="s"),
    ),
    comparisons=(Comparison("mean_jct_s", "vtc"), Comparison("last_jct_s", "vtc")),
    charts=_charts,
)
