"""What the scheduler is told of costs and lengths: truth, or truth times noise."""

import statistics

import pytest

from justitia_ray.core.policies import parse_options
from justitia_ray.errors import ConfigError
from justitia_ray.sim.predictions import NoisyPredictions, parse_noise
from tests.unit.sim.small_run import app


def test_oracle_tells_the_truth() -> None:
    """Costs: 4·3 + 3·4/2 + 2·1 + 1 = 21; h = 4 + 2·3 + 2 + 2·1 = 14 for accounts in p + 2d."""
    application = app("a", (4, 3), (2, 1))
    oracle = NoisyPredictions()
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
    predictions = NoisyPredictions(3, 1)
    applications = [app(f"a{number}", (99, 99)) for number in range(2000)]
    factors = [predictions.kv_token_time(a) / a.cost() for a in applications]

    assert all(1 / 3 <= factor <= 3 for factor in factors)
    assert 5 / 3 == pytest.approx(statistics.fmean(factors), abs=0.05)
    assert 0.5 == pytest.approx(sum(f > 5 / 3 for f in factors) / 2000, abs=0.05)


def test_noise_depends_on_the_seed_and_the_ids_alone() -> None:
    """Arms of an experiment compare on the same draws, in whatever order they ask."""
    a, b = app("a", (9, 99), (9, 99)), app("b", (9, 99))
    first, second = NoisyPredictions(3, 1), NoisyPredictions(3, 1)
    asked = [first.kv_token_time(a), first.kv_token_time(b)]

    assert asked == [second.kv_token_time(b), second.kv_token_time(a)][::-1]
    assert asked[0] != NoisyPredictions(3, 2).kv_token_time(a)
    lengths = {first.submit(a, inference, 999).output_tokens for inference in a.inferences}
    assert 2 == len(lengths)


def test_predicted_length_is_a_token_at_least() -> None:
    """0 would end before it began."""
    predictions = NoisyPredictions(3, 0)
    found = [
        predictions.submit(one, one.inferences[0], 9).output_tokens
        for one in (app(f"a{number}", (1, 1)) for number in range(200))
    ]

    assert 1 == min(found)


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
