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


def teach(predictor: LearningPredictor, count: int, factor: float = 1.0, name: str = "EV") -> None:
    """Finish applications whose cost is factor · (1 + chars)."""
    for i in range(count):
        chars = 20 + 7 * (i % 13)
        predictor.observe_application(name, sample_of(chars, factor * (1.0 + chars)))


def due(predictor: LearningPredictor, now: float = 0.0) -> TrainingJob:
    """Return the due training; fail if there is none."""
    job = predictor.due_training(now)
    assert job is not None
    return job


def trained(count: int = 10) -> LearningPredictor:
    """Return a predictor with a true model of EV."""
    predictor = LearningPredictor()
    teach(predictor, count)
    assert predictor.trained(due(predictor), power_model_bytes()).took_over
    return predictor


def test_sources_in_their_order() -> None:
    """The best available source of a class answers, and is named in the estimate."""
    predictor = trained()
    teach(predictor, 3, name="DM")

    def source(name: str, *, known_input: bool) -> str:
        return predictor.estimate(name, 5, 16, features_for(50) if known_input else None).source

    assert "model" == source("EV", known_input=True)
    assert "class" == source("EV", known_input=False)
    assert "class" == source("DM", known_input=True)
    assert "neighbours" == source("new", known_input=True)
    assert "prior" == source("new", known_input=False)
    assert "prior" == LearningPredictor().estimate("new", 5, 16, features_for(50)).source


def test_model_looks_at_the_input() -> None:
    """Cost and spread are the model's: p10 half, p90 double of it."""
    estimate = trained().estimate("EV", 5, 16, features_for(99))

    figures = (estimate.kv_token_time, estimate.p10, estimate.p90)
    assert pytest.approx((100.0, 50.0, 200.0)) == figures
    assert 10 == estimate.output_tokens


def test_many_are_estimated_as_each() -> None:
    """A batch is only faster; answers and order equal those of single calls."""
    predictor = trained()
    teach(predictor, 3, name="DM")
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


def test_class_is_trained_as_soon_as_it_has_ten_samples() -> None:
    """Seven are for training, the latest three for evaluation."""
    predictor = LearningPredictor(LearningSettings(seed=5))
    teach(predictor, 9)
    assert predictor.due_training(0.0) is None
    teach(predictor, 1)

    job = due(predictor)
    assert ("EV", "first", 5) == (job.application_class, job.reason, job.seed)
    assert (7, 3) == (len(job.samples), len(job.held_back))
    assert predictor.due_training(0.0) is None  # the training is running already


def test_samples_without_features_train_nothing() -> None:
    """Requests without a class are counted, and have no other effect."""
    predictor = LearningPredictor()
    for _ in range(50):
        predictor.observe_application("EV", replace(sample_of(10), features=None))

    assert predictor.due_training(0.0) is None
    assert 50 == predictor.means.statistics("EV")["samples"]


def test_class_is_trained_again_when_it_has_grown() -> None:
    """The class must have grown by a quarter, and by at least ten."""
    predictor = trained()
    teach(predictor, 9)
    assert predictor.due_training(0.0) is None
    teach(predictor, 1)

    job = due(predictor)
    assert ("samples", 16, 4) == (job.reason, len(job.samples), len(job.held_back))


def test_worse_model_does_not_take_over_and_the_outcome_is_kept() -> None:
    """The list shows the training and its failed comparison."""
    predictor = trained()
    teach(predictor, 10)
    judgement = predictor.trained(due(predictor), power_model_bytes(factor=2.0), at=7.0)

    assert not judgement.took_over
    index = predictor.index("EV")
    assert (1, 1) == (index.active, predictor.serving("EV"))
    assert index.last_training is not None
    assert (False, 7.0) == (index.last_training["took_over"], index.last_training["trained_at"])
    assert 100.0 == pytest.approx(predictor.estimate("EV", 1, 1, features_for(99)).kv_token_time)


def test_record_of_a_version_contains_its_origin() -> None:
    """`justitia predictor list` shows it."""
    predictor = LearningPredictor()
    teach(predictor, 10)
    predictor.trained(due(predictor), power_model_bytes(), at=7.0)

    (version,) = predictor.index("EV").versions
    shown = ("kind", "samples", "held_back", "reason", "trained_at", "took_over")
    assert ("mlp", 10, 3, "first", 7.0, True) == tuple(version.record[name] for name in shown)
    assert pytest.approx(0.0, abs=1e-9) == version.record["error"]


def test_failed_training_is_repeated_at_growing_intervals() -> None:
    """A class whose training always crashes must not keep a CPU core busy."""
    predictor = LearningPredictor()
    teach(predictor, 10)

    assert RETRY_S == predictor.training_failed(due(predictor), now=100.0)
    assert predictor.due_training(100.0 + RETRY_S - 1) is None
    assert 2 * RETRY_S == predictor.training_failed(due(predictor, 100.0 + RETRY_S), now=200.0)


def test_damaged_model_is_refused() -> None:
    """The process that trained it may have been killed."""
    predictor = LearningPredictor()
    teach(predictor, 10)
    job = due(predictor)

    with pytest.raises(StoreError, match="new model of class EV"):
        predictor.trained(job, power_model_bytes()[:-1])


def test_change_drops_earlier_samples() -> None:
    """After a new release of an agent its old costs are useless: mean and training restart."""
    predictor = trained(60)
    before = predictor.estimate("EV", 1, 1).kv_token_time
    teach(predictor, 12, factor=20.0)

    assert 1 == predictor.changes("EV")
    # The model is withdrawn: the mean of the costs since the change is nearer.
    assert (0, "class") == (
        predictor.serving("EV"),
        predictor.estimate("EV", 1, 1, features_for(50)).source,
    )
    assert 10 * before < predictor.estimate("EV", 1, 1).kv_token_time
    job = due(predictor)
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
def test_only_real_changes_are_detected_and_soon(count: int, factor: float, changes: int) -> None:
    """Drift is detected by the errors of the serving model."""
    predictor = trained(100)
    teach(predictor, count, factor)

    assert changes == predictor.changes("EV")


def test_pinned_version_is_not_replaced_until_it_is_released() -> None:
    """The operator may have a reason that no error shows."""
    predictor = trained()
    teach(predictor, 10)
    job = due(predictor)
    pinned = predictor.index("EV").activated(1, pinned=True)
    predictor.serve("EV", pinned, power_model(factor=3.0), 1)

    assert not predictor.trained(job, power_model_bytes()).took_over
    teach(predictor, 100)
    assert predictor.due_training(0.0) is None
    predictor.serve(
        "EV", predictor.index("EV").after_rollback(None, release=True), power_model(factor=3.0), 1
    )
    assert predictor.trained(due(predictor), power_model_bytes()).took_over


def test_class_with_an_unreadable_version_is_trained_again_once() -> None:
    """The next training has nothing to add if the mean of the class is as good as its model."""
    predictor = trained()
    assert predictor.due_training(0.0) is None
    predictor.serve("EV", predictor.index("EV"), None, 0)

    job = due(predictor)
    assert "first" == job.reason
    assert not predictor.trained(job, power_model_bytes(factor=9.0)).took_over
    assert predictor.due_training(0.0) is None


def test_stages_are_learned_with_the_application() -> None:
    """Lengths of inferences depend on their stage."""
    predictor = LearningPredictor()
    stages = (StageServed(1, 1, 100, 30, 5_000), StageServed(2, 2, 100, 8, 500))
    predictor.observe_application("EV", sample_of(10), stages)

    expected = predictor.stages.expect("EV", 0, 100, None)
    assert expected is not None
    assert 3 == expected.inferences_to_come


def test_classes_beyond_the_bound_share_other() -> None:
    """Callers choose class names; models and histories are bounded, too."""
    predictor = LearningPredictor(LearningSettings(max_classes=1))
    teach(predictor, 10, name="EV")

    assert "other" == predictor.observe_application("DM", sample_of(10))
    predictor.trained(due(predictor), power_model_bytes())
    teach(predictor, 9, name="third")
    assert "other" == due(predictor).application_class


def test_predictor_continues_from_its_saved_state() -> None:
    """A restart loses no samples, no drift detection and no count of new samples."""
    predictor = trained(30)
    teach(predictor, 5)
    saved = json.loads(json.dumps(predictor.progress("EV")))
    samples = [*(sample_of(20 + 7 * (i % 13)) for i in range(30)), *(sample_of(20),) * 5]

    restored = LearningPredictor()
    restored.means.restore(json.loads(json.dumps(predictor.means.all_statistics())))
    restored.restore_class("EV", saved, samples)

    assert saved == restored.progress("EV")
    assert predictor.means.all_statistics() == restored.means.all_statistics()
    known = features_for(40)
    assert predictor.estimate("new", 1, 1, known) == restored.estimate("new", 1, 1, known)
    teach(restored, 5)
    assert "samples" == due(restored).reason


def test_interrupted_training_is_due_again_after_a_restart() -> None:
    """No other process would finish it."""
    predictor = LearningPredictor()
    teach(predictor, 10)
    due(predictor)
    restored = LearningPredictor()
    restored.restore_class("EV", predictor.progress("EV"), [sample_of(9)] * 10)

    assert "first" == due(restored).reason


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
def test_wrong_progress_is_refused_by_name(
    progress: dict[str, object] | None, complaint: str
) -> None:
    """The content of a store is validated."""
    predictor = LearningPredictor()
    teach(predictor, 1)
    whole = predictor.progress("EV") | progress if progress else progress

    with pytest.raises(StoreError, match=f"progress of class EV: {complaint}"):
        predictor.restore_class("EV", whole, [])
