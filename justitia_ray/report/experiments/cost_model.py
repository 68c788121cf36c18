"""Cost in KV token-time against cost in tokens (Justitia v1, Fig. 12; v2, Fig. 11)."""

from collections.abc import Mapping

from justitia_ray.report.chart import Chart
from justitia_ray.report.experiment import Arm, Comparison, Experiment, Found, Scale, Task
from justitia_ray.report.experiments import nine_class
from justitia_ray.report.tasks import Simulation

_GROUPS = {"1x": 1, "2x": 2, "3x": 3}
_ARMS = ("justitia", "justitia/C")


def _arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    arms: dict[Arm, Task] = {}
    for group, density in _GROUPS.items():
        load = nine_class.load(scale, seed, density)
        arms[Arm(group, "vtc")] = Simulation(load, "vtc")
        arms[Arm(group, "justitia")] = Simulation(load, "justitia")
        arms[Arm(group, "justitia/C")] = Simulation(load, "justitia", (("cost", "compute"),))
    return arms


def _charts(scale: Scale, found: Found) -> list[Chart]:
    return nine_class.mean_and_p90(scale, found, "cost-model", list(_GROUPS), _ARMS)


COST_MODEL = Experiment(
    name="cost-model",
    title="Cost models: KV token-time against tokens",
    source="Justitia v1, Fig. 12; v2, Fig. 11",
    about=(
        "Justitia/C is Justitia with the cost p + 2d of VTC. The paper says that it costs up to "
        "42.3 %, and not of which figure or density."
    ),
    arms=_arms,
    measure=nine_class.measure,
    metrics=nine_class.FAIRNESS,
    comparisons=(Comparison("mean_jct_s", "justitia"), Comparison("p90_jct_s", "justitia")),
    charts=_charts,
)
