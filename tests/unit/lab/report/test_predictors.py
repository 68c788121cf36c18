"""Predictors are compared on runs that they were not trained on."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import fmean, median

import pytest

from justitia_ray.lab.report import out_of_fold
from justitia_ray.lab.report.experiment import Scale
from justitia_ray.lab.report.experiments import predictors
from justitia_ray.lab.report.experiments.predictors import Predicted
from justitia_ray.lab.report.experiments.recipes import RECIPES
from justitia_ray.lab.report.out_of_fold import (
    CLASS_MEAN,
    CLASS_MEDIAN,
    CLASSES,
    predict_out_of_fold,
)
from justitia_ray.lab.report.tasks import SuiteLoad
from justitia_ray.lab.s3.config import S3Config
from justitia_ray.predictor.observation import Sample
from justitia_ray.predictor.stages import CHARGE_FACTOR
from justitia_ray.predictor.trained_model import CostPrediction
from justitia_ray.sim.results import RunResult
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.workload import WorkloadApplication


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Return data in which every class has ten texts and two runs of each.

    MRS has no texts; SC has answers.
    """
    meta = {"recorded_cot_chars": {"m": 330}}
    for folder in ("apps", "recorded"):
        (tmp_path / folder).mkdir()
    for name in CLASSES:
        if name != "SC":
            runs = [_recorded_run(name, i) for i in range(20)]
            _write_lines(tmp_path / "recorded" / f"{name}.jsonl", runs)
        if name != "MRS":
            named = [(f"{name}-{i}", f"text {i}") for i in range(10)]
            items = [{"id": i, "class": name, "input": text, "meta": meta} for i, text in named]
            _write_lines(tmp_path / "apps" / f"{name}.jsonl", items)
    return tmp_path


def _recorded_run(name: str, number: int) -> dict[str, object]:
    stages = {
        "CC": ["generate_testcases", "generate_solutions"],
        "MRS": ["generate_summary", "final_summary"],
        "KBQAV": ["extract_claims", "generate_queries", "verify_claims"],
    }.get(name, ["only"])
    return {
        "item_id": None if name == "MRS" else f"{name}-{number % 10}",
        "class": name,
        "stages": [{"name": stage, "calls": [[100, 10 + number]]} for stage in stages],
    }


def _write_lines(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


class _TrainingSpy:
    """Fake training that records its calls; its models predict the mean of their training data."""

    def __init__(self) -> None:
        self.samples: list[Mapping[str, Sequence[Sample]]] = []
        self.asked: list[list[tuple[str, str]]] = []

    def __call__(
        self, recipe: str, samples: Mapping[str, Sequence[Sample]], s3: S3Config
    ) -> out_of_fold._Predict:
        self.samples.append(samples)
        asked: list[tuple[str, str]] = []
        self.asked.append(asked)

        def predict(application_class: str, texts: Sequence[str]) -> list[CostPrediction]:
            asked.extend((application_class, text) for text in texts)
            costs = [sample.kv_token_time for sample in samples[application_class]]
            mean = sum(costs) / len(costs)
            return [CostPrediction(mean, mean / 2, mean * 2) for _ in texts]

        return predict


@pytest.fixture
def training_spy(monkeypatch: pytest.MonkeyPatch) -> _TrainingSpy:
    spy = _TrainingSpy()
    monkeypatch.setattr(out_of_fold, "_train_model", spy)
    monkeypatch.setattr(out_of_fold, "_TIMED", 1)
    predict_out_of_fold.cache_clear()
    return spy


def test_no_model_predicts_a_text_of_its_training_data(
    data_dir: Path, training_spy: _TrainingSpy
) -> None:
    """A model trained on the run would look better than it is in service."""
    predict_out_of_fold("mlp", data_dir)

    assert 2 == len(training_spy.samples)
    for samples, asked in zip(training_spy.samples, training_spy.asked, strict=True):
        predicted = set(asked[:-1])  # the last one is only timed
        for name in set(CLASSES) - {"MRS"}:
            trained_on = {sample.input_text for sample in samples[name]}
            assert trained_on
            assert not {(name, text) for text in trained_on} & predicted


def test_every_run_is_predicted_by_models_that_are_trained_once(
    data_dir: Path, training_spy: _TrainingSpy
) -> None:
    """Runs that are hard to predict must not be left out."""
    found = predict_out_of_fold("mlp", data_dir)

    assert {name: 10 if name == "SC" else 20 for name in CLASSES} == {
        name: len(errors) for name, errors in found.errors.items()
    }
    assert predict_out_of_fold("mlp", data_dir) is predict_out_of_fold("mlp", data_dir)
    assert 2 == len(training_spy.samples)


def test_every_application_of_the_suite_has_a_prediction(
    data_dir: Path, training_spy: _TrainingSpy
) -> None:
    arrivals = "arrival_s,input_tokens,output_tokens\n" + "".join(f"{i},1,1\n" for i in range(60))
    (data_dir / "arrivals").mkdir()
    (data_dir / "arrivals" / "mooncake_arrivals.csv").write_text(arrivals)
    load = SuiteLoad("nine-class", 5, data_dir, count=60, window_s=600)
    estimated = Predicted("mlp", load).run()
    cautious = Predicted("mlp", load, is_cautious=True).run()

    assert 60 == len(estimated.applications)
    assert {"finished"} == {a.outcome for a in estimated.applications}
    for mean, p90 in zip(estimated.applications, cautious.applications, strict=True):
        assert 2 * mean.predicted_kv_token_time == pytest.approx(p90.predicted_kv_token_time)


def test_class_mean_and_median_come_from_the_other_half_of_the_runs(data_dir: Path) -> None:
    """The service uses the class mean until the class has a model."""
    past = out_of_fold._past_runs(data_dir, "EV")
    costs = {h: [run.sample.kv_token_time for run in past if run.key[2] != h] for h in (0, 1)}
    found = {name: predict_out_of_fold(name, data_dir) for name in (CLASS_MEAN, CLASS_MEDIAN)}

    assert 10 == len({run.key for run in past})
    for (name, _, half), predicted in found[CLASS_MEAN].predictions.items():
        if name == "EV":
            assert fmean(costs[half]) == pytest.approx(predicted.kv_token_time)
    for (name, _, half), predicted in found[CLASS_MEDIAN].predictions.items():
        if name == "EV":
            assert exp(median(map(log, costs[half]))) == pytest.approx(predicted.kv_token_time)


@pytest.mark.parametrize("is_quick", [False, True])
def test_prediction_recipes_differ_only_in_the_predicted_cost(is_quick: bool) -> None:
    """With equal loads and charges, any difference is due to the prediction."""
    scale = Scale(seeds=(1,), data_dir=Path("nowhere"), is_quick=is_quick)
    groups: dict[str, list[Predicted]] = {}
    for arm, task in RECIPES.arms(scale, 1).items():
        if isinstance(task, Predicted):
            assert task.earlier is not None
            assert task.earlier.seed != task.load.seed
            groups.setdefault(arm.group, []).append(task)

    assert groups
    for tasks in groups.values():
        assert CLASS_MEAN in [task.recipe for task in tasks]
        assert len(tasks) == len({task.recipe for task in tasks})
        assert 1 == len({replace(task, recipe="") for task in tasks})


def test_only_the_arm_of_the_service_charges_a_multiple_of_the_prediction(
    data_dir: Path, training_spy: _TrainingSpy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The papers charge the prediction, and the service a multiple of it."""
    asked: list[RunSettings] = []

    def record_settings(
        applications: Sequence[WorkloadApplication], settings: RunSettings
    ) -> RunResult:
        asked.append(settings)
        return RunResult()

    monkeypatch.setattr(predictors, "simulate", record_settings)
    load = SuiteLoad("nine-class", 5, data_dir)
    monkeypatch.setattr(SuiteLoad, "build", lambda self: [])
    for is_served in (False, True):
        Predicted("mlp", load, is_served=is_served).run()

    assert [(1.0, False), (CHARGE_FACTOR, True)] == [(s.charge_factor, s.raises) for s in asked]
    assert CHARGE_FACTOR > 1
