"""The nine-class suite from a third of what the replica can serve to six times as much."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from justitia_ray.report.chart import Chart
from justitia_ray.report.experiment import Arm, Comparison, Experiment, Found, Scale, Task
from justitia_ray.report.experiments import nine_class
from justitia_ray.report.loads import SuiteLoad
from justitia_ray.report.tasks import PAPER_ENGINE, Simulation
from justitia_ray.sim.workload import WorkloadApplication

_POLICIES = ("fcfs", "vtc", "srjf", "justitia")


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """A suite whose arrivals are stretched until it offers so much."""

    suite: SuiteLoad
    offered: float
    """Cost of all applications over what one replica delivers in the window, with all its memory
    full all the time."""

    def build(self) -> list[WorkloadApplication]:
        """Build it: the same applications at every load."""
        applications = self.suite.build()
        assert self.suite.window_s is not None
        rate = PAPER_ENGINE.kv_tokens / PAPER_ENGINE.iteration.base_s
        window_s = sum(a.cost() for a in applications) / rate / self.offered
        stretch = window_s / self.suite.window_s
        return [replace(a, arrived_at_s=a.arrived_at_s * stretch) for a in applications]

    def configuration(self) -> Mapping[str, Any]:
        """Return suite and load."""
        return {**self.suite.configuration(), "offered": self.offered}


def _loads(scale: Scale) -> list[float]:
    return list(scale.pick((0.3, 0.6, 0.9, 1.5, 3, 6), (0.3, 0.9, 3)))


def _group(offered: float) -> str:
    return f"load {offered:g}"


def _arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    arms: dict[Arm, Task] = {}
    for offered in _loads(scale):
        load = OfferedLoad(nine_class.load(scale, seed, 1), offered)
        for name in _POLICIES:
            arms[Arm(_group(offered), name)] = Simulation(load, name)
    return arms


def _charts(scale: Scale, found: Found) -> list[Chart]:
    places = [(offered, _group(offered)) for offered in _loads(scale)]
    return [
        nine_class.scan(
            scale,
            found,
            "offered-load-mean",
            "Mean completion time by offered load",
            "offered load",
            places,
            _POLICIES,
            is_log_x=True,
            is_log_y=True,
        ),
        nine_class.scan(
            scale,
            found,
            "offered-load-fair",
            "Share that finishes no later than under VTC",
            "offered load",
            places,
            ("fcfs", "srjf", "justitia"),
            nine_class.NO_LATER,
            is_log_x=True,
        ),
    ]


OFFERED_LOAD = Experiment(
    name="offered-load",
    title="Load from 0.3 to 6",
    source="the papers have 1x, 2x and 3x only",
    about=(
        "Load is the cost of all applications over what one replica could deliver while they "
        "arrive, if its memory were always full. What the paper calls 1x is more than 1 in this "
        "measure, as the first experiment shows. Below 1 there is little to schedule, and little "
        "to gain."
    ),
    arms=_arms,
    measure=nine_class.measure,
    metrics=(*nine_class.FAIRNESS, nine_class.USED),
    comparisons=(Comparison("mean_jct_s", "vtc"), Comparison("mean_jct_s", "srjf")),
    charts=_charts,
)
