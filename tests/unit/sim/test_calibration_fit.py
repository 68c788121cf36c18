"""Calibration: runs of a known engine give it back, and it predicts what it has not seen."""

import random
from dataclasses import replace

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.sim.calibration.fit import calibrate
from justitia_ray.sim.calibration.measured import MeasuredRun, TimedRequest
from justitia_ray.sim.engine_profile import EngineProfile, IterationCost
from justitia_ray.sim.validation import simulate_run, validate

COST = IterationCost(0.02, 0.0004, 2e-6, 0.0002, 1, 0.03)
ENGINE = EngineProfile(
    kv_tokens=3000,
    name="known",
    iteration=COST,
    prefill="separate",
    max_batched_tokens=1024,
    admission="peak",
    admit_every=10,
)


def measured(seed: int, engine: EngineProfile = ENGINE, policy: str = "fcfs") -> MeasuredRun:
    """Return a run of an engine at twice what it can do: 80 requests of two clients in 20 s."""
    lots = random.Random(f"calibration/{seed}")
    asked = tuple(
        TimedRequest(
            client=lots.choice("ab"),
            arrived_at_s=round(lots.uniform(0, 20), 3),
            prompt_tokens=lots.randint(20, 400),
            output_tokens=lots.randint(20, 200),
            first_token_at_s=0.0,
            finished_at_s=0.0,
        )
        for _ in range(80)
    )
    run = MeasuredRun(f"{policy}__{seed}", policy, asked)
    return replace(run, requests=tuple(simulate_run(run, engine)))


def test_known_engine_is_found_and_predicts_another_policy() -> None:
    """The whole path: fitted on FCFS runs, tried on a VTC run of other requests.

    The regression takes each request's tokens to come evenly, which prefills disturb: costs are
    right within 10 %, what they add up to within 2 %.
    """
    start = replace(ENGINE, iteration=IterationCost(1.0))
    found = calibrate([measured(1), measured(2)], start)
    cost = found.profile.iteration

    assert 0.02 == pytest.approx(cost.base_s, rel=0.1)
    assert 0.0002 == pytest.approx(cost.per_prefill_token_s, rel=0.1)
    assert replace(ENGINE, iteration=cost) == found.profile
    (unseen,) = validate(found.profile, [measured(3, policy="vtc")])
    assert abs(unseen.tokens_per_s.error or 0) < 0.01
    assert abs(unseen.mean_first_token_latency_s.error or 0) < 0.02


def test_throughput_errs_by_nothing_over_the_runs_that_were_fitted() -> None:
    """The pace is set so: a systematic error of throughput would be multiplied in every wait.

    One machine was 5 % slower than the other; the profile is between them.
    """
    slow = replace(ENGINE, speedup=1 / 1.05)
    found = calibrate([measured(1), measured(2, slow)], ENGINE)

    errors = [run.tokens_per_s.error or 0.0 for run in found.runs]
    assert abs(sum(errors)) < 0.01
    assert errors[0] < 0 < errors[1]
    assert 1.05 == pytest.approx(found.regression.speeds[1] / found.regression.speeds[0], rel=0.01)


def test_calibration_is_deterministic() -> None:
    """The shipped profile can be made again, byte for byte."""
    runs = [measured(1)]

    assert calibrate(runs, ENGINE) == calibrate(runs, ENGINE)


def test_nothing_to_fit_on_is_refused() -> None:
    """An empty list of runs is a sentence, not a division by zero."""
    with pytest.raises(ConfigError) as error:
        calibrate([], ENGINE)

    assert "at least one run" in str(error.value)
