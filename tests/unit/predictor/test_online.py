"""The online predictor: sources of estimates, and the life of models."""

import json
from dataclasses import replace

import pytest

from justitia_ray.core.stages import StageServed
from justitia_ray.errors import StoreError
from justitia_ray.predictor.class_life import RETRY_S
from justitia_ray.predictor.online import EstimateRequest, LearningPredictor, LearningSettings
from justitia_ray.predictor.training import TrainingJob
from tests.unit.predictor.builders import features_for, power_model, power_model_bytes, sample_of


def observe_applications(
    predictor: LearningPredictor, count: int, factor: float = 1.0, name: str = "EV"
) -> None:
    """Let the predictor observe applications that cost factor · (1 + chars)."""
    for i in range(count):
        chars = 20 + 7 * (i % 13)
        predictor.observe_application(name, sample_of(chars, factor * (1.0 + chars)))


def next_training(predictor: LearningPredictor, now: float = 0.0) -> TrainingJob:
    job = predictor.due_training(now)
    assert job is not None
    return job


def trained_predictor(count: int = 10) -> LearningPredictor:
    """Return a predictor with a model that knows the cost function of EV."""
    predictor = LearningPredictor()
    observe_applications(predictor, count)
    assert predictor.trained(next_training(predictor), power_model_bytes()).took_over
    return predictor


def test_estimate_comes_from_the_best_available_source() -> None:
    predictor = trained_predictor()
    observe_applications(predictor, 3, name="DM")

    def source_of_estimate(name: str, *, known_input: bool) -> str:
        return predictor.estimate(name, 5, 16, features_for(50) if known_input else None).source

    assert "model" == source_of_estimate("EV", known_input=True)
    assert "class" == source_of_estimate("EV", known_input=False)
    assert "class" == source_of_estimate("DM", known_input=True)
    assert "neighbours" == source_of_estimate("new", known_input=True)
    assert "prior" == source_of_estimate("new", known_input=False)
    assert "prior" == LearningPredictor().estimate("new", 5, 16, features_for(50)).source


def test_models_estimate_depends_on_the_input() -> None:
    estimate = trained_predictor().estimate("EV", 5, 16, features_for(99))

    figures = (estimate.kv_token_time, estimate.p10, estimate.p90)
    assert pytest.approx((100.0, 50.0, 200.0)) == figures
    assert 10 == estimate.output_tokens


def test_batch_of_estimates_equals_single_estimates() -> None:
    predictor = trained_predictor()
    observe_applications(predictor, 3, name="DM")
    requests = [
        EstimateRequest("EV", 5, 16, features_for(80)),
        EstimateRequest("new", 5, None, features_for(80)),
        EstimateRequest("DM", 5, 4, None),
        EstimateRequest("EV", 5, 16, features_for(20)),
    ]

    singly = [
        predictor.estimate(r.application_class, r.input_tokens, r.max_tokens, r.features)
        for r in requests
    ]
    assert singly == predictor.estimate_many(requests)


def test_first_model_is_trained_after_ten_samples() -> None:
    """Seven samples are for training, the latest three for evaluation."""
    predictor = LearningPredictor(LearningSettings(seed=5))
    observe_applications(predictor, 9)
    assert predictor.due_training(0.0) is None
    observe_applications(predictor, 1)

    job = next_training(predictor)
    assert ("EV", "first", 5) == (job.application_class, job.reason, job.seed)
    assert (7, 3) == (len(job.samples), len(job.held_back))
    assert predictor.due_training(0.0) is None  # the training is running already


def test_samples_without_features_start_no_training() -> None:
    """Requests without a class have no features and are only counted."""
    predictor = LearningPredictor()
    for _ in range(50):
        predictor.observe_application("EV", replace(sample_of(10), features=None))

    assert predictor.due_training(0.0) is None
    assert 50 == predictor.means.statistics("EV")["samples"]


def test_model_is_retrained_when_its_class_has_grown() -> None:
    """The number of samples must have grown by a quarter, and by at least ten."""
    predictor = trained_predictor()
    observe_applications(predictor, 9)
    assert predictor.due_training(0.0) is None
    observe_applications(predictor, 1)

    job = next_training(predictor)
    assert ("samples", 16, 4) == (job.reason, len(job.samples), len(job.held_back))


def test_worse_model_is_recorded_without_serving() -> None:
    """The list of versions shows the training and its failed comparison."""
    predictor = trained_predictor()
    observe_applications(predictor, 10)
    judgement = predictor.trained(next_training(predictor), power_model_bytes(factor=2.0), at=7.0)

    assert not judgement.took_over
    index = predictor.index("EV")
    assert (1, 1) == (index.active, predictor.serving("EV"))
    assert index.last_training is not None
    assert (False, 7.0) == (index.last_training["took_over"], index.last_training["trained_at"])
    assert 100.0 == pytest.approx(predictor.estimate("EV", 1, 1, features_for(99)).kv_token_time)


def test_record_of_a_model_version_contains_its_origin() -> None:
    """`justitia predictor list` shows where a version came from."""
    predictor = LearningPredictor()
    observe_applications(predictor, 10)
    predictor.trained(next_training(predictor), power_model_bytes(), at=7.0)

    (version,) = predictor.index("EV").versions
    shown = ("kind", "samples", "held_back", "reason", "trained_at", "took_over")
    assert ("mlp", 10, 3, "first", 7.0, True) == tuple(version.record[name] for name in shown)
    assert pytest.approx(0.0, abs=1e-9) == version.record["error"]


def test_failed_training_is_retried_at_growing_intervals() -> None:
    """A class whose training always crashes must not keep a CPU core busy."""
    predictor = LearningPredictor()
    observe_applications(predictor, 10)

    assert RETRY_S == predictor.training_failed(next_training(predictor), now=100.0)
    assert predictor.due_training(100.0 + RETRY_S - 1) is None
    assert 2 * RETRY_S == predictor.training_failed(
        next_training(predictor, 100.0 + RETRY_S), now=200.0
    )


def test_damaged_model_is_refused() -> None:
    """The process that trained the model may have been killed while it wrote the file."""
    predictor = LearningPredictor()
    observe_applications(predictor, 10)
    job = next_training(predictor)

    with pytest.raises(StoreError, match="new model of class EV"):
        predictor.trained(job, power_model_bytes()[:-1])


def test_cost_drift_drops_samples_of_the_earlier_cost() -> None:
    """After a new release of an agent its old costs are useless, so mean and training restart."""
    predictor = trained_predictor(60)
    before = predictor.estimate("EV", 1, 1).kv_token_time
    observe_applications(predictor, 12, factor=20.0)

    assert 1 == predictor.changes("EV")
    # the model is withdrawn, because the mean of the costs since the change is nearer
    assert (0, "class") == (
        predictor.serving("EV"),
        predictor.estimate("EV", 1, 1, features_for(50)).source,
    )
    assert 10 * before < predictor.estimate("EV", 1, 1).kv_token_time
    job = next_training(predictor)
    assert "drift" == job.reason
    costs = [s.kv_token_time for s in (*job.samples, *job.held_back)]
    assert 3 == sum(cost < 200.0 for cost in costs)
    assert predictor.trained(job, power_model_bytes(factor=20.0)).took_over
    assert 2 == predictor.serving("EV")


@pytest.mark.parametrize(
    ("count", "factor", "changes"),
    [
        pytest.param(10, 20.0, 1, id="right after a takeover: errors held back say what is normal"),
        pytest.param(500, 1.0, 0, id="a steady class: a false alarm costs what was learned"),
    ],
)
def test_real_cost_drift_is_detected_soon(count: int, factor: float, changes: int) -> None:
    """Drift is detected by the errors of the serving model."""
    predictor = trained_predictor(100)
    observe_applications(predictor, count, factor)

    assert changes == predictor.changes("EV")


def test_pinned_model_version_serves_until_its_release() -> None:
    """The operator may have a reason that the measured errors do not show."""
    predictor = trained_predictor()
    observe_applications(predictor, 10)
    job = next_training(predictor)
    pinned = predictor.index("EV").activated(1, pinned=True)
    predictor.serve("EV", pinned, power_model(factor=3.0), 1)

    assert not predictor.trained(job, power_model_bytes()).took_over
    observe_applications(predictor, 100)
    assert predictor.due_training(0.0) is None
    predictor.serve(
        "EV", predictor.index("EV").after_rollback(None, release=True), power_model(factor=3.0), 1
    )
    assert predictor.trained(next_training(predictor), power_model_bytes()).took_over


def test_class_with_an_unreadable_model_is_retrained_once() -> None:
    """A class mean that is as good as the next model starts no further training."""
    predictor = trained_predictor()
    assert predictor.due_training(0.0) is None
    predictor.serve("EV", predictor.index("EV"), None, 0)

    job = next_training(predictor)
    assert "first" == job.reason
    assert not predictor.trained(job, power_model_bytes(factor=9.0)).took_over
    assert predictor.due_training(0.0) is None


def test_ended_application_teaches_its_stage_lengths() -> None:
    """The lengths of inferences depend on their stage."""
    predictor = LearningPredictor()
    stages = (StageServed(1, 1, 100, 30, 5_000), StageServed(2, 2, 100, 8, 500))
    predictor.observe_application("EV", sample_of(10), stages)

    expected = predictor.stages.expect("EV", 0, 100, None)
    assert expected is not None
    assert 3 == expected.inferences_to_come


def test_classes_beyond_the_bound_share_the_class_other() -> None:
    """Callers choose class names, so models and histories must be bounded."""
    predictor = LearningPredictor(LearningSettings(max_classes=1))
    observe_applications(predictor, 10, name="EV")

    assert "other" == predictor.observe_application("DM", sample_of(10))
    predictor.trained(next_training(predictor), power_model_bytes())
    observe_applications(predictor, 9, name="third")
    assert "other" == next_training(predictor).application_class


def test_restored_predictor_continues_from_its_saved_state() -> None:
    """A restart loses no samples, no drift detection and no count of new samples."""
    predictor = trained_predictor(30)
    observe_applications(predictor, 5)
    saved = json.loads(json.dumps(predictor.progress("EV")))
    samples = [*(sample_of(20 + 7 * (i % 13)) for i in range(30)), *(sample_of(20),) * 5]

    restored = LearningPredictor()
    restored.means.restore(json.loads(json.dumps(predictor.means.all_statistics())))
    restored.restore_class("EV", saved, samples)

    assert saved == restored.progress("EV")
    assert predictor.means.all_statistics() == restored.means.all_statistics()
    known = features_for(40)
    assert predictor.estimate("new", 1, 1, known) == restored.estimate("new", 1, 1, known)
    observe_applications(restored, 5)
    assert "samples" == next_training(restored).reason


def test_training_interrupted_by_a_restart_is_due_again() -> None:
    """The process that trained has died with the restart."""
    predictor = LearningPredictor()
    observe_applications(predictor, 10)
    next_training(predictor)
    restored = LearningPredictor()
    restored.restore_class("EV", predictor.progress("EV"), [sample_of(9)] * 10)

    assert "first" == next_training(restored).reason


@pytest.mark.parametrize(
    ("progress", "complaint"),
    [
        (None, "must be an object"),
        ({}, "fields missing or unknown: change_test"),
        ({"changes": -1}, "changes is -1"),
        ({"trained_samples": "x"}, "trained_samples is 'x'"),
        ({"form": []}, "form: must be an object"),
    ],
)
def test_wrong_field_of_saved_progress_is_refused_by_name(
    progress: dict[str, object] | None, complaint: str
) -> None:
    """Stored content is validated when it is read."""
    predictor = LearningPredictor()
    observe_applications(predictor, 1)
    whole = predictor.progress("EV") | progress if progress else progress

    with pytest.raises(StoreError, match=f"progress of class EV: {complaint}"):
        predictor.restore_class("EV", whole, [])
