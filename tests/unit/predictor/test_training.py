"""Trained models: accurate where the input determines the cost, bounded and repeatable."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from statistics import median

import pytest
import torch

from justitia_ray.errors import ConfigError
from justitia_ray.predictor import training
from justitia_ray.predictor.evaluation import coverage
from justitia_ray.predictor.fitting import NetworkTraining, _AdamW, squared_error
from justitia_ray.predictor.input_features import features_of
from justitia_ray.predictor.observation import LEAST_TRAINED_ON, Sample
from justitia_ray.predictor.trained_model import TrainedModel
from justitia_ray.predictor.training import (
    KINDS,
    TrainingJob,
    is_grown,
    job_to_bytes,
    judge,
    mean_relative_error,
    predicted_costs,
    train,
)
from tests.unit.predictor.builders import made_up_samples, power_model, quick_networks, sample_of
from tests.unit.predictor.test_input_features import ODD

__all__ = ["quick_networks"]


pytestmark = pytest.mark.usefixtures("quick_networks")


@cache
def model_of_kind(kind: str, count: int = 60) -> TrainedModel:
    return train(made_up_samples(count), kind=kind)


def mean_error(model: TrainedModel, samples: Sequence[Sample]) -> float:
    return mean_relative_error(predicted_costs(model, samples), samples)


@pytest.mark.slow
def test_model_learns_the_cost_function() -> None:
    """The cost is the square of the length, tripled by one word of the text."""
    test = made_up_samples(100, seed=1)
    costs = [sample.kv_token_time for sample in made_up_samples(60)]

    assert mean_relative_error([median(costs)] * len(test), test) > 1.0
    assert mean_error(model_of_kind("mlp"), test) < 0.4


def test_paper_recipe_of_training_uses_words_but_no_text_measures() -> None:
    """The baseline must not have features that the paper lacks."""
    short, long = "alpha beta slow.", "alpha beta slow.\n\n" + "?" * 500
    model = model_of_kind("paper")

    assert features_of(short).measures != features_of(long).measures
    assert features_of(short).terms == features_of(long).terms
    assert model.predict([features_of(short)]) == model.predict([features_of(long)])


@pytest.mark.slow
def test_model_is_no_worse_than_the_median_where_nothing_can_be_learned() -> None:
    """Costs are drawn independently of the input, as in half of the workloads of users."""
    noise = made_up_samples(60, noise=0.0)
    costs = [math.exp(3 + 0.3 * math.sin(7919 * i)) for i in range(200)]
    samples = [
        Sample(cost, 1, 1, sample.features)
        for cost, sample in zip(costs, made_up_samples(200, seed=5), strict=True)
    ]
    known, test = samples[: len(noise)], samples[len(noise) :]

    of_median = mean_relative_error([median(costs[: len(known)])] * len(test), test)
    assert mean_error(train(known), test) <= 1.1 * of_median


def test_four_of_five_unseen_applications_lie_between_p10_and_p90() -> None:
    """The spread comes from errors on held-out samples, since training errors are too small."""
    model = model_of_kind("mlp", 100)
    test = made_up_samples(400, seed=2)
    predictions = model.predict([s.features for s in test if s.features is not None])

    # The tolerance is two standard errors of a share of 0.8 among 400 costs.
    assert pytest.approx(0.8, abs=0.09) == coverage(predictions, [s.kv_token_time for s in test])


@pytest.mark.parametrize("kind", KINDS)
def test_odd_inputs_get_a_bounded_cost_estimate(kind: str) -> None:
    """For empty, enormous, foreign and binary inputs the bound is ten times the class's costs."""
    costs = [sample.kv_token_time for sample in made_up_samples(60)]
    predictions = model_of_kind(kind).predict([features_of(text) for text in ODD.values()])

    for prediction in predictions:
        assert min(costs) / 10.001 <= prediction.p10 <= prediction.kv_token_time
        assert prediction.kv_token_time <= prediction.p90 <= max(costs) * 10.001


@pytest.mark.parametrize("kind", KINDS)
def test_single_and_batched_estimates_are_equal(kind: str) -> None:
    """Two predictors must agree to the last bit."""
    inputs = [s.features for s in made_up_samples(150, seed=3) if s.features is not None]
    together = model_of_kind(kind).predict(inputs)

    assert together == [model_of_kind(kind).predict([one])[0] for one in inputs]
    assert together[::-1] == model_of_kind(kind).predict(inputs[::-1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_training_is_reproducible(kind: str) -> None:
    """Both kinds of model use random numbers."""
    samples = made_up_samples(12)
    inputs = [s.features for s in samples if s.features is not None]
    first, second, other = (train(samples, kind=kind, seed=seed) for seed in (7, 7, 8))

    assert first.predict(inputs) == second.predict(inputs)
    assert first.predict(inputs) != other.predict(inputs)


def test_ten_samples_are_enough_for_training() -> None:
    """The ten samples may have one word and one form of input."""
    same = [Sample(100.0 + i, 1, 1, features_of("again")) for i in range(LEAST_TRAINED_ON)]
    (prediction,) = train(same).predict([features_of("again")])

    assert 100 <= prediction.kv_token_time <= 104
    assert mean_error(train(made_up_samples(10)), made_up_samples(50, seed=4)) < 1.0


def test_samples_without_features_are_not_trained_on() -> None:
    blind = Sample(1e9, 1, 1, None)
    known = made_up_samples(12)

    assert train([blind, *known]).samples == 12
    with pytest.raises(ValueError, match="4 samples have features"):
        train([*known[:4], blind, blind])


def test_error_of_an_unknown_model_kind_lists_the_known_kinds() -> None:
    """The kind comes from a configuration file."""
    with pytest.raises(ConfigError, match=r"kind must be one of mlp, paper, got 'mpl'"):
        train(made_up_samples(10), kind="mpl")


@pytest.mark.parametrize("kind", ["auto", "ridge", "forest", "median"])
def test_error_of_a_removed_model_kind_names_its_replacement(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"kind {kind} was removed: write mlp"):
        train(made_up_samples(10), kind=kind)


def test_error_of_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base installation has neither scikit-learn nor torch."""

    def raise_missing_module(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {'sklearn'!r}", name="sklearn")

    monkeypatch.setattr(training, "import_module", raise_missing_module)

    with pytest.raises(ConfigError, match=r"module sklearn: pip install 'justitia-ray\[learning\]"):
        train(made_up_samples(10))


def test_adamw_follows_algorithm_2_of_its_paper() -> None:
    """Our own AdamW saves an import of seconds."""
    how = NetworkTraining(
        widths=(), members=1, steps=3, rate=0.01, decay=0.1, loss=squared_error, held_out=0.0
    )
    weight = torch.tensor([0.5], requires_grad=True)
    optimizer = _AdamW([weight], how)
    expected, mean, square = 0.5, 0.0, 0.0
    for step, gradient in enumerate((0.3, -0.2, 0.7), start=1):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        unbiased = (mean / (1 - 0.9**step)) / (math.sqrt(square / (1 - 0.999**step)) + 1e-8)
        expected -= 0.01 * (unbiased + 0.1 * expected)
        optimizer.step([torch.tensor([gradient])])

    assert pytest.approx(expected, abs=1e-6) == weight.item()


def job_of(held_back: tuple[Sample, ...]) -> TrainingJob:
    """Return a job whose training samples cost 100 each."""
    return TrainingJob("EV", (sample_of(10, 100.0),) * 5, held_back, "first", seed=0)


@pytest.mark.parametrize(
    ("new", "before", "grown"), [(9, 8, False), (10, 8, True), (24, 100, False), (25, 100, True)]
)
def test_class_that_grew_by_a_quarter_and_ten_samples_is_retrained(
    new: int, before: int, grown: bool
) -> None:
    """Trainings must not become more frequent as a class becomes busier."""
    assert grown == is_grown(new, before)


@pytest.mark.parametrize(
    ("rival", "took_over", "rival_error"),
    [
        (power_model(factor=2.0), True, 1.0),  # the model predicts twice the cost: an error of 1
        (power_model(factor=1.25), False, 0.25),
        (power_model(factor=1.5), False, 0.5),  # a tie changes nothing
    ],
)
def test_new_model_must_beat_the_serving_model(
    rival: TrainedModel, took_over: bool, rival_error: float
) -> None:
    """Both are measured on samples that neither was trained on."""
    held_back = tuple(sample_of(chars) for chars in (10, 20, 30))
    judgement = judge(job_of(held_back), power_model(factor=1.5), rival)

    errors = (judgement.error, judgement.rival_error)
    assert pytest.approx((0.5, rival_error)) == errors
    assert took_over == judgement.took_over


def test_first_model_must_be_as_good_as_the_class_mean() -> None:
    held_back = (sample_of(99), sample_of(99))

    # true costs are 100, and so is the mean of the training samples
    assert judge(job_of(held_back), power_model(), None).took_over
    assert not judge(job_of(held_back), power_model(factor=1.1), None).took_over


def test_training_job_carries_no_texts() -> None:
    """Training uses only features, so texts need not reach a second process."""
    sample = replace(sample_of(12), input_text="secret words")
    job = TrainingJob("EV", (sample,), (sample,), "samples", seed=3, kind="paper")
    told = job_to_bytes(job)

    assert b"secret" not in told
    expected = TrainingJob("EV", (sample_of(12),), (), "samples", seed=3, kind="paper")
    assert expected == TrainingJob.from_dict(json.loads(told))
