"""Costs predicted wrong by factors from [1/λ, λ] (Justitia v2, Fig. 10)."""

from collections.abc import Mapping

from justitia_ray.report.chart import Chart, Series
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
from justitia_ray.report.statistics import estimate, relative_differences
from justitia_ray.report.tasks import Simulation
from justitia_ray.sim.summary import summarise

_TOLD = "justitia, as told"
_UNSETTLED = "justitia, not settling"
_ARMS: dict[str, tuple[str, tuple[tuple[str, object], ...], bool]] = {
    "justitia": ("justitia", (), True),
    _TOLD: ("justitia", (), False),
    _UNSETTLED: ("justitia", (("clock", "unsettled"),), False),
    "srjf": ("srjf", (), False),
}
"""Policy, options, and whether charges are the service's, by name."""
_EXACT = "λ = 1"


def _spreads(scale: Scale) -> list[float]:
    return list(scale.pick((1, 1.5, 2, 3, 5, 10), (1, 3, 10)))


def _name(spread: float) -> str:
    return f"λ = {spread:g}"


def _arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    load = nine_class.load(scale, seed, 3)
    arms: dict[Arm, Task] = {}
    for name, (policy, options, is_served) in _ARMS.items():
        for spread in _spreads(scale):
            exact = spread == 1
            arms[Arm(name, _name(spread))] = Simulation(
                load,
                policy,
                options,
                prediction="oracle" if exact else f"noisy:{spread:g}",
                seed=0 if exact else seed,
                is_served=is_served or exact,
            )
    return arms


def _measure(_: Scale, outcomes: Outcomes) -> Measures:
    return {arm: summarise({"run": run})["run"] for arm, run in outcomes.items()}


def _charts(scale: Scale, found: Found) -> list[Chart]:
    measured = [_measure(scale, outcomes) for _, outcomes in found]
    series = []
    for policy in _ARMS:
        exact = [m[Arm(policy, _EXACT)]["mean_jct_s"] or 0.0 for m in measured]
        points, low, high = [], [], []
        for spread in _spreads(scale):
            ours = [m[Arm(policy, _name(spread))]["mean_jct_s"] or 0.0 for m in measured]
            got = estimate([100 * share for share in relative_differences(ours, exact)])
            points.append((spread, got.mean))
            low.append(got.mean if got.low is None else got.low)
            high.append(got.mean if got.high is None else got.high)
        series.append(Series(policy, points, low, high))
    return [
        Chart(
            "prediction-error",
            "Mean completion time by prediction error, against exact predictions",
            "λ",
            "mean JCT, % more than at λ = 1",
            series,
            kind="marks",
        )
    ]


PREDICTION_ERROR = Experiment(
    name="prediction-error",
    title="Prediction errors, with and without settling",
    source="Justitia v2, Fig. 10",
    about=(
        "Costs and lengths are multiplied by random factors from [1/λ, λ] before the scheduler "
        "sees them, at 3x. The paper does not name the distribution; here they are uniform in the "
        "interval, and one factor is an application’s, others its inferences’. `justitia` charges "
        "as the service does: twice what is told (λ times at most), and more when a later stage "
        "shows that it is larger; stages are learned in the run. `as told` charges what is told, "
        "as the paper does. `not settling` is that on the served clock without its rules 1 and 3: "
        "charges stay as predicted."
    ),
    arms=_arms,
    measure=_measure,
    metrics=(nine_class.MEAN, nine_class.P90, nine_class.WORST_JCT),
    comparisons=(Comparison("mean_jct_s", _EXACT), Comparison("p90_jct_s", _EXACT)),
    targets=(
        Target(
            "mean JCT at λ = 3 against exact predictions",
            Arm("justitia", "λ = 3"),
            "mean_jct_s",
            at_most=0.095,
            against=_EXACT,
        ),
    ),
    charts=_charts,
)
