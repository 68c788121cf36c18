"""Predictors compared with each other and with true costs (Justitia v1, Table II; v2, Table 1)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

from justitia_ray.lab.foretold import predict_vtc_times
from justitia_ray.lab.report.experiment import (
    Arm,
    Chart,
    Experiment,
    Found,
    Measures,
    Outcomes,
    ReportMetric,
    Scale,
    Series,
    Target,
    Task,
    compare_with,
    measure_each,
)
from justitia_ray.lab.report.experiments import nine_class
from justitia_ray.lab.report.out_of_fold import (
    CLASS_MEDIAN,
    CLASSES,
    HALVES,
    MOST_SAMPLES,
    S3,
    OutOfFold,
    predict_out_of_fold,
)
from justitia_ray.lab.report.tasks import PAPER_ENGINE, PolicyOptions, SimulatedRun, SuiteLoad
from justitia_ray.predictor.observation import Observation
from justitia_ray.predictor.stages import CHARGE_FACTOR
from justitia_ray.sim.results import RunResult, summarise
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import simulate

_ORACLE, _LEARNED = "oracle", "learned"
_CAUTIOUS, _SERVED = "learned, p90 told", "learned, as served"
_RECIPES = {
    CLASS_MEDIAN: CLASS_MEDIAN,
    _LEARNED: "mlp",
    "paper’s recipe": "paper",
    "S3, random weights": S3,
}
"""Method by which each variant predicts costs."""
_QUICK_RECIPES = {name: _RECIPES[name] for name in (CLASS_MEDIAN, _LEARNED)}
"""Prediction methods that train fast enough for a quick report."""
_JOINED = ("ALFWI", "CC", "DM", "EV", "FV", "KBQAV", "PE")
"""Application classes whose recorded runs contain the input texts."""
_NINE, _SEVEN = "mean of the nine classes", "mean of the seven with recorded runs and texts"

_ERROR = ReportMetric("mean_relative_error", "mean error", is_share=True)
_TOLD_ERROR = ReportMetric("told_error", "error of what is told", is_share=True, better=None)
_MEDIAN_ERROR = ReportMetric("median_relative_error", "median error", is_share=True)
_PREDICT_MS = ReportMetric("predict_ms", "one prediction", digits=2, unit="ms", is_timing=True)
_TRAIN_S = ReportMetric("train_s", "training, all classes", unit="s", is_timing=True)


@dataclass(frozen=True, slots=True)
class Predicted:
    """Simulated run with costs predicted by models that were trained on other applications."""

    recipe: str
    load: SuiteLoad
    is_cautious: bool = False
    """Whether the scheduler receives the predicted p90 instead of the expected cost."""
    is_served: bool = False
    """Whether costs are charged as in the service, which charges more than the prediction.
    """
    policy: str = "justitia"
    options: PolicyOptions = ()
    earlier: SuiteLoad | None = None
    """Earlier applications from which stages of each class are known; None: they are unknown."""

    def run(self) -> RunResult:
        """Train the models unless they are cached, predict costs, and simulate the run.

        Raises:
            ConfigError: If the data directory lacks files, or a package is not installed.
        """
        found = predict_out_of_fold(self.recipe, self.load.data_dir)
        applications = self.load.build()
        predicted = {a.application_id: found.prediction(a) for a in applications}
        told = {
            name: cost.p90 if self.is_cautious else cost.kv_token_time
            for name, cost in predicted.items()
        }
        settings = RunSettings(
            PAPER_ENGINE,
            policy=self.policy,
            policy_options=dict(self.options),
            prediction="table",
            predicted_costs=told,
            history=() if self.earlier is None else _observations_of_load(self.earlier),
            raises=self.is_served,
            charge_factor=CHARGE_FACTOR if self.is_served else 1.0,
        )
        return replace(simulate(applications, settings), inferences=[])

    def configuration(self) -> Mapping[str, Any]:
        return {
            "load": self.load.configuration(),
            "policy": self.policy,
            "options": dict(self.options),
            "earlier": None if self.earlier is None else self.earlier.configuration(),
            "engine": asdict(PAPER_ENGINE),
            "told": "p90" if self.is_cautious else "estimate",
            "charge_factor": CHARGE_FACTOR if self.is_served else 1.0,
            "raises": self.is_served,
            **_training_settings(self.recipe),
        }


@lru_cache(maxsize=2)
def _observations_of_load(load: SuiteLoad) -> tuple[Observation, ...]:
    """Return all ended applications of a load, from which a predictor learns."""
    return tuple(predict_vtc_times(load.build(), PAPER_ENGINE).observed)


@dataclass(frozen=True, slots=True)
class PredictorErrors:
    """Errors of predicted costs; no model was trained on the application that it predicts."""

    recipe: str
    data_dir: Path

    def run(self) -> OutOfFold:
        """Train the models unless they are cached, and predict costs.

        Raises:
            ConfigError: If the data directory lacks files, or a package is not installed.
        """
        return predict_out_of_fold(self.recipe, self.data_dir)

    def configuration(self) -> Mapping[str, Any]:
        return _training_settings(self.recipe)


def _training_settings(recipe: str) -> dict[str, Any]:
    return {"recipe": recipe, "folds": HALVES, "most_samples": MOST_SAMPLES}


def _recipes_for_scale(scale: Scale) -> Mapping[str, str]:
    return _QUICK_RECIPES if scale.is_quick else _RECIPES


def _arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    found: dict[Arm, Task] = {}
    for density in scale.pick((2, 3), (2,)):
        group, load = f"{density}x", nine_class.load(scale, seed, density)
        found[Arm(group, _ORACLE)] = SimulatedRun(load, "justitia")
        for name, recipe in _recipes_for_scale(scale).items():
            if density == 2 or name == _LEARNED:  # The papers compare predictors at density 2.
                found[Arm(group, name)] = Predicted(recipe, load)
        if not scale.is_quick:
            found[Arm(group, _CAUTIOUS)] = Predicted("mlp", load, is_cautious=True)
            found[Arm(group, _SERVED)] = Predicted("mlp", load, is_served=True)
    return found


def _run_figures(run: RunResult) -> Mapping[str, float | None]:
    told_error = fmean(
        abs(a.predicted_kv_token_time - a.kv_token_time) / a.kv_token_time for a in run.applications
    )
    return {**summarise({"run": run})["run"], _TOLD_ERROR.name: told_error}


def _error_arms(scale: Scale, _: int) -> Mapping[Arm, Task]:
    return {
        Arm(group, name): PredictorErrors(recipe, scale.data_dir)
        for group in (_NINE, _SEVEN, *CLASSES)
        for name, recipe in _recipes_for_scale(scale).items()
    }


def _measure_errors(outcomes: Outcomes) -> Measures:
    measured: dict[Arm, dict[str, float | None]] = {}
    for arm, found in outcomes.items():
        classes = {_NINE: CLASSES, _SEVEN: _JOINED}.get(arm.group, (arm.group,))
        errors = [found.errors[name] for name in classes]
        measured[arm] = {
            _ERROR.name: fmean(fmean(of_class) for of_class in errors),
            _MEDIAN_ERROR.name: fmean(median(of_class) for of_class in errors),
        }
        if arm.group == _NINE:
            measured[arm] |= {_PREDICT_MS.name: found.predict_ms, _TRAIN_S.name: found.train_s}
    return measured


def _error_charts(scale: Scale, found: Found) -> list[Chart]:
    [(_, outcomes)] = found
    measured = _measure_errors(outcomes)
    series = []
    for name in _recipes_for_scale(scale):
        errors = [measured[Arm(group, name)][_ERROR.name] or 0.0 for group in CLASSES]
        series.append(Series(name, [(float(x), error) for x, error in enumerate(errors)]))
    title = "Mean relative error of predicted costs by class, out of fold"
    y_label = "|predicted − true| / true"
    return [Chart("predictor-errors", title, "", y_label, series, kind="bars", categories=CLASSES)]


_HOW = (
    f"Every application is predicted by a model trained on the other half of the runs, on at most "
    f"{MOST_SAMPLES} of a class, as in the paper. `learned` is this project’s recipe, small "
    "networks on words and form of the input; `paper’s recipe` is TF-IDF and the 4-layer MLP of "
    "v1, Sec. IV-B. "
    "S3 is one DistilBERT for all classes: pretrained weights were not at hand, so it is a small "
    "one with random weights that learns ln(cost), not the cost; the papers fine-tune the "
    "pretrained one of 66 million parameters. A quick report has `learned` only."
)

PREDICTORS = Experiment(
    name="predictors",
    title="Learned predictions against exact ones",
    source="Justitia v1, Table II; v2, Table 1",
    about=(
        f"{_HOW} The runs are justitia’s, of the same applications, and charge what they are told, "
        f"as the papers do, but for `as served`: that charges {CHARGE_FACTOR:g} times as much, and "
        "more when the application’s stages take more. What is charged too much is refunded at the "
        "end; an application that outruns its charge shares the memory with all others that do. "
        "So too little costs more than too much, as `p90 told` shows: what nine of ten cost less "
        "than is told in place of the estimate."
    ),
    arms=_arms,
    measure=measure_each(_run_figures),
    metrics=(nine_class.MEAN, nine_class.P90, _TOLD_ERROR),
    comparisons=compare_with(_ORACLE, "mean_jct_s", "p90_jct_s"),
    targets=tuple(
        Target(
            f"mean JCT at {group}, {name}, against exact predictions",
            Arm(group, name),
            "mean_jct_s",
            at_most=0.095,
            against=_ORACLE,
        )
        for group in ("2x", "3x")
        for name in (_LEARNED, _SERVED)
    ),
)

PREDICTOR_ERRORS = Experiment(
    name="predictor-errors",
    title="Errors of predicted costs",
    source="Justitia v1, Table II; v2, Table 1",
    about=(
        f"{_HOW} Runs of MRS have no texts, so nothing but the class is known of them; SC’s "
        "lengths are drawn from recorded answers. The papers’ errors are of their nine classes, "
        "their times of a V100."
    ),
    arms=_error_arms,
    measure=_measure_errors,
    metrics=(_ERROR, _MEDIAN_ERROR, _PREDICT_MS, _TRAIN_S),
    comparisons=compare_with(CLASS_MEDIAN, "mean_relative_error", "median_relative_error"),
    targets=(
        Target(
            "mean error over the seven classes",
            Arm(_SEVEN, _LEARNED),
            "mean_relative_error",
            at_most=0.35,
        ),
    ),
    charts=_error_charts,
    is_drawn=False,
)
