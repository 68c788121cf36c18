"""How long a context is kept through a gap."""

import random

import pytest

from justitia_ray.core.gaps import Gaps

AGENT = ("tenant", "agent")


def gaps_of_lengths(*lengths: float, has_returned: bool = True) -> Gaps:
    gaps = Gaps()
    for length_s in lengths:
        gaps.add(AGENT, length_s, has_returned=has_returned)
    return gaps


@pytest.mark.parametrize("number", [0, 7])
def test_context_is_kept_for_the_break_even_time_while_few_gaps_are_known(number: int) -> None:
    assert 3.0 == gaps_of_lengths(*[0.5] * number).kept_s(AGENT, 3.0)


def test_context_is_kept_over_all_short_gaps() -> None:
    assert 0.9 == gaps_of_lengths(0.5, 0.6, 0.7, 0.8, 0.9, 0.5, 0.6, 0.7).kept_s(AGENT, 3.0)


def test_context_is_not_kept_for_gaps_longer_than_break_even() -> None:
    assert 0.0 == gaps_of_lengths(*[10.0] * 8).kept_s(AGENT, 3.0)


def test_context_is_kept_over_tool_calls_but_not_over_user_pauses() -> None:
    """Seven tools return after a second, three people after two minutes."""
    assert 1.0 == gaps_of_lengths(*[1.0] * 7, *[120.0] * 3).kept_s(AGENT, 20.0)


def test_context_is_not_kept_for_applications_that_never_return() -> None:
    gaps = gaps_of_lengths(*[600.0] * 8, has_returned=False)
    assert 0.0 == gaps.kept_s(AGENT, 20.0)


def test_best_time_to_keep_a_context_has_the_least_mean_cost() -> None:
    rng = random.Random(3)
    for _ in range(50):
        drawn = [(rng.choice([1, 30]) * rng.random(), rng.random() < 0.8) for _ in range(40)]
        break_even = rng.uniform(0.2, 20.0)
        gaps = Gaps()
        for length_s, has_returned in drawn:
            gaps.add(AGENT, length_s, has_returned=has_returned)

        kept_s = gaps.kept_s(AGENT, break_even)
        others = (0.0, *(length_s for length_s, _ in drawn))
        least = min(_cost_of_keeping(drawn, break_even, other_s) for other_s in others)
        assert _cost_of_keeping(drawn, break_even, kept_s) <= least + 1e-9


def _cost_of_keeping(drawn: list[tuple[float, bool]], break_even_s: float, kept_s: float) -> float:
    return sum(min(g, kept_s) + break_even_s * (returned and g > kept_s) for g, returned in drawn)


@pytest.mark.parametrize("other", [("tenant", "chat"), ("other", "agent")])
def test_gap_statistics_are_separate_for_each_class_and_tenant(other: tuple[str, str]) -> None:
    assert 5.0 == gaps_of_lengths(*[1.0] * 8).kept_s(other, 5.0)


def test_gap_statistics_forget_old_gaps_and_old_classes() -> None:
    gaps = gaps_of_lengths(*[1.0] * 200)
    for number in range(1_100):
        gaps.add(("tenant", f"class{number}"), 1.0, has_returned=True)

    assert 1_024 == len(gaps._of)
    assert 5.0 == gaps.kept_s(AGENT, 5.0)
