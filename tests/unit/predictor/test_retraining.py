"""What is trained on, what is judged by, when it is worth it, and the process that does it."""

import json
from dataclasses import replace

import pytest

from justitia_ray.predictor.cost_model import CostModel
from justitia_ray.predictor.retraining import TrainingJob, is_grown, judge, split
from justitia_ray.predictor.sample import Sample
from justitia_ray.predictor.trainer_process import job_from_dict, job_to_bytes
from tests.unit.predictor.small_models import power_model, sample_of


def job_of(held_back: tuple[Sample, ...]) -> TrainingJob:
    """Return a job whose samples cost 100 each."""
    return TrainingJob("EV", (sample_of(10, 100.0),) * 5, held_back, "first", seed=0)


@pytest.mark.parametrize(("count", "held"), [(8, 3), (10, 3), (15, 3), (20, 4), (100, 20)])
def test_latest_fifth_is_held_back(count: int, held: int) -> None:
    """At least three: a model must not be judged by one application."""
    samples = [sample_of(1, float(cost)) for cost in range(1, count + 1)]
    train, held_back = split(samples)

    assert samples == [*train, *held_back]
    assert held == len(held_back)


@pytest.mark.parametrize(
    ("new", "before", "grown"), [(9, 8, False), (10, 8, True), (24, 100, False), (25, 100, True)]
)
def test_growth_by_a_quarter_and_ten_is_worth_a_training(
    new: int, before: int, grown: bool
) -> None:
    """Trainings must not become more frequent as a class becomes busier."""
    assert grown == is_grown(new, before)


@pytest.mark.parametrize(
    ("rival", "took_over", "rival_error"),
    [
        (power_model(factor=2.0), True, 1.0),  # says twice the cost: an error of 1
        (power_model(factor=1.25), False, 0.25),
        (power_model(factor=1.5), False, 0.5),  # a tie changes nothing
    ],
)
def test_new_model_must_beat_the_one_in_service(
    rival: CostModel, took_over: bool, rival_error: float
) -> None:
    """Measured on the same samples, which neither has seen."""
    held_back = tuple(sample_of(chars) for chars in (10, 20, 30))
    judgement = judge(job_of(held_back), power_model(factor=1.5), rival)

    errors = (judgement.error, judgement.rival_error)
    assert pytest.approx((0.5, rival_error)) == errors
    assert took_over == judgement.took_over


def test_first_model_must_be_as_good_as_the_class_mean() -> None:
    """A model is no end in itself."""
    held_back = (sample_of(99), sample_of(99))

    # True costs are 100, and so is the mean of what was trained on.
    assert judge(job_of(held_back), power_model(), None).took_over
    assert not judge(job_of(held_back), power_model(factor=1.1), None).took_over


def test_job_goes_to_the_process_without_texts() -> None:
    """It trains by features; texts have no business in a second process."""
    sample = replace(sample_of(12), input_text="secret words")
    job = TrainingJob("EV", (sample,), (sample,), "samples", seed=3, kind="ridge")
    told = job_to_bytes(job)

    assert b"secret" not in told
    expected = TrainingJob("EV", (sample_of(12),), (), "samples", seed=3, kind="ridge")
    assert expected == job_from_dict(json.loads(told))
