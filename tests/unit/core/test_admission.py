"""Room on a replica that runs something: both rules, by hand."""

import pytest

from justitia_ray.core.admission import (
    ADMISSIONS,
    expected_footprint,
    expected_remaining,
    kv_need_tokens,
)
from justitia_ray.core.entities import Inference, Replica, ReplicaCapacity
from justitia_ray.core.footprints import Footprint


def _inference(prompt: int, output: int, choices: int = 1, at_most: int = 10**6) -> Inference:
    return Inference("r", "a", "0", "i0", prompt, output, at_most, choices, 0.0, 1)


def _replica(
    *footprints: tuple[int, int, int], kv: int = 100, block: int = 1, seats: int = 256
) -> Replica:
    replica = Replica("r0", ReplicaCapacity(kv, block, seats), 0.0)
    for number, (context, remaining, choices) in enumerate(footprints):
        replica.leases[str(number)] = Footprint(context, remaining, choices, "b")
    return replica


def _fits(name: str, replica: Replica, inference: Inference) -> bool:
    return ADMISSIONS[name].fits(replica, inference)


def _start(name: str, replica: Replica, inference: Inference) -> int:
    """Return when the inference will fit."""
    forecast = replica.leases.forecast(replica.capacity.block_size)
    return ADMISSIONS[name].start(replica, inference, forecast)


def _peak(*footprints: tuple[int, int, int], block: int = 1) -> int:
    """Return the peak of these, the last of which starts now."""
    forecast = _replica(*footprints[:-1]).leases.forecast(block)
    return forecast.peak_with(Footprint(*footprints[-1], "a").load)


def test_prompt_rule_asks_for_the_prompt_and_a_token_for_everybody() -> None:
    """A replica with 60 of 100 in use by two has room for 60 + p + 1 + 2 ≤ 100, so p ≤ 37."""
    replica = _replica((20, 50, 1), (40, 50, 1))

    assert (
        _fits("prompt", replica, _inference(37, 1000)),
        _fits("prompt", replica, _inference(38, 1)),
    ) == (True, False)


def test_prompt_rule_counts_whole_blocks() -> None:
    """Blocks of 16: each sequence may waste 15. 20 + 15 + p + 15 + 1 + 1 ≤ 100, so p ≤ 48."""
    replica = _replica((20, 50, 1), block=16)

    assert (
        _fits("prompt", replica, _inference(48, 1)),
        _fits("prompt", replica, _inference(49, 1)),
    ) == (True, False)


def test_prompt_rule_counts_every_choice() -> None:
    """Three choices grow by three tokens: 20 + p + 3 + 2 ≤ 100, so p ≤ 75."""
    replica = _replica((20, 50, 2))

    assert (
        _fits("prompt", replica, _inference(75, 3, choices=3)),
        _fits("prompt", replica, _inference(76, 3, choices=3)),
    ) == (True, False)


def test_peak_is_taken_where_sequences_end() -> None:
    """Contexts 10 and 30 with 50 and 5 to go: 40 + 2·5 = 50 at the first end, 10 + 50 = 60 last."""
    assert 60 == _peak((10, 50, 1), (30, 5, 1))
    assert 60 == _peak((30, 5, 1), (10, 50, 1))


def test_peak_of_choices_and_blocks() -> None:
    """Seven tokens over two choices are 4 each: 10 + 2·3 waste + 2·4 = 24; alone 20 + 3 + 1 = 24.

    Together, after 1 iteration: 10 + 6 + 20 + 3 + 3·1 = 42.
    """
    assert (24, 24, 42) == (
        _peak((10, 7, 2), block=4),
        _peak((20, 1, 1), block=4),
        _peak((10, 7, 2), (20, 1, 1), block=4),
    )


def test_peak_rule_leaves_room_for_everybody_to_finish() -> None:
    """With 40 held and 20 to go: 40 + p + 2·20 ≤ 100 if the new one makes 20 or more."""
    replica = _replica((40, 20, 1))

    assert (
        _fits("peak", replica, _inference(20, 20)),
        _fits("peak", replica, _inference(21, 20)),
    ) == (True, False)


def test_peak_rule_lets_a_short_one_in_beside_a_long_one() -> None:
    """The long one is not at its longest yet when the short one ends: 30 + 40 + 2·5 = 80."""
    replica = _replica((30, 60, 1))

    assert (
        _fits("peak", replica, _inference(40, 5)),
        _fits("peak", replica, _inference(40, 60)),
    ) == (True, False)


def test_prompt_rule_waits_for_the_end_of_a_lease() -> None:
    """50 and 20 held, 10 and 30 to go: after 10 the second holds 30, and 30 + p + 2 ≤ 100."""
    replica = _replica((50, 10, 1), (20, 30, 1))

    assert (10, 30) == (
        _start("prompt", replica, _inference(68, 1)),
        _start("prompt", replica, _inference(69, 1)),
    )


def test_peak_rule_may_start_one_before_a_lease_ends() -> None:
    """50 held, 20 to go, 70 at its end: one of 20 + 20 must have 30 by then, so it starts at 10."""
    replica = _replica((50, 20, 1))

    assert not _fits("peak", replica, _inference(20, 20))
    assert 10 == _start("peak", replica, _inference(20, 20))


def test_peak_rule_waits_until_a_growing_neighbour_has_ended() -> None:
    """One of 40 + 2 beside 50 to 70: at 58 of the other it would still fit, and now that has 59.

    It must not hold more than 30 at the end of the other, which it does from its start: 20.
    """
    replica = _replica((59, 11, 1))

    assert 11 == _start("peak", replica, _inference(40, 2))


@pytest.mark.parametrize("name", ADMISSIONS)
def test_one_that_exceeds_the_memory_starts_when_all_have_ended(name: str) -> None:
    """Nothing else would let it start."""
    replica = _replica((10, 5, 1), (10, 7, 1))

    assert 7 == _start(name, replica, _inference(500, 500))


@pytest.mark.parametrize("name", ADMISSIONS)
def test_one_waits_for_its_seats(name: str) -> None:
    """Three of four seats are taken, one until 5 and two until 9: two are free at 5."""
    replica = _replica((1, 5, 1), (2, 18, 2), seats=4)

    assert (5, 9) == (
        _start(name, replica, _inference(1, 1, choices=2)),
        _start(name, replica, _inference(1, 1, choices=3)),
    )


def test_peak_rule_waits_for_the_end_of_what_holds_too_much() -> None:
    """A lease that outgrew its prediction leaves no room for anybody until it ends."""
    replica = _replica((90, 30, 1))

    assert 30 == _start("peak", replica, _inference(1, 1))


@pytest.mark.parametrize("name", ADMISSIONS)
def test_sequences_never_exceed_the_seats(name: str) -> None:
    """With max_num_seqs 4 and 2 of them taken, 2 choices fit and 3 do not."""
    replica = _replica((2, 2, 2), seats=4)

    assert (
        _fits(name, replica, _inference(2, 2, choices=2)),
        _fits(name, replica, _inference(2, 2, choices=3)),
    ) == (True, False)


@pytest.mark.parametrize("name", ADMISSIONS)
def test_tokens_that_no_lease_explains_take_room(name: str) -> None:
    """An aborted call whose KV is not free yet still holds it."""
    replica = _replica((10, 1, 1))
    fitting = _inference(40, 1)

    assert _fits(name, replica, fitting)

    replica.unaccounted_tokens = 49  # 51 are left, and 52 are wanted

    assert not _fits(name, replica, fitting)


@pytest.mark.parametrize(
    ("predicted", "at_most", "made", "left"),
    [
        (10, 100, 0, 10),
        (10, 100, 9, 1),
        (10, 100, 10, 10),  # outlived: twice as long as predicted
        (10, 100, 25, 15),  # 40
        (10, 30, 25, 5),  # 40, at most 30
        (10, 30, 30, 0),
        (0, 100, 0, 2),
        (50, 30, 0, 30),
        (0, 0, 0, 0),
    ],
)
def test_expected_length_doubles_until_it_covers_what_was_made(
    predicted: int, at_most: int, made: int, left: int
) -> None:
    """A short prediction would let in more than fits, over and over."""
    assert left == expected_remaining(_inference(1, predicted, at_most=at_most), made)


def test_need_is_the_longest_context_in_whole_blocks() -> None:
    """40 + 20 over 3 choices, each wasting up to 15."""
    assert kv_need_tokens(_inference(40, 20, choices=3), 16) == 105


def test_footprint_is_what_is_held_and_what_is_expected() -> None:
    """After 4 of 10 tokens a prompt of 40 holds 44, and 6 are to come, over 3 choices 2 each."""
    footprint = expected_footprint(_inference(40, 10, choices=3), 4)

    assert Footprint(44, 6, 3, "a") == footprint
    assert 44 + 3 * 2 == footprint.load.full_tokens
