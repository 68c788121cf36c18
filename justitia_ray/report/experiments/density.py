"""Completion times by policy and density (Justitia v1, Fig. 8 and 9; v2, Fig. 7)."""

from collections.abc import Mapping

from justitia_ray.report.chart import Chart
from justitia_ray.report.experiment import (
    Arm,
    Comparison,
    Experiment,
    Found,
    Measures,
    Outcomes,
    Scale,
    Target,
    Task,
)
from justitia_ray.report.experiments import nine_class

DENSITIES = (1, 2, 3)
POLICIES = (*nine_class.BASELINES, "justitia")


def _arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    arms: dict[Arm, Task] = {}
    for density in DENSITIES:
        arms |= nine_class.policies(f"{density}x", nine_class.load(scale, seed, density), POLICIES)
    return arms


def _measure(scale: Scale, outcomes: Outcomes) -> Measures:
    measured = nine_class.measure(scale, outcomes)
    return {
        arm: {**measured[arm], "offered_load": nine_class.offered_load(run.applications)}
        for arm, run in outcomes.items()
    }


def _charts(scale: Scale, found: Found) -> list[Chart]:
    groups = [f"{density}x" for density in DENSITIES]
    return nine_class.mean_and_p90(scale, found, "density", groups, POLICIES)


DENSITY = Experiment(
    name="density",
    title="Completion times by policy and density",
    source="Justitia v1, Fig. 8 and 9; v2, Fig. 7",
    about=(
        "The nine-class suite: 300 applications from recorded runs, 72 % small, 26 % medium, 2 % "
        "large, arriving as in the Mooncake trace within 18, 9 and 6 minutes (1x, 2x, 3x), on one "
        "replica with 7,344 tokens of KV memory and iterations of 30 ms. Offered load is the cost "
        "of all of them over what a full memory would deliver while they arrive. Costs are known; "
        "the paper predicted them. It names no number for SRJF but “very close”. Its other models "
        "(Fig. 9) are on other machines, whose memory it does not state: they are not simulated. "
        "Its applications are not published, so absolute seconds differ."
    ),
    arms=_arms,
    measure=_measure,
    metrics=(*nine_class.FAIRNESS, nine_class.USED, nine_class.LOAD),
    comparisons=(
        Comparison("mean_jct_s", "vtc"),
        Comparison("mean_jct_s", "app-fcfs"),
        Comparison("mean_jct_s", "srjf"),
        Comparison("p90_jct_s", "vtc"),
    ),
    targets=(
        Target(
            "mean JCT at 3x against VTC",
            Arm("3x", "justitia"),
            "mean_jct_s",
            at_most=-0.575,
            against="vtc",
        ),
        Target(
            "mean JCT at 3x against app-fcfs (Parrot)",
            Arm("3x", "justitia"),
            "mean_jct_s",
            at_most=-0.611,
            against="app-fcfs",
        ),
        Target(
            "mean JCT at 3x against SRJF",
            Arm("3x", "justitia"),
            "mean_jct_s",
            at_most=0.03,
            against="srjf",
        ),
    ),
    charts=_charts,
)
