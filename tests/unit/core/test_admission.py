"""Room on a replica: both rules, by hand."""

import pytest

from justitia_ray.core.admission import (
    ADMISSIONS,
    expected_remaining,
    fits_peak,
    fits_prompt,
    kv_need_tokens,
    peak_kv_tokens,
)
from justitia_ray.core.entities import Footprint, Inference, Replica, ReplicaCapacity


def _inference(prompt: int, output: int, choices: int = 1, at_most: int = 10**6) -> Inference:
    return Inference("r", "a", "0", "i0", prompt, output, at_most, choices, 0.0, 1)


def _replica(
    *footprints: tuple[int, int, int], kv: int = 100, block: int = 1, seats: int = 256
) -> Replica:
    replica = Replica("r0", ReplicaCapacity(kv, block, seats), 0.0)
    for number, footprint in enumerate(footprints):
        replica.leases[str(number)] = Footprint(*footprint)
    return replica


def test_prompt_rule_asks_for_the_prompt_and_a_token_for_everybody() -> None:
    """A replica with 60 of 100 in use by two has room for 60 + p + 1 + 2 ≤ 100, so p ≤ 37."""
    replica = _replica((20, 50, 1), (40, 50, 1))

    assert (
        fits_prompt(replica, _inference(37, 1000)),
        fits_prompt(replica, _inference(38, 1)),
    ) == (True, False)


def test_prompt_rule_counts_whole_blocks() -> None:
    """Blocks of 16: each sequence may waste 15. 20 + 15 + p + 15 + 1 + 1 ≤ 100, so p ≤ 48."""
    replica = _replica((20, 50, 1), block=16)

    assert (
        fits_prompt(replica, _inference(48, 1)),
        fits_prompt(replica, _inference(49, 1)),
    ) == (True, False)


def test_prompt_rule_counts_every_choice() -> None:
    """Three choices grow by three tokens: 20 + p + 3 + 2 ≤ 100, so p ≤ 75."""
    replica = _replica((20, 50, 2))

    assert (
        fits_prompt(replica, _inference(75, 3, choices=3)),
        fits_prompt(replica, _inference(76, 3, choices=3)),
    ) == (True, False)


def test_peak_is_taken_where_sequences_end() -> None:
    """Contexts 10 and 30 with 50 and 5 to go: 40 + 2·5 = 50 at the first end, 10 + 50 = 60 last."""
    assert peak_kv_tokens([Footprint(10, 50, 1), Footprint(30, 5, 1)], 1) == 60


def test_peak_of_choices_and_blocks() -> None:
    """Seven tokens over two choices are 4 each: 10 + 2·3 waste + 2·4 = 24; alone 20 + 3 + 1 = 24.

    Together, after 1 iteration: 10 + 6 + 20 + 3 + 3·1 = 42.
    """
    both = [Footprint(10, 7, 2), Footprint(20, 1, 1)]

    assert (
        peak_kv_tokens(both[:1], 4),
        peak_kv_tokens(both[1:], 4),
        peak_kv_tokens(both, 4),
    ) == (24, 24, 42)


def test_peak_of_nothing_is_zero() -> None:
    """An empty replica holds nothing."""
    assert peak_kv_tokens([], 16) == 0


def test_peak_rule_leaves_room_for_everybody_to_finish() -> None:
    """With 40 held and 20 to go: 40 + p + 2·20 ≤ 100 if the new one makes 20 or more."""
    replica = _replica((40, 20, 1))

    assert (
        fits_peak(replica, _inference(20, 20)),
        fits_peak(replica, _inference(21, 20)),
    ) == (True, False)


def test_peak_rule_lets_a_short_one_in_beside_a_long_one() -> None:
    """The long one is not at its longest yet when the short one ends: 30 + 40 + 2·5 = 80."""
    replica = _replica((30, 60, 1))

    assert (
        fits_peak(replica, _inference(40, 5)),
        fits_peak(replica, _inference(40, 60)),
    ) == (True, False)


@pytest.mark.parametrize("name", ADMISSIONS)
def test_one_that_exceeds_the_memory_runs_alone(name: str) -> None:
    """Otherwise it would wait for ever and everything behind it too."""
    fits = ADMISSIONS[name]
    giant = _inference(500, 500, choices=9)

    assert (
        fits(_replica(seats=4), giant),
        fits(_replica((1, 1, 1), seats=4), giant),
    ) == (True, False)


@pytest.mark.parametrize("name", ADMISSIONS)
def test_sequences_never_exceed_the_seats(name: str) -> None:
    """With max_num_seqs 4 and 2 of them taken, 2 choices fit and 3 do not."""
    fits = ADMISSIONS[name]
    replica = _replica((2, 2, 2), seats=4)

    assert (
        fits(replica, _inference(2, 2, choices=2)),
        fits(replica, _inference(2, 2, choices=3)),
    ) == (True, False)


@pytest.mark.parametrize("name", ADMISSIONS)
def test_tokens_that_no_lease_explains_take_room(name: str) -> None:
    """An aborted call whose KV is not free yet still holds it."""
    fits = ADMISSIONS[name]
    replica = _replica((10, 1, 1))
    fitting = _inference(40, 1)

    assert fits(replica, fitting)

    replica.unaccounted_tokens = 49  # 51 are left, and 52 are wanted

    assert not fits(replica, fitting)


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
