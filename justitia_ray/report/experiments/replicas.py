"""One to 64 replicas, with load in proportion."""

from collections.abc import Mapping

from justitia_ray.report.chart import Chart
from justitia_ray.report.experiment import Arm, Comparison, Experiment, Found, Scale, Task
from justitia_ray.report.experiments import nine_class
from justitia_ray.report.tasks import Simulation

_POLICIES = ("vtc", "justitia")
_EACH = 20
"""Applications of each replica, which with 64 makes 1,280."""
_REPORT_INTERVAL_S = 1.0
"""As the service’s replicas report; to have each report at every event would take hours."""


def _counts(scale: Scale) -> list[int]:
    return list(scale.pick((1, 2, 4, 8, 16, 32, 64), (1, 4)))


def _group(replicas: int) -> str:
    return f"{replicas} replicas" if replicas > 1 else "1 replica"


def _arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    arms: dict[Arm, Task] = {}
    for count in _counts(scale):
        load = nine_class.load(scale, seed, 3 * count, applications=_EACH * count)
        for name in _POLICIES:
            arms[Arm(_group(count), name)] = Simulation(
                load, name, replicas=count, report_interval_s=_REPORT_INTERVAL_S
            )
    return arms


def _charts(scale: Scale, found: Found) -> list[Chart]:
    return [
        nine_class.scan(
            scale,
            found,
            "replicas",
            "Mean completion time by number of replicas, load in proportion",
            "replicas",
            [(count, _group(count)) for count in _counts(scale)],
            _POLICIES,
            is_log_x=True,
        )
    ]


REPLICAS = Experiment(
    name="replicas",
    title="One to 64 replicas",
    source="Justitia has one queue for its replicas, too, and shows one size",
    about=(
        f"{_EACH} applications for each replica, at 3x each, from one queue; replicas report "
        "once a second, as in service. With more replicas "
        "more of the large applications meet, and a single one can use more at once."
    ),
    arms=_arms,
    measure=nine_class.measure,
    metrics=nine_class.FAIRNESS,
    comparisons=(Comparison("mean_jct_s", "vtc"),),
    charts=_charts,
)
