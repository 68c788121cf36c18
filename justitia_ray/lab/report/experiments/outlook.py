"""Calibration of predicted starts, compared with the waiting times of the last hour."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from justitia_ray.core.calibration import Quantiles
from justitia_ray.lab.outlook import PredictedStart, by_last_hour, predict_starts, score
from justitia_ray.lab.report.experiment import (
    Arm,
    Experiment,
    Measures,
    Outcomes,
    ReportMetric,
    Scale,
    Target,
    Task,
)
from justitia_ray.lab.report.experiments import nine_class
from justitia_ray.lab.report.tasks import PAPER_ENGINE, SuiteLoad, build_cached
from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.settings import RunSettings
from justitia_ray.units import Seconds

_PREDICTIONS = {"oracle": "true costs", "learned": "learned costs"}
_DENSITIES, _QUICK_DENSITIES = (1, 2, 3), (2,)
_SEATS, _SEATS_DENSITY = 6, 2
"""Sequences per replica, and density, of a load that is limited by sequences and not by memory."""
_SHORT_OF_SEATS = f"{_SEATS_DENSITY}x, true costs, {_SEATS} seats"
_AT_ARRIVAL, _LATER = "at arrival", "later"
_HORIZONS: tuple[tuple[str, Seconds, Seconds], ...] = (
    ("up to 10 s ahead", 0.0, 10.0),
    ("10 to 60 s", 10.0, 60.0),
    ("60 to 300 s", 60.0, 300.0),
    ("more than 300 s", 300.0, float("inf")),
)
"""Ranges of how far ahead a start is predicted, by which predictions are grouped."""
_LEAST, _MOST = 0.75, 0.85
"""Allowed share of true starts between the predicted p10 and p90: 80 % ± 5."""


@dataclass(frozen=True, slots=True)
class StartPredictionRun:
    """Simulated run that predicts when each waiting application will start."""

    load: SuiteLoad
    prediction: str
    engine: EngineProfile = PAPER_ENGINE

    def run(self) -> list[tuple[PredictedStart, Quantiles]]:
        """Return each prediction with the true start and the last hour's waiting times.

        Raises:
            ConfigError: If the data directory lacks files.
        """
        settings = RunSettings(self.engine, prediction=self.prediction, seed=self.load.seed)
        told = predict_starts(build_cached(self.load), settings)
        return list(zip(told, by_last_hour(told), strict=True))

    def configuration(self) -> Mapping[str, Any]:
        return {
            "load": self.load.configuration(),
            "engine": asdict(self.engine),
            "prediction": self.prediction,
        }


def _arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    found: dict[Arm, Task] = {}
    names = (_AT_ARRIVAL, _LATER, *(name for name, _, _ in _HORIZONS))
    for prediction, label in _PREDICTIONS.items():
        for density in scale.pick(_DENSITIES, _QUICK_DENSITIES):
            task = StartPredictionRun(nine_class.load(scale, seed, density), prediction)
            found |= {Arm(f"{density}x, {label}", name): task for name in names}
    engine = replace(PAPER_ENGINE, max_num_seqs=_SEATS)
    task = StartPredictionRun(nine_class.load(scale, seed, _SEATS_DENSITY), "oracle", engine)
    return found | {Arm(_SHORT_OF_SEATS, name): task for name in names}


def _measure_predictions(outcomes: Outcomes) -> Measures:
    return {arm: _group_figures(arm.name, outcome) for arm, outcome in outcomes.items()}


def _group_figures(
    name: str, outcome: list[tuple[PredictedStart, Quantiles]]
) -> Mapping[str, float | None]:
    known = [(told, hour) for told, hour in outcome if _is_in_group(name, told)]
    pairs = [(told.expected, hour, told.started_s) for told, hour in known]
    own = score((said, came) for said, _, came in pairs if came is not None)
    by_hour = score((hour, came) for _, hour, came in pairs if came is not None)
    if own is None or by_hour is None:
        return dict.fromkeys(metric.name for metric in _METRICS)
    return {
        "told": own.tellings,
        "covered": own.covered,
        "covered_by_hour": by_hour.covered,
        "pinball_s": own.pinball_s,
        "pinball_by_hour_s": by_hour.pinball_s,
        "pinball_ratio": own.pinball_s / by_hour.pinball_s if by_hour.pinball_s else None,
        "median_error_s": own.median_error_s,
    }


def _is_in_group(name: str, told: PredictedStart) -> bool:
    if name == _AT_ARRIVAL:
        return told.made_at_arrival
    if name == _LATER:
        return not told.made_at_arrival
    horizons = {label: (above, upto) for label, above, upto in _HORIZONS}
    above, upto = horizons[name]
    return above < told.expected.p50 <= upto


_METRICS = (
    ReportMetric("told", "told", digits=0, better=None),
    ReportMetric("covered", "started from p10 to p90", is_share=True, better=None),
    ReportMetric("covered_by_hour", "by the last hour", is_share=True, better=None),
    ReportMetric("pinball_s", "pinball loss", unit="s", digits=2),
    ReportMetric("pinball_by_hour_s", "by the last hour", unit="s", digits=2, better=None),
    ReportMetric("pinball_ratio", "loss over the last hour's", digits=2),
    ReportMetric("median_error_s", "median error of p50", unit="s", digits=2),
)


def _coverage_targets() -> tuple[Target, ...]:
    groups = [f"{density}x, {label}" for label in _PREDICTIONS.values() for density in _DENSITIES]
    targets = []
    for group in (*groups, _SHORT_OF_SEATS):
        for name in (_AT_ARRIVAL, _LATER):
            arm, where = Arm(group, name), f"{group}, {name}"
            targets += [
                Target(
                    f"at least 75 % start from p10 to p90 ({where})",
                    arm,
                    "covered",
                    at_least=_LEAST,
                ),
                Target(
                    f"at most 85 % start from p10 to p90 ({where})",
                    arm,
                    "covered",
                    at_most=_MOST,
                ),
                Target(
                    f"pinball loss below the last hour's ({where})",
                    arm,
                    "pinball_ratio",
                    at_most=1.0,
                ),
            ]
    return tuple(targets)


OUTLOOK = Experiment(
    name="outlook",
    title="When it starts, foretold",
    source="the papers have nothing like it",
    about=(
        "Each application that waits, and of which nothing runs, is told when it will start, as "
        "soon as it waits and again while it waits on. Eight in ten of the true starts should lie "
        "between p10 and p90. Beside it stand the last hour's waiting times of its class (of one "
        "that has waited, those that were longer, less that), as one would tell them without "
        "looking at the queue. The calibration starts anew in each run. The last engine is short "
        "of seats, all others of memory. Below, the same by how far ahead it was said: there no "
        "target holds, as each horizon is chosen by its answer."
    ),
    arms=_arms,
    measure=_measure_predictions,
    metrics=_METRICS,
    targets=_coverage_targets(),
)
