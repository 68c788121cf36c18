"""Cost of prefill by the step times of an engine."""

import pytest

from justitia_ray.cost import PrefillCost
from justitia_ray.serve.replica.step_times import DecodeTime, PromptTime, fit_prefill_cost

_KV = 100_000
_STEP_S, _TOKEN_S, _CONTEXT_S, _PAIR_S = 0.01, 1e-4, 2e-7, 1e-8


def prompt_times(pair_s: float = _PAIR_S) -> list[PromptTime]:
    """Return the times of prompts: 3 ms each, besides their tokens."""
    return [
        PromptTime(tokens, 0.003 + _STEP_S + _TOKEN_S * tokens + pair_s * tokens**2 / 2)
        for tokens in (1_000, 4_000, 16_000)
    ]


def decode_times() -> list[DecodeTime]:
    return [DecodeTime(held, _STEP_S + _CONTEXT_S * held) for held in (1_000, 40_000)]


def test_fit_finds_the_prefill_cost_of_an_ideal_engine() -> None:
    fitted = fit_prefill_cost(_KV, prompt_times(), decode_times())

    truth = PrefillCost.from_step_times(_KV, _STEP_S, _CONTEXT_S, _TOKEN_S, _PAIR_S)
    assert fitted is not None
    assert fitted.per_token == pytest.approx(truth.per_token)
    assert fitted.per_pair == pytest.approx(truth.per_pair)


def test_attention_cost_within_the_noise_is_omitted() -> None:
    """The effect is 0.5 % of the time of the longest prompt."""
    fitted = fit_prefill_cost(_KV, prompt_times(pair_s=6e-11), decode_times())

    assert fitted is not None
    assert fitted.per_pair == 0
    assert fitted.per_token == pytest.approx(_KV * _TOKEN_S / 0.02, rel=0.01)


def test_attention_cost_needs_more_than_two_prompt_lengths() -> None:
    fitted = fit_prefill_cost(_KV, prompt_times()[:2], decode_times())

    assert fitted is not None
    assert fitted.per_pair == 0


def test_context_length_without_effect_on_decode_time_is_omitted_from_the_fit() -> None:
    fitted = fit_prefill_cost(
        _KV, prompt_times(0), [DecodeTime(1_000, 0.01), DecodeTime(9_000, 0.009)]
    )

    assert fitted is not None
    assert fitted.per_token == pytest.approx(_KV * _TOKEN_S / 0.01)


def test_times_that_decrease_with_prompt_length_give_no_prefill_cost() -> None:
    """The machine was busy during the shorter prompts."""
    falling = [PromptTime(1_000, 0.9), PromptTime(4_000, 0.5), PromptTime(16_000, 0.4)]

    assert fit_prefill_cost(_KV, falling, decode_times()) is None
    assert fit_prefill_cost(_KV, prompt_times(), [DecodeTime(1_000, 0.0)]) is None
