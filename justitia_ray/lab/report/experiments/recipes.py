"""Completion times by the source of predicted costs: each recipe, the class mean, true costs.

A recipe of the predictor stays while its predictions shorten the mean completion time against a
simpler source by `WORTH` or more.
"""

from collections.abc import Mapping

from justitia_ray.lab.report.experiment import (
    Arm,
    Experiment,
    PairedComparison,
    Scale,
    Target,
    Task,
    compare_with,
)
from justitia_ray.lab.report.experiments import nine_class
from justitia_ray.lab.report.experiments.predictors import Predicted
from justitia_ray.lab.report.out_of_fold import CLASS_MEAN
from justitia_ray.lab.report.tasks import SimulatedRun

WORTH = 0.02
"""Share of the mean completion time that a prediction method must save to be worth its code."""

_ORACLE, _LEARNED, _MEAN = "true costs", "learned", "class mean"
_RECIPES = {_LEARNED: "mlp", "paper’s recipe": "paper", _MEAN: CLASS_MEAN}
"""Method by which each variant predicts costs."""
_QUICK_RECIPES = {name: _RECIPES[name] for name in (_LEARNED, _MEAN)}
"""Prediction methods that train fast enough for a quick report."""


def _arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    found: dict[Arm, Task] = {}
    for density in scale.pick((1, 2, 3), (3,)):
        group, load = f"{density}x", nine_class.load(scale, seed, density)
        found[Arm(group, "vtc")] = SimulatedRun(load, "vtc")
        found[Arm(group, _ORACLE)] = SimulatedRun(load, "justitia")
        earlier = nine_class.earlier_load(load)
        for name, recipe in (_QUICK_RECIPES if scale.is_quick else _RECIPES).items():
            found[Arm(group, name)] = Predicted(recipe, load, is_served=True, earlier=earlier)
    return found


RECIPES = Experiment(
    name="recipes",
    title="What each recipe of the predictor is worth",
    source="the papers have nothing like it",
    about=(
        "All arms but `vtc` are justitia’s. Costs are predicted out of fold, by models of at most "
        "100 runs of a class, and charged as the service charges; all of these arms know the same "
        "stages, learned of the applications of another seed, which have ended before. "
        f"`{_MEAN}` is the service without any model: the mean cost of the same runs, and the "
        "stages."
    ),
    arms=_arms,
    measure=nine_class.measure,
    metrics=nine_class.FAIRNESS,
    comparisons=(
        *compare_with(_MEAN, "mean_jct_s"),
        *compare_with(_LEARNED, "mean_jct_s"),
        *compare_with(_ORACLE, "mean_jct_s"),
        PairedComparison("worst_ratio_to_vtc", _MEAN, is_relative=False),
        PairedComparison("no_later_than_vtc", _MEAN, is_relative=False),
    ),
    targets=tuple(
        Target(
            f"mean JCT at {group}, {_LEARNED}, against the {_MEAN}",
            Arm(group, _LEARNED),
            "mean_jct_s",
            at_most=-WORTH,
            against=_MEAN,
        )
        for group in ("1x", "2x", "3x")
    ),
    charts=nine_class.bar_charts(
        "recipes", ("1x", "2x", "3x"), (_ORACLE, *_RECIPES), {"mean": nine_class.MEAN}
    ),
)
