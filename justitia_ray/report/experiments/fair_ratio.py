"""Completion times against those under VTC (Justitia v1, Fig. 10; v2, Fig. 8)."""

from collections.abc import Mapping

from justitia_ray.report.chart import Chart
from justitia_ray.report.experiment import Arm, Experiment, Found, Scale, Target, Task
from justitia_ray.report.experiments import nine_class

_GROUP = "3x"
_COMPARED = ("fcfs", "sjf", "app-fcfs", "srjf", "justitia")
_OURS = Arm(_GROUP, "justitia")


def _arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    load = nine_class.load(scale, seed, 3)
    return dict(nine_class.policies(_GROUP, load, ("vtc", *_COMPARED)))


def _charts(_: Scale, found: Found) -> list[Chart]:
    return [
        Chart(
            "fair-ratio",
            "Completion time over that under VTC: share of the applications below",
            "ratio to VTC",
            "share of applications",
            nine_class.ratio_series(found, _GROUP, _COMPARED),
            kind="step",
            is_log_x=True,
            y_limit=(0.0, 1.0),
            level=0.92,
        )
    ]


FAIR_RATIO = Experiment(
    name="fair-ratio",
    title="Finish-time fair ratio",
    source="Justitia v1, Fig. 10; v2, Fig. 8",
    about=(
        "The runs at 3x of the experiment before, each application’s completion time divided by "
        "its own under VTC. The dotted line is where the paper’s curve crosses a ratio of one."
    ),
    arms=_arms,
    measure=nine_class.measure,
    metrics=(nine_class.NO_LATER, nine_class.WORST, nine_class.WORST_JCT),
    targets=(
        Target("finish no later than under VTC, 3x", _OURS, "no_later_than_vtc", at_least=0.95),
        Target("worst completion time against VTC, 3x", _OURS, "worst_ratio_to_vtc", at_most=1.26),
    ),
    charts=_charts,
)
