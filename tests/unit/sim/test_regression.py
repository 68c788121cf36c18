"""Iteration costs fitted to decode times, on schedules with known answers."""

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.sim.calibration.measured import MeasuredRun, TimedRequest
from justitia_ray.sim.calibration.regression import fit_iterations
from justitia_ray.sim.engine_profile import IterationCost


def run_of(requests: list[TimedRequest], name: str = "run") -> MeasuredRun:
    return MeasuredRun(name, "fcfs", tuple(requests))


def batch_requests(
    cost: IterationCost, at: float, count: int, prompt: int, output: int
) -> tuple[list[TimedRequest], float]:
    """Return requests that decode together from `at` on, and their end time.

    Iteration k of output − 1 (from 0) holds count · (prompt + 1 + k) tokens.
    """
    contexts = [count * (prompt + 1 + k) for k in range(output - 1)]
    steps = [
        cost.base_s + cost.per_sequence_s * count + cost.per_context_token_s * c for c in contexts
    ]
    end = at + sum(steps)
    return [TimedRequest("c", 0.0, prompt, output, at, end) for _ in range(count)], end


def batches(cost: IterationCost) -> list[TimedRequest]:
    """Return consecutive batches from which the three costs of decoding can be separated."""
    requests: list[TimedRequest] = []
    at = 1.0
    for count, prompt, output in ((1, 10, 50), (8, 10, 50), (4, 1000, 40), (2, 300, 60)):
        more, end = batch_requests(cost, at, count, prompt, output)
        requests += more
        at = end + 1.0
    return requests


def interrupted_requests(cost: IterationCost, *loads: tuple[int, ...]) -> list[TimedRequest]:
    """Return requests that decode 100 iterations each, one after the other.

    After every ten iterations of each, one of the prompts of its load is computed alone.
    """
    requests = []
    at, tile = 1000.0, cost.prefill_tile_tokens
    for prompts in loads:
        started_at = at
        for prompt in prompts:
            at += 10 * (cost.base_s + cost.per_sequence_s)
            at += cost.prefill_base_s + cost.per_prefill_token_s * -(-prompt // tile) * tile
            requests.append(TimedRequest("c", 0.0, prompt, 1, at, at))
        at += (100 - 10 * len(prompts)) * (cost.base_s + cost.per_sequence_s)
        requests.append(TimedRequest("c", 0.0, 5, 101, started_at, at))
        at += 1.0
    return requests


def test_regression_finds_the_costs_of_decoding() -> None:
    """Fitted costs of an iteration, a sequence and a context token are true to 1 %."""
    true = IterationCost(0.03, 0.001, 2e-6)
    fit = fit_iterations([run_of(batches(true))])

    assert true.base_s == pytest.approx(fit.cost.base_s, rel=0.01)
    assert true.per_sequence_s == pytest.approx(fit.cost.per_sequence_s, rel=0.01)
    assert true.per_context_token_s == pytest.approx(fit.cost.per_context_token_s, rel=0.01)
    assert fit.residual < 1e-3


def test_regression_finds_the_costs_and_tile_size_of_prefill() -> None:
    true = IterationCost(0.03, 0.0, 0.0, 0.0002, 64, 0.01)
    loads = ((65, 65), (128, 128), (200,), (10, 10, 10), (65, 700), ())
    fit = fit_iterations([run_of(batches(true) + interrupted_requests(true, *loads))])

    assert 64 == fit.cost.prefill_tile_tokens
    assert true.per_prefill_token_s == pytest.approx(fit.cost.per_prefill_token_s, rel=1e-3)
    assert true.prefill_base_s == pytest.approx(fit.cost.prefill_base_s, rel=1e-3)
    assert fit.residual < 1e-6


def test_tokens_that_the_engine_adds_count_in_the_prefill_tiles() -> None:
    true = IterationCost(0.03, 0.0, 0.0, 0.0002, 64, 0.01)
    computed = interrupted_requests(true, (65, 65), (64, 64), (129,), (21, 21, 21), ())
    told = [
        TimedRequest(
            "c", 0.0, r.prompt_tokens - 1, r.output_tokens, r.first_token_at_s, r.finished_at_s
        )
        for r in computed
    ]
    runs = [run_of(batches(true) + told)]

    assert fit_iterations(runs, 1).residual < 1e-6
    assert fit_iterations(runs, 0).residual > 1e-3


def test_regression_separates_the_speed_of_a_machine_from_its_load() -> None:
    """The second machine takes 4 % longer, so that the factors are 1/√1.04 and √1.04."""
    true = IterationCost(0.03, 0.001, 2e-6)
    fast = batches(true)
    slow = batches(IterationCost(0.03 * 1.04, 0.001 * 1.04, 2e-6 * 1.04))
    fit = fit_iterations([run_of(fast, "fast"), run_of(slow, "slow")])

    assert (1.04**-0.5, 1.04**0.5) == pytest.approx(fit.speeds, rel=1e-3)
    assert 0.03 * 1.04**0.5 == pytest.approx(fit.cost.base_s, rel=0.01)


def test_regression_refuses_a_run_without_decoding() -> None:
    """Requests of one token contain no time between tokens."""
    with pytest.raises(ConfigError, match=r"^short: has no request that took time to decode$"):
        fit_iterations([run_of([TimedRequest("c", 0.0, 5, 1, 1.0, 1.0)], "short")])


def test_fitted_costs_are_not_negative() -> None:
    """An iteration that is quicker with more sequences is noise and must not be extrapolated."""
    true = IterationCost(0.03, -0.0005, 0.0)
    fit = fit_iterations([run_of(batches(true))])

    assert 0 == fit.cost.per_sequence_s
    assert fit.cost.base_s > 0
