"""Predictions for a simulated scheduler: the truth, noise, and learned from finished work."""

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from justitia_ray.core.policies import parse_options
from justitia_ray.core.stages import ExpectedStage, StageServed
from justitia_ray.errors import ConfigError, StoreError
from justitia_ray.predictor.model_directory import ModelDirectory
from justitia_ray.predictor.observation import Observation, Sample
from justitia_ray.sim import predictions as cost_sources
from justitia_ray.sim.core_link import CoreLink
from justitia_ray.sim.predictions import (
    ExactPredictions,
    NoisyCosts,
    StagedPredictions,
    TableCosts,
    parse_noise,
    predictions_of,
    true_stages,
)
from justitia_ray.sim.results import RunResult
from justitia_ray.sim.server import Server
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import simulate
from justitia_ray.sim.workload import WorkloadApplication
from tests.unit.sim.small_run import Inference, application_of, engine


def test_oracle_predicts_the_true_cost() -> None:
    """The true cost is known in KV token-time and in the service units of VTC.

    Costs: 4·3 + 3·4/2 + 2·1 + 1 = 21; h = 4 + 2·3 + 2 + 2·1 = 14 for accounts in p + 2d.
    """
    application = application_of("a", (4, 3), (2, 1))
    oracle = ExactPredictions()
    compute = parse_options("justitia", {"cost": "compute"})

    assert 21 == oracle.application_cost(application)
    assert None is oracle.accounts_cost(application, parse_options("justitia", {}))
    assert application.cost(compute.cost_function) == oracle.accounts_cost(application, compute)
    assert 3 == oracle.predict_inference(application, application.inferences[0], 9).output_tokens


def test_prediction_noise_factor_is_uniform_in_its_interval() -> None:
    """The factors are from [1/λ, λ], as in Fig. 10 of Justitia v2."""
    costs = NoisyCosts(3, 1)
    applications = [application_of(f"a{number}", (99, 99)) for number in range(2000)]
    factors = [costs.cost(a) / a.cost() for a in applications]

    assert all(1 / 3 <= factor <= 3 for factor in factors)
    assert 5 / 3 == pytest.approx(statistics.fmean(factors), abs=0.05)
    assert 0.5 == pytest.approx(sum(f > 5 / 3 for f in factors) / 2000, abs=0.05)


def test_prediction_noise_depends_only_on_the_seed_and_the_ids() -> None:
    """All arms of an experiment have the same noise, in any order of requests."""
    a, b = application_of("a", (9, 99), (9, 99)), application_of("b", (9, 99))
    first, second = NoisyCosts(3, 1), NoisyCosts(3, 1)
    asked = [first.cost(a), first.cost(b)]

    assert asked == [second.cost(b), second.cost(a)][::-1]
    assert asked[0] != NoisyCosts(3, 2).cost(a)
    lengths = {first.known_output_tokens(a, inference) for inference in a.inferences}
    assert 2 == len(lengths)


@pytest.mark.parametrize(
    "text",
    [
        "learned",
        "noisy",
        "noisy:",
        "noisy:x",
        "noisy:0.5",
        "noisy:inf",
        "noisy:nan",
        "oracle:3",
        "",
    ],
)
def test_unknown_kind_of_prediction_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"prediction must be oracle, learned, or noisy:λ.*got"):
        parse_noise(text)


_ENGINE = engine(1000)


def _simulate_with(applications: list[WorkloadApplication], **settings: object) -> RunResult:
    return simulate(applications, replace(RunSettings(_ENGINE), **settings))  # type: ignore[arg-type]


def _predicted_costs(result: RunResult) -> list[float]:
    return [row.predicted_kv_token_time for row in result.applications]


def _finish_order(result: RunResult) -> list[str]:
    return [
        row.application_id
        for row in sorted(result.applications, key=lambda row: row.finished_at_s or 0)
    ]


def test_class_mean_is_learned_as_applications_finish() -> None:
    """The first application of a class is predicted as one inference of 256 tokens."""
    applications = [
        application_of("a", (4, 3)),
        application_of("b", (4, 5), at=50),
        application_of("c", (4, 1), at=100),
    ]
    result = _simulate_with(applications, prediction="learned")

    # 4·256 + 256·257/2; 4·3 + 3·4/2 = 18; the mean of 18 and 4·5 + 5·6/2 = 35
    assert [33_920, 18, 26.5] == _predicted_costs(result)


def test_submissions_raise_the_charge_of_an_unknown_application() -> None:
    applications = [
        application_of("before", (600, 2)),
        application_of("large", *[(400, 30)] * 5, at=0.1),
        application_of("small", (400, 30), at=0.2),
    ]
    late = _finish_order(_simulate_with(applications, prediction="learned", raises=False))
    told = _finish_order(_simulate_with(applications, prediction="learned"))

    assert ["before", "large", "small"] == late
    assert ["before", "small", "large"] == told


def test_later_stage_raises_an_underestimated_cost() -> None:
    """The large application is charged more when its first stage ends, and is overtaken.

    When its first stage is over, the giant has a higher charge, and the mouse precedes it.

    Until then the replica is full. With its first charge the giant would precede the mouse.
    """
    after: list[Inference] = [(480, 20, ("0",), 0.0)] * 2
    applications = [
        application_of("first", (10, 2), *after),
        application_of("blocker", (600, 20), at=500),
        application_of("giant", (10, 2), *after, at=500),
        application_of("mouse", (480, 3), at=503),
    ]
    costs = {"first": 1e5, "blocker": 5.0, "giant": 30.0, "mouse": 1500.0}
    late, told = (
        _finish_order(
            _simulate_with(applications, prediction="table", predicted_costs=costs, raises=raises)
        )
        for raises in (False, True)
    )

    assert ["first", "blocker", "giant", "mouse"] == late
    assert ["first", "blocker", "mouse", "giant"] == told


def test_predicted_lengths_of_calls_follow_their_stage() -> None:
    application = application_of("a", (10, 2), (10, 60, ("0",), 0.0))
    costs = TableCosts({"a": 1.0})
    costs.stages.observe_stages(
        "c", [StageServed(1, 1, 10, 2, 23), StageServed(1, 1, 10, 60, 2430)]
    )
    predictions = StagedPredictions(costs, 1.5, raises=True)
    predictions.application_cost(application)
    first = predictions.predict_inference(application, application.inferences[0], 900)
    predictions.finish_inference("a", "0")
    second = predictions.predict_inference(application, application.inferences[1], 900)

    # (2 + 31) / 2 and (60 + 31) / 2, rounded up
    assert [(17, 0), (46, 1)] == [(f.output_tokens, f.stage) for f in (first, second)]
    assert 1.5 * 2430 == second.remaining_kv_token_time


def test_later_stages_are_predicted_at_arrival_and_at_each_stage() -> None:
    after: list[Inference] = [(10, 2, ("0",), 0.0)] * 2
    application = application_of("a", (10, 2), *after)
    costs = TableCosts({"a": 1.0, "b": 1.0})
    one = StageServed(1, 1, 10, 2, 23, 2, 0.5)
    for stages in ([one], [one] * 2, [one] * 2, [one] * 4):
        costs.stages.observe_stages("c", stages)
    predictions = StagedPredictions(costs, 1.5, raises=False)
    predictions.application_cost(application)
    told = [predictions.stages(application)]
    for number, inference in enumerate(application.inferences):
        told.append(predictions.predict_inference(application, inference, 900).expected_stages)
        if not number:
            predictions.finish_inference("a", "0")
    unknown = replace(application, application_id="b", application_class="d")

    expected = ExpectedStage(1, 14, 23, 2, 0.5)
    assert [(expected, expected), (), (expected,), ()] == told
    assert () == predictions.stages(unknown)


@pytest.mark.parametrize("prediction", ["oracle", "table"])
def test_core_receives_true_or_predicted_stages(prediction: str) -> None:
    application = application_of("a", (10, 2), (10, 2, ("0",), 0.0))
    one = StageServed(1, 1, 10, 3, 36, 3, 0.0)
    observed = [[one], [one], [one] * 3] if prediction == "table" else []
    history = [Observation("c", Sample(1.0, 1, 1, None), tuple(stages)) for stages in observed]
    settings = RunSettings(
        _ENGINE, prediction=prediction, predicted_costs={"a": 1.0}, history=history
    )
    link = CoreLink(settings, RunResult())
    server = Server(0, _ENGINE, 0.0)
    link.expect(application)
    link.arrive(application, 0.0)
    opened = link.core.state.applications["a"]
    told = [opened.expected_stages]
    link.submit(application, application.inferences[0], 0.0, 0.0)
    link.report(server, link.ask(server, 0.0), 2.0, whole=False)
    link.submit(application, application.inferences[1], 2.0, 2.0)
    told.append(opened.expected_stages)

    true, usual = ExpectedStage(1, 14, 23, 2, 0), ExpectedStage(1, 16, 36, 3, 0)
    by_prediction = {
        "oracle": [(true, true), (true, true)],
        "table": [(usual,), (usual, usual, usual)],
    }
    assert by_prediction[prediction] == told


def test_simulated_predictor_may_train_after_every_application(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []
    monkeypatch.setattr(cost_sources, "train_due", lambda predictor, now: asked.append(now))
    _simulate_with(
        [application_of("a", (4, 3)), application_of("b", (4, 5), at=50)], prediction="learned"
    )

    assert [3.0, 55.0] == asked


@pytest.mark.parametrize(
    ("prediction", "factor", "charged"),
    [
        ("learned", 4.0, 400.0),
        ("noisy:3", 2.0, 200.0),
        ("noisy:3", 4.0, 300.0),
        ("noisy:1.5", 2.0, 150.0),
        ("noisy:1", 2.0, None),
    ],
)
def test_charge_is_a_multiple_of_the_prediction(
    prediction: str, factor: float, charged: float | None
) -> None:
    """The service multiplies its predictions, because a low one costs more than a high one.

    Noise is low by at most a factor of λ. `noisy:1` is the oracle, the end of the axis of Fig. 10:
    its charge is the truth.
    """
    settings = RunSettings(_ENGINE, prediction=prediction, charge_factor=factor)

    assert charged == predictions_of(settings).charge(100.0)


@pytest.mark.parametrize("costs", [{}, {"a": 0.0}, {"a": float("inf")}])
def test_prediction_table_without_an_applications_cost_is_refused(costs: dict[str, float]) -> None:
    with pytest.raises(
        ConfigError, match="predicted_costs of application 'a' must be a number > 0"
    ):
        _simulate_with([application_of("a", (4, 3))], prediction="table", predicted_costs=costs)


def test_trained_models_are_refused_without_learned_predictions(tmp_path: Path) -> None:
    """A given model directory must not be ignored silently."""
    with pytest.raises(ConfigError, match="models_dir must be given with prediction 'learned'"):
        predictions_of(RunSettings(_ENGINE, models_dir=str(tmp_path)))


def test_directory_without_models_is_refused(tmp_path: Path) -> None:
    """A wrong path must not silently give predictions without models."""
    with pytest.raises(ConfigError, match="must hold a model of at least one class"):
        predictions_of(RunSettings(_ENGINE, prediction="learned", models_dir=str(tmp_path)))
    with pytest.raises(ConfigError, match="no such directory"):
        predictions_of(RunSettings(_ENGINE, prediction="learned", models_dir=f"{tmp_path}/none"))


def test_error_names_the_damaged_model(tmp_path: Path) -> None:
    ModelDirectory(tmp_path).publish("EV", b"no model", {})

    with pytest.raises(StoreError, match="class EV"):
        predictions_of(RunSettings(_ENGINE, prediction="learned", models_dir=str(tmp_path)))


def test_missing_package_is_reported_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check the run would fail at its first training."""
    monkeypatch.setattr(cost_sources, "find_spec", lambda name: None)

    with pytest.raises(ConfigError, match=r"sklearn is not installed.*justitia-ray\[learning\]"):
        predictions_of(RunSettings(_ENGINE, prediction="learned"))


def test_simulation_refuses_class_names_that_the_service_refuses() -> None:
    """Class names are keys of the predictor's store."""
    strange = replace(application_of("a", (4, 3)), application_class="no spaces, please")

    with pytest.raises(ConfigError, match="application 'a': application_class is 'no spaces"):
        _simulate_with([strange], prediction="learned")


def test_true_stages_group_calls_by_their_depth() -> None:
    application = application_of(
        "a", (10, 5), (20, 6), (30, 7, ("0",), 1.0), (40, 8, ("0", "1"), 3.0)
    )
    part = application_of("b", (10, 5, ("elsewhere",), 2.0))

    assert true_stages(application) == (
        ExpectedStage(2, 52, 65 + 141, 6, 1.0),
        ExpectedStage(2, 100, 238 + 356, 8, 0.0),
    )
    assert true_stages(part) == (ExpectedStage(1, 20, 65, 5, 0.0),)
