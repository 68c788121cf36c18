"""The class-mean predictor: prior, mean, quantiles, bound, and its way through the store."""

import json
import math
import random
import statistics
from typing import Any

import pytest

from justitia_ray.errors import ConfigError, RequestError, StoreError
from justitia_ray.predictor.class_mean import ClassMeanPredictor
from justitia_ray.predictor.estimate import Estimate


def predictor_of(costs: list[float]) -> ClassMeanPredictor:
    """Return a predictor that has seen applications of class EV with these costs."""
    predictor = ClassMeanPredictor()
    for cost in costs:
        predictor.observe("EV", cost, inferences=1, output_tokens=1)
    return predictor


def test_unknown_class_costs_one_inference_of_all_its_max_tokens() -> None:
    """Nothing else is known; a charge too large is refunded."""
    estimate = ClassMeanPredictor().estimate("EV", input_tokens=10, max_tokens=4)

    # c = p·d + d(d+1)/2 = 10·4 + 4·5/2
    assert Estimate(50, 5.0, 500.0, output_tokens=4, source="prior") == estimate


def test_unknown_class_without_max_tokens_takes_the_prior_output() -> None:
    """Applications are mostly opened before any max_tokens is known."""
    estimate = ClassMeanPredictor(prior_output_tokens=2).estimate("EV", 10, None)

    assert (estimate.kv_token_time, estimate.output_tokens) == (23, 2)


def test_known_class_costs_its_mean() -> None:
    """The mean is what charges of the class add up to."""
    predictor = ClassMeanPredictor()
    predictor.observe("EV", 100, inferences=2, output_tokens=10)
    predictor.observe("EV", 300, inferences=2, output_tokens=11)
    predictor.observe("DM", 9000, inferences=1, output_tokens=500)

    estimate = predictor.estimate("EV", input_tokens=10, max_tokens=None)

    # 21 output tokens over 4 inferences is 5.25 each, rounded up.
    assert (
        estimate.kv_token_time,
        estimate.output_tokens,
        estimate.source,
    ) == (200.0, 6, "class")


def test_output_never_exceeds_max_tokens() -> None:
    """An inference cannot produce more than its caller allows."""
    predictor = ClassMeanPredictor()
    predictor.observe("EV", 100, inferences=1, output_tokens=50)

    assert predictor.estimate("EV", 10, max_tokens=8).output_tokens == 8


def test_prior_holds_until_minimum_samples() -> None:
    """The threshold is a setting; the mean takes over at it, not after it."""
    predictor = ClassMeanPredictor(minimum_samples=2)
    sources = []
    for _ in range(3):
        sources.append(predictor.estimate("EV", 10, 4).source)
        predictor.observe("EV", 100, inferences=1, output_tokens=5)

    assert sources == ["prior", "prior", "class"]


def test_estimating_creates_no_class() -> None:
    """Otherwise a caller could fill the table by asking."""
    predictor = ClassMeanPredictor()
    predictor.estimate("EV", 10, 4)

    with pytest.raises(KeyError):
        predictor.statistics("EV")


def test_running_statistics_are_those_of_all_samples() -> None:
    """The recurrences must agree with the definitions, for costs of very different size too."""
    costs = [1e9 + 1, 1e9 + 2, 1e9 + 4, 3.0]
    logs = [math.log(cost) for cost in costs]

    kept = predictor_of(costs).statistics("EV")

    assert kept["kv_token_time_mean"] == pytest.approx(statistics.fmean(costs))
    assert kept["log_mean"] == pytest.approx(statistics.fmean(logs))
    assert kept["log_squares"] == pytest.approx(statistics.pvariance(logs) * 4)


@pytest.mark.parametrize("samples", [1, 2, 3, 10, 100])
def test_quantiles_hold_four_of_five_of_the_next(samples: int) -> None:
    """P10 and p90 must mean what they say from the first sample on."""
    rng = random.Random(0)
    hits = 0
    for _ in range(1000):
        *seen, following = (rng.lognormvariate(8.0, 0.5) for _ in range(samples + 1))
        estimate = predictor_of(seen).estimate("EV", 10, None)
        hits += estimate.p10 <= following <= estimate.p90

    # 80 % of 1,000, four standard deviations (12.6) either way.
    assert hits == pytest.approx(800, abs=50)


def test_quantiles_enclose_the_mean_of_skewed_costs() -> None:
    """One giant in a hundred lifts the mean over the log-normal p90; an estimate stays in order."""
    estimate = predictor_of([1.0] * 99 + [1e6]).estimate("EV", 10, None)

    assert estimate.kv_token_time == pytest.approx((99 + 1e6) / 100)
    assert estimate.p90 == estimate.kv_token_time


def test_classes_beyond_the_bound_share_other() -> None:
    """Class names come from callers; memory and metrics must stay bounded."""
    predictor = ClassMeanPredictor(max_classes=1)

    names = [
        predictor.observe(name, cost, inferences=1, output_tokens=1)
        for name, cost in [("EV", 10), ("DM", 20), ("FV", 40), ("EV", 30)]
    ]

    assert names == ["EV", "other", "other", "EV"]
    assert predictor.estimate("EV", 1, None).kv_token_time == 20.0
    assert predictor.estimate("never-seen", 1, None).kv_token_time == 30.0


def test_naming_other_takes_no_place() -> None:
    """A caller whose class is called `other` must not push out a real one."""
    predictor = ClassMeanPredictor(max_classes=1)
    predictor.observe("other", 10, inferences=1, output_tokens=1)

    assert predictor.observe("EV", 10, inferences=1, output_tokens=1) == "EV"


def test_restored_predictor_goes_on_where_it_was() -> None:
    """What is learned survives a restart, through JSON."""
    one = predictor_of([10.0, 20.0, 40.0])
    other = ClassMeanPredictor()
    other.restore(json.loads(json.dumps({"EV": one.statistics("EV")})))

    assert one.estimate("EV", 5, None) == other.estimate("EV", 5, None)

    for predictor in (one, other):
        predictor.observe("EV", 80.0, inferences=3, output_tokens=9)
    assert one.statistics("EV") == other.statistics("EV")


def test_restore_beyond_the_bound_keeps_the_most_observed_and_other() -> None:
    """A lowered bound must cost the least knowledge."""
    source = ClassMeanPredictor()
    for name in ["other", "DM", "EV", "EV"]:
        source.observe(name, 10, inferences=1, output_tokens=1)
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
        ("samples", 2.0),
        ("samples", True),
        ("inferences", 1),
        ("output_tokens", -1),
        ("kv_token_time_mean", 0.0),
        ("kv_token_time_mean", math.nan),
        ("log_mean", "2"),
        ("log_mean", 1e6),
        ("log_squares", -0.1),
        ("log_squares", None),
    ],
)
def test_damaged_statistics_are_refused_whole(field: str, value: object) -> None:
    """A damaged class must be reported by name, and leave what is known as it was."""
    predictor = predictor_of([10.0, 20.0])
    before = predictor.statistics("EV")
    damaged: dict[str, Any] = {**before, field: value}

    with pytest.raises(StoreError, match=f"'EV': {field} is "):
        predictor.restore({"EV": damaged})
    assert before == predictor.statistics("EV")


def test_statistics_of_another_form_are_refused() -> None:
    """Fields of another version must not be guessed at."""
    with pytest.raises(StoreError, match=r"'EV': .*kv_token_time_mean.*mean"):
        ClassMeanPredictor().restore({"EV": {"mean": 3.0}})


@pytest.mark.parametrize("name", ["", "a" * 65, "a b", "a/b", "ä", "a\n", "{x}"])
def test_class_name_of_another_form_is_refused(name: str) -> None:
    """Names become Redis fields and metric labels."""
    predictor = ClassMeanPredictor()

    with pytest.raises(RequestError) as estimating:
        predictor.estimate(name, 10, None)
    with pytest.raises(RequestError):
        predictor.observe(name, 10, inferences=1, output_tokens=1)
    with pytest.raises(StoreError):
        predictor.restore({name: {}})
    assert estimating.value.param == "application_class"


@pytest.mark.parametrize(
    ("input_tokens", "max_tokens", "param"), [(-1, None, "input_tokens"), (1, 0, "max_tokens")]
)
def test_impossible_counts_are_the_callers_error(
    input_tokens: int, max_tokens: int | None, param: str
) -> None:
    """The caller has to learn which field of the request is wrong."""
    with pytest.raises(RequestError) as error:
        ClassMeanPredictor().estimate("EV", input_tokens, max_tokens)

    assert param == error.value.param


@pytest.mark.parametrize(
    ("kv_token_time", "inferences", "output_tokens"),
    [(0, 1, 1), (math.nan, 1, 1), (math.inf, 1, 1), (1, 0, 1), (1, 1, -1)],
)
def test_impossible_observation_changes_nothing(
    kv_token_time: float, inferences: int, output_tokens: int
) -> None:
    """One NaN would make every later estimate of the class a NaN."""
    predictor = predictor_of([10.0])
    before = predictor.statistics("EV")

    with pytest.raises(ValueError, match="allowed"):
        predictor.observe("EV", kv_token_time, inferences, output_tokens)
    assert before == predictor.statistics("EV")


@pytest.mark.parametrize("option", ["prior_output_tokens", "max_classes", "minimum_samples"])
def test_option_below_one_is_a_config_error(option: str) -> None:
    """The message names the option for the operator."""
    with pytest.raises(ConfigError, match=f"{option} is 0"):
        ClassMeanPredictor(**{option: 0})
