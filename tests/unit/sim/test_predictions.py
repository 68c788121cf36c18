"""What the scheduler is told of costs and lengths: truth, or truth times noise."""

import statistics

import pytest

from justitia_ray.core.policies import parse_options
from justitia_ray.errors import ConfigError
from justitia_ray.sim.cost_sources import NoisyCosts
from justitia_ray.sim.predictions import ExactPredictions, parse_noise
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.staged_predictions import predictions_of
from tests.unit.sim.small_run import app, engine


def test_oracle_tells_the_truth() -> None:
    """Costs: 4·3 + 3·4/2 + 2·1 + 1 = 21; h = 4 + 2·3 + 2 + 2·1 = 14 for accounts in p + 2d."""
    application = app("a", (4, 3), (2, 1))
    oracle = ExactPredictions()
    compute = parse_options("justitia", {"cost": "compute"})

    assert 21 == oracle.kv_token_time(application)
    assert None is oracle.cost(application, parse_options("justitia", {}))
    assert application.cost(compute.cost_function) == oracle.cost(application, compute)
    assert 3 == oracle.submit(application, application.inferences[0], 9).output_tokens


@pytest.mark.parametrize(("text", "noise"), [("oracle", 1.0), ("noisy:3", 3.0), ("noisy:1", 1.0)])
def test_noise_is_read(text: str, noise: float) -> None:
    """The truth is noise of factor 1."""
    assert noise == parse_noise(text)


def test_noise_is_uniform_in_its_interval() -> None:
    """Justitia v2, Fig. 10: factors from [1/λ, λ]; for λ = 3 their mean is (1/3 + 3)/2."""
    costs = NoisyCosts(3, 1)
    applications = [app(f"a{number}", (99, 99)) for number in range(2000)]
    factors = [costs.cost(a) / a.cost() for a in applications]

    assert all(1 / 3 <= factor <= 3 for factor in factors)
    assert 5 / 3 == pytest.approx(statistics.fmean(factors), abs=0.05)
    assert 0.5 == pytest.approx(sum(f > 5 / 3 for f in factors) / 2000, abs=0.05)


def test_noise_depends_on_the_seed_and_the_ids_alone() -> None:
    """Arms of an experiment compare on the same draws, in whatever order they ask."""
    a, b = app("a", (9, 99), (9, 99)), app("b", (9, 99))
    first, second = NoisyCosts(3, 1), NoisyCosts(3, 1)
    asked = [first.cost(a), first.cost(b)]

    assert asked == [second.cost(b), second.cost(a)][::-1]
    assert asked[0] != NoisyCosts(3, 2).cost(a)
    lengths = {first.length(a, inference, None, 999) for inference in a.inferences}
    assert 2 == len(lengths)


def test_predicted_length_is_a_token_at_least() -> None:
    """0 would end before it began."""
    costs = NoisyCosts(3, 0)
    found = [
        costs.length(one, one.inferences[0], None, 9)
        for one in (app(f"a{number}", (1, 1)) for number in range(200))
    ]

    assert 1 == min(found)


@pytest.mark.parametrize(("prediction", "factor"), [("noisy:3", 2.0), ("noisy:1.5", 1.5)])
def test_noisy_costs_are_charged_as_the_service_charges(prediction: str, factor: float) -> None:
    """Twice, for too little costs more than too much; never more than they can fall short."""
    predictions = predictions_of(RunSettings(engine(9), prediction=prediction))

    assert 100 * factor == predictions.charge(100)


def test_without_noise_the_truth_is_charged() -> None:
    """`noisy:1` is the oracle: the end of the axis of Fig. 10."""
    predictions = predictions_of(RunSettings(engine(9), prediction="noisy:1"))

    assert None is predictions.charge(100)


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
def test_prediction_that_is_none_is_refused(text: str) -> None:
    """With what is allowed, and the word as given."""
    with pytest.raises(ConfigError, match=r"prediction must be oracle, learned, or noisy:λ.*got"):
        parse_noise(text)
