"""Every policy on the same load: what the papers do not compare, MLFQ and PLAS among them."""

from collections.abc import Mapping

from justitia_ray.core.policies import POLICIES
from justitia_ray.report.chart import Chart
from justitia_ray.report.experiment import Arm, Comparison, Experiment, Found, Scale, Task
from justitia_ray.report.experiments import nine_class

_GROUPS = {"1x": 1, "3x": 3}
_OTHERS = {"vtc-predict", "vtc-oracle", "vtc-noisy", "rpm"}
"""Variants of VTC, which `vtc-real` compares, and a limit on clients that send many requests."""
_NAMES = tuple(name for name in POLICIES if name not in _OTHERS)


def _arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    arms: dict[Arm, Task] = {}
    for group, density in _GROUPS.items():
        arms |= nine_class.policies(group, nine_class.load(scale, seed, density), _NAMES)
    return arms


def _charts(scale: Scale, found: Found) -> list[Chart]:
    groups = list(_GROUPS)
    return [
        nine_class.bars(scale, found, "all-policies-mean", "Mean completion time", groups, _NAMES),
        nine_class.bars(
            scale,
            found,
            "all-policies-longest",
            "Longest completion time",
            groups,
            _NAMES,
            nine_class.WORST_JCT,
        ),
    ]


ALL_POLICIES = Experiment(
    name="all-policies",
    title="Every policy",
    source="the papers have no MLFQ (FastServe), PLAS (Autellix) or DRR",
    about=(
        "Each with its defaults; those that compare clients compare applications. A mean that "
        "beats justitia’s is as plain here as one that does not: see what it does to the worst off."
    ),
    arms=_arms,
    measure=nine_class.measure,
    metrics=(*nine_class.FAIRNESS, nine_class.WORST_JCT),
    comparisons=(
        Comparison("mean_jct_s", "plas"),
        Comparison("mean_jct_s", "mlfq"),
        Comparison("mean_jct_s", "srjf"),
        Comparison("max_jct_s", "vtc"),
    ),
    charts=_charts,
)
