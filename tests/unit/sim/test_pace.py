"""When the iterations of a stretch end: closed forms against sums."""

import random

from justitia_ray.sim.pace import Pace
from tests.unit.sim.small_run import engine


def paced(**costs: float) -> Pace:
    """Return the pace of an engine with a base of a second."""
    return Pace(engine(1000, **costs))


def test_each_iteration_grows_by_the_tokens_of_those_before() -> None:
    """Two sequences with 10 tokens, 1/8 s a token: 2.25, 2.5, 2.75 s, the first 0.5 s longer."""
    pace = paced(per_context_token_s=0.125)
    pace.start(100.0, 7, sequences=2, context_tokens=10, prefill_s=0.5)

    assert [100.0, 102.75, 105.25, 108.0] == [pace.at(iteration) for iteration in (7, 8, 9, 10)]


def test_boundaries_are_found_again_from_their_instants() -> None:
    """Else a jump would wake a moment before its boundary, and bring nothing."""
    rng = random.Random("pace")
    for costs in ({}, {"per_sequence_s": 0.013}, {"per_context_token_s": 0.00017}):
        pace = paced(**costs)
        pace.start(rng.uniform(0, 1e5), 3, 5, 321, rng.choice([0.0, 0.37]))
        for iteration in (3, 4, 5, 1000, 123_456):
            at = pace.at(iteration)

            assert iteration == pace.ended_by(at, 3) == pace.first_from(at, 3)
            assert iteration == pace.ended_by((at + pace.at(iteration + 1)) / 2, 3)
            assert iteration + 1 == pace.first_from((at + pace.at(iteration + 1)) / 2, 3)


def test_stretch_goes_on_while_iterations_all_take_as_long() -> None:
    """With a constant cost another batch ends at the same instants, to the last digit."""
    pace = Pace(engine(1000, base_s=0.1))
    pace.start(0.0, 0, 1, 10)
    before = pace.at(30)
    pace.change(pace.at(10), 10, sequences=2, context_tokens=50)

    assert before == pace.at(30)


def test_stretch_begins_anew_when_iterations_change() -> None:
    """A second sequence at 2 s: each takes 1.5 s, then 2 s."""
    pace = paced(per_sequence_s=0.5)
    pace.start(0.0, 0, 1, 10)
    pace.change(3.0, 2, sequences=2, context_tokens=20)

    assert [3.0, 5.0, 7.0] == [pace.at(iteration) for iteration in (2, 3, 4)]


def test_prompt_tokens_count_in_whole_tiles() -> None:
    """A GPU computes 65 tokens in the time of 128; none take no time, not even the base."""
    pace = paced(per_prefill_token_s=0.25, prefill_tile_tokens=64, prefill_base_s=3.0)

    assert [0.0, 19.0, 19.0, 35.0] == [pace.prefill_s(tokens) for tokens in (0, 1, 64, 65)]
