"""The cost of an inference, computed by hand."""

import pytest

from justitia_ray.cost import choices_kv_token_time, kv_token_time


@pytest.mark.parametrize(
    ("prompt", "output", "cost"),
    [
        (0, 0, 0),
        (10, 0, 0),  # No output tokens, so no memory is used over an iteration.
        (10, 1, 11),
        (10, 3, 11 + 12 + 13),
        (0, 4, 1 + 2 + 3 + 4),
        (1000, 500, 500_000 + 125_250),
    ],
)
def test_cost_is_kv_memory_summed_over_decode_iterations(
    prompt: int, output: int, cost: int
) -> None:
    """The memory of each iteration is the prompt and the tokens so far, so the cost is Σ(p + i).

    The difference of two progress reports is therefore the service between them.
    """
    assert cost == kv_token_time(prompt, output)
    assert cost == sum(prompt + i for i in range(1, output + 1))


@pytest.mark.parametrize(("prompt", "output"), [(-1, 5), (5, -1)])
def test_negative_token_count_is_refused(prompt: int, output: int) -> None:
    with pytest.raises(ValueError, match=f"p={prompt}, d={output}"):
        kv_token_time(prompt, output)


def test_cost_of_integer_token_counts_is_exact() -> None:
    """Large sums must not round, because the fair share compares them with the charges."""
    assert 10**9 * 10**9 + 10**9 * (10**9 + 1) // 2 == kv_token_time(10**9, 10**9)


def test_cost_of_several_choices_divides_the_tokens_evenly() -> None:
    """Three sequences of 20 prompt tokens with 3, 2 and 2 tokens."""
    expected = kv_token_time(20, 3) + 2 * kv_token_time(20, 2)

    assert expected == choices_kv_token_time(60, 7, 3)
    assert kv_token_time(60, 7) == choices_kv_token_time(60, 7, 1)


def test_cost_of_several_choices_never_falls_with_more_tokens() -> None:
    """The cost is also used as a meter, token by token, which must never decrease."""
    meter = [choices_kv_token_time(10, g, 3) for g in range(30)]

    assert sorted(meter) == meter
    assert len(set(meter)) == len(meter)
