"""The class-mean predictor: prior, mean, quantiles, bound on classes, and storage."""

import math
import random
import statistics
from typing import Any

import pytest

from justitia_ray.errors import RequestError, StoreError
from justitia_ray.predictor.class_mean import ClassMeanPredictor
from justitia_ray.predictor.estimate import Estimate
from justitia_ray.predictor.observation import Sample


def sample_of_cost(cost: float, inferences: int = 1, output_tokens: int = 1) -> Sample:
    """Return an application that ended normally with this cost."""
    return Sample(cost, inferences, output_tokens, None)


def predictor_of(costs: list[float]) -> ClassMeanPredictor:
    """Return a predictor that has observed EV applications with these costs."""
    predictor = ClassMeanPredictor()
    for cost in costs:
        predictor.observe_cost("EV", sample_of_cost(cost))
    return predictor


@pytest.mark.parametrize(("max_tokens", "cost", "output"), [(4, 50, 4), (None, 23, 2)])
def test_application_of_an_unknown_class_is_estimated_as_one_inference(
    max_tokens: int | None, cost: float, output: int
) -> None:
    """Charges in excess are refunded, so the assumed output may be the maximum."""
    estimate = ClassMeanPredictor(prior_output_tokens=2).estimate("EV", 10, max_tokens)

    # cost = p·d + d(d+1)/2: 10·4 + 4·5/2, or 10·2 + 2·3/2
    assert Estimate(cost, cost / 10, cost * 10, output, source="prior") == estimate


def test_application_of_a_known_class_is_estimated_at_the_class_mean() -> None:
    """With the mean as estimate, the charges of a class add up to its costs."""
    predictor = ClassMeanPredictor()
    predictor.observe_cost("EV", sample_of_cost(100, inferences=2, output_tokens=10))
    predictor.observe_cost("EV", sample_of_cost(300, inferences=2, output_tokens=11))
    predictor.observe_cost("DM", sample_of_cost(9000, inferences=1, output_tokens=500))

    estimate = predictor.estimate("EV", input_tokens=10, max_tokens=None)

    # 21 output tokens over 4 inferences are 5.25 each, rounded up
    assert (
        estimate.kv_token_time,
        estimate.output_tokens,
        estimate.source,
    ) == (200.0, 6, "class")


def test_predicted_output_never_exceeds_max_tokens() -> None:
    predictor = ClassMeanPredictor()
    predictor.observe_cost("EV", sample_of_cost(100, inferences=1, output_tokens=50))

    assert predictor.estimate("EV", 10, max_tokens=8).output_tokens == 8


@pytest.mark.parametrize(("max_tokens", "expected"), [(8, (8, 8)), (90, (50, 50))])
def test_predicted_output_of_a_known_class_is_its_mean(
    max_tokens: int, expected: tuple[int, int]
) -> None:
    predictor = ClassMeanPredictor(prior_output_tokens=20)
    predictor.observe_cost("EV", sample_of_cost(100, inferences=1, output_tokens=50))

    assert expected == predictor.output_tokens("EV", max_tokens)


@pytest.mark.parametrize(("max_tokens", "expected"), [(8, (8, 8)), (90, (90, 20))])
def test_predicted_output_of_an_unknown_class_is_max_tokens_or_the_prior(
    max_tokens: int, expected: tuple[int, int]
) -> None:
    predictor = ClassMeanPredictor(prior_output_tokens=20)

    assert expected == predictor.output_tokens("EV", max_tokens)


def test_cost_estimate_adds_no_class_to_the_table() -> None:
    """A caller must not fill the table by asking for estimates."""
    predictor = ClassMeanPredictor()
    predictor.estimate("EV", 10, 4)

    with pytest.raises(KeyError):
        predictor.statistics("EV")


def test_running_mean_and_variance_equal_the_definitions() -> None:
    """The recurrences must be exact for costs of very different size too."""
    costs = [1e9 + 1, 1e9 + 2, 1e9 + 4, 3.0]
    logs = [math.log(cost) for cost in costs]

    kept = predictor_of(costs).statistics("EV")

    assert kept["kv_token_time_mean"] == pytest.approx(statistics.fmean(costs))
    assert kept["log_mean"] == pytest.approx(statistics.fmean(logs))
    assert kept["log_squares"] == pytest.approx(statistics.pvariance(logs) * 4)


@pytest.mark.parametrize("samples", [1, 2, 3, 10, 100])
def test_four_of_five_later_costs_lie_between_p10_and_p90(samples: int) -> None:
    """The interval must hold from the first sample on."""
    rng = random.Random(0)
    hits = 0
    for _ in range(1000):
        *seen, following = (rng.lognormvariate(8.0, 0.5) for _ in range(samples + 1))
        estimate = predictor_of(seen).estimate("EV", 10, None)
        hits += estimate.p10 <= following <= estimate.p90

    # 80 % of 1,000, plus or minus four standard deviations of 12.6
    assert hits == pytest.approx(800, abs=50)


def test_quantiles_enclose_the_mean_of_skewed_costs() -> None:
    """One very large cost in a hundred lifts the mean over the log-normal p90."""
    estimate = predictor_of([1.0] * 99 + [1e6]).estimate("EV", 10, None)

    assert estimate.kv_token_time == pytest.approx((99 + 1e6) / 100)
    assert estimate.p90 == estimate.kv_token_time


def test_classes_beyond_the_bound_share_the_class_other() -> None:
    """Callers choose class names, so memory must be bounded."""
    predictor = ClassMeanPredictor(max_classes=1)

    names = [
        predictor.observe_cost(name, sample_of_cost(cost))
        for name, cost in [("other", 30), ("EV", 10), ("DM", 20), ("FV", 40), ("EV", 30)]
    ]

    assert names == ["other", "EV", "other", "other", "EV"]
    assert predictor.estimate("EV", 1, None).kv_token_time == 20.0
    assert predictor.estimate("never-seen", 1, None).kv_token_time == 30.0


def test_restore_under_a_lower_class_limit_keeps_the_most_observed_classes() -> None:
    source = ClassMeanPredictor()
    for name in ["other", "DM", "EV", "EV"]:
        source.observe_cost(name, sample_of_cost(10))
    predictor = ClassMeanPredictor(max_classes=1)
    predictor.restore({name: source.statistics(name) for name in ("other", "DM", "EV")})

    assert source.statistics("EV") == predictor.statistics("EV")
    assert source.statistics("other") == predictor.statistics("other")
    with pytest.raises(KeyError):
        predictor.statistics("DM")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("samples", 0),
        ("inferences", 1),
        ("output_tokens", -1),
        ("kv_token_time_mean", 0.0),
        ("kv_token_time_mean", math.nan),
        ("log_mean", 1e6),
        ("log_squares", -0.1),
    ],
)
def test_damaged_class_statistics_leave_the_predictor_unchanged(field: str, value: object) -> None:
    """The error names the damaged class, and the predictor keeps its state."""
    predictor = predictor_of([10.0, 20.0])
    before = predictor.statistics("EV")
    damaged: dict[str, Any] = {**before, field: value}

    with pytest.raises(StoreError, match=f"'EV': {field} is "):
        predictor.restore({"EV": damaged})
    assert before == predictor.statistics("EV")


@pytest.mark.parametrize("name", ["", "a" * 65, "a b", "a/b", "ä", "a\n", "{x}"])
def test_invalid_class_name_is_refused(name: str) -> None:
    """Class names become Redis fields and metric labels."""
    predictor = ClassMeanPredictor()

    with pytest.raises(RequestError) as estimating:
        predictor.estimate(name, 10, None)
    with pytest.raises(RequestError):
        predictor.observe_cost(name, sample_of_cost(10))
    with pytest.raises(StoreError):
        predictor.restore({name: {}})
    assert estimating.value.param == "application_class"


@pytest.mark.parametrize(
    ("input_tokens", "max_tokens", "param"), [(-1, None, "input_tokens"), (1, 0, "max_tokens")]
)
def test_impossible_token_counts_are_refused(
    input_tokens: int, max_tokens: int | None, param: str
) -> None:
    """The error names the wrong field of the request."""
    with pytest.raises(RequestError) as error:
        ClassMeanPredictor().estimate("EV", input_tokens, max_tokens)

    assert param == error.value.param
