"""Times of prompt tokens and iterations, learned from the reports of busy replicas."""

import random

import pytest

from justitia_ray.core.engine_times import EngineTimes

A_S, B_S, C_S = 0.004, 0.0004, 0.008


def report_stretches(
    times: EngineTimes, rng: random.Random, reports: int = 400, noise: float = 0.0, every: int = 4
) -> None:
    """Report a busy replica with these times per iteration, prompt token and output token."""
    now = 0.0
    for _ in range(reports):
        sequences, computed = rng.randint(1, 12), rng.choice([0, 0, 80, 1_200])
        took_s = every * (A_S + sequences * C_S) + computed * B_S
        now += took_s * (1 + noise * rng.uniform(-1, 1))
        times.report("r0", every, every * sequences, computed, now, is_busy=True)


def test_fit_of_engine_times_recovers_the_time_of_a_prompt_token() -> None:
    times = EngineTimes()
    report_stretches(times, random.Random(1))

    assert times.token_s == pytest.approx(B_S, rel=1e-6)


def test_iteration_time_includes_the_prompts_computed_in_it() -> None:
    times, now = EngineTimes(), 0.0
    assert times.iteration_s == 0
    for computed in (0, 160) * 20:
        times.report("r0", 16, 16, computed, now, is_busy=True)
        now += 16 * 0.02 + 0.001 * (160 - computed)

    assert times.iteration_s == pytest.approx(0.02 + 0.001 * 160 / 2 / 16, rel=0.01)


def test_noise_of_a_fifth_leaves_the_fitted_time_within_a_tenth() -> None:
    times = EngineTimes()
    report_stretches(times, random.Random(2), noise=0.2)

    assert times.token_s == pytest.approx(B_S, rel=0.1)


def test_prompt_token_time_is_unknown_until_some_busy_stretches_have_ended() -> None:
    times = EngineTimes()
    report_stretches(times, random.Random(3), reports=20)

    assert times.token_s is None


def test_prompt_token_time_is_unknown_if_prompts_and_iterations_are_proportional() -> None:
    times, now = EngineTimes(), 0.0
    for _ in range(200):
        now += 1.0
        times.report("r0", 16, 64, 320, now, is_busy=True)

    assert times.token_s is None


def test_idle_time_does_not_change_the_fitted_prompt_token_time() -> None:
    """A replica is idle for an hour after each busy stretch."""
    times, rng, now = EngineTimes(), random.Random(4), 0.0
    for _ in range(100):
        now += 3_600.0
        times.report("r0", 0, 0, 0, now, is_busy=True)
        for left in range(8, 0, -1):
            sequences, computed = rng.randint(1, 12), rng.choice([0, 1_200])
            now += 4 * (A_S + sequences * C_S) + computed * B_S
            times.report("r0", 4, 4 * sequences, computed, now, is_busy=left > 1)

    assert times.token_s == pytest.approx(B_S, rel=1e-6)


def test_engine_times_of_replicas_are_separate() -> None:
    times, rng, now = EngineTimes(), random.Random(5), 0.0
    for _ in range(200):
        for name in ("r0", "r1"):
            sequences, computed = rng.randint(1, 12), rng.choice([0, 1_200])
            times.report(name, 16, 16 * sequences, computed, now, is_busy=True)
        now += 1.0

    assert {"r0", "r1"} == set(times._periods)
