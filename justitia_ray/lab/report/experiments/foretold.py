"""Accuracy of the shadow of VTC: predicted over true completion times under VTC."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from justitia_ray.lab.foretold import predicted_over_true_times, spread
from justitia_ray.lab.report.experiment import (
    Arm,
    Experiment,
    Measures,
    Outcomes,
    ReportMetric,
    Scale,
    Task,
)
from justitia_ray.lab.report.experiments import nine_class
from justitia_ray.lab.report.out_of_fold import CLASSES
from justitia_ray.lab.report.tasks import PAPER_ENGINE, SuiteLoad, build_cached

_ALL = "all classes"
_METRICS = ("p5", "median", "p95")


@dataclass(frozen=True, slots=True)
class VtcTimePredictions:
    """Simulated runs that test how well completion times under `vtc` are predicted."""

    load: SuiteLoad

    def run(self) -> Mapping[str, list[float]]:
        """Return the ratios of predicted to true completion times under VTC, by class.

        Raises:
            ConfigError: If the data directory lacks files.
        """
        return predicted_over_true_times(build_cached(self.load), PAPER_ENGINE)

    def configuration(self) -> Mapping[str, Any]:
        return {"load": self.load.configuration(), "engine": asdict(PAPER_ENGINE)}


def _arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    densities = scale.pick((1, 2, 3), (3,))
    tasks = {d: VtcTimePredictions(nine_class.load(scale, seed, d)) for d in densities}
    return {
        Arm(group, f"{density}x"): task
        for group in (_ALL, *CLASSES)
        for density, task in tasks.items()
    }


def _ratio_metrics(outcomes: Outcomes) -> Measures:
    measured: dict[Arm, dict[str, float | None]] = {}
    for arm, found in outcomes.items():
        ratios = list(chain(*found.values())) if arm.group == _ALL else found.get(arm.group, [])
        measured[arm] = dict.fromkeys(_METRICS)
        if len(ratios) > 1:
            spread_of = spread(ratios)
            measured[arm] = {name: getattr(spread_of, name) for name in _METRICS}
    return measured


FORETOLD = Experiment(
    name="foretold",
    title="The end under VTC, foretold",
    source="the papers have nothing like it",
    about=(
        "The guard of justitia goes by when VTC would have ended an application, which a shadow of "
        "VTC on the side foretells. Here it changes nothing: its deadlines are set beside what VTC "
        "does on the same load. 1 is right, below 1 is too early. Costs and stages are known."
    ),
    arms=_arms,
    measure=_ratio_metrics,
    metrics=tuple(ReportMetric(name, name, digits=2, better=None) for name in _METRICS),
)
