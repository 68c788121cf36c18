"""Admission on a replica with running inferences: both rules, by hand."""

import pytest

from justitia_ray.core.admission import ADMISSIONS
from justitia_ray.core.entities import Inference, KnownReplica, ReplicaCapacity
from justitia_ray.core.footprints import Footprint


def _inference(prompt: int, output: int, choices: int = 1, at_most: int = 10**6) -> Inference:
    return Inference("r", "a", "0", "i0", prompt, output, at_most, choices, 0.0, 1)


def _replica(
    *footprints: tuple[int, int, int], kv: int = 100, block: int = 1, seats: int = 256
) -> KnownReplica:
    replica = KnownReplica("r0", ReplicaCapacity(kv, block, seats), 0.0)
    for number, sizes in enumerate(footprints):
        replica.leases[str(number)] = _footprint(*sizes)
    return replica


def _footprint(context: int, remaining: int, choices: int) -> Footprint:
    return Footprint(-(-remaining // choices), choices, context, "b")


def _fits(name: str, replica: KnownReplica, inference: Inference) -> bool:
    return ADMISSIONS[name].fits(replica, inference, replica.leasable_tokens)


def _start(name: str, replica: KnownReplica, inference: Inference) -> int:
    """Return the number of iterations until the inference fits."""
    forecast = replica.leases.forecast(replica.capacity.block_size)
    return ADMISSIONS[name].start(replica, inference, forecast, replica.leasable_tokens)


def _peak(*footprints: tuple[int, int, int], block: int = 1) -> int:
    """Return the peak of these footprints, the last of which starts now."""
    forecast = _replica(*footprints[:-1]).leases.forecast(block)
    return forecast.peak_with(_footprint(*footprints[-1]))


@pytest.mark.parametrize(
    ("rule", "replica", "fits", "does_not"),
    [
        # With 60 of 100 in use by two: 60 + p + 1 + 2 ≤ 100.
        ("prompt", _replica((20, 50, 1), (40, 50, 1)), (37, 1000), (38, 1)),
        # Blocks of 16, of which each sequence may waste 15: 20 + 15 + p + 15 + 1 + 1 ≤ 100.
        ("prompt", _replica((20, 50, 1), block=16), (48, 1), (49, 1)),
        # Three choices grow by three tokens: 20 + p + 3 + 2 ≤ 100.
        ("prompt", _replica((20, 50, 2)), (75, 3, 3), (76, 3, 3)),
        # Every one must be able to finish: 40 + p + 2·20 ≤ 100.
        ("peak", _replica((40, 20, 1)), (20, 20), (21, 20)),
        # A long one is not at its peak yet when a short one ends: 30 + 40 + 2·5 = 80.
        ("peak", _replica((30, 60, 1)), (40, 5), (40, 60)),
    ],
    ids=["prompt", "blocks", "choices", "peak", "short beside long"],
)
def test_rule_admits_to_the_last_token(
    rule: str, replica: KnownReplica, fits: tuple[int, ...], does_not: tuple[int, ...]
) -> None:
    """A bound one token lower would waste memory, one higher would make the engine preempt."""
    admitted = (_fits(rule, replica, _inference(*sizes)) for sizes in (fits, does_not))

    assert (True, False) == tuple(admitted)


def test_peak_of_choices_and_blocks() -> None:
    """Seven tokens over two choices are 4 each: 10 + 2·3 waste + 2·4 = 24; alone 20 + 3 + 1 = 24.

    Together, after 1 iteration: 10 + 6 + 20 + 3 + 3·1 = 42.
    """
    assert (24, 24, 42) == (
        _peak((10, 7, 2), block=4),
        _peak((20, 1, 1), block=4),
        _peak((10, 7, 2), (20, 1, 1), block=4),
    )


def test_peak_rule_may_start_an_inference_before_a_lease_ends() -> None:
    """50 held, 20 to go, 70 at its end: one of 20 + 20 must have 30 by then, so it starts at 10."""
    replica = _replica((50, 20, 1))

    assert not _fits("peak", replica, _inference(20, 20))
    assert 10 == _start("peak", replica, _inference(20, 20))


@pytest.mark.parametrize("name", ADMISSIONS)
def test_inference_larger_than_the_memory_starts_when_all_have_ended(name: str) -> None:
    replica = _replica((10, 5, 1), (10, 7, 1))

    assert 7 == _start(name, replica, _inference(500, 500))


@pytest.mark.parametrize("name", ADMISSIONS)
def test_inference_waits_for_its_seats(name: str) -> None:
    """Three of four seats are taken, one until 5 and two until 9: two are free at 5."""
    replica = _replica((1, 5, 1), (2, 18, 2), seats=4)

    assert (5, 9) == (
        _start(name, replica, _inference(1, 1, choices=2)),
        _start(name, replica, _inference(1, 1, choices=3)),
    )


def test_peak_rule_waits_for_the_end_of_an_oversized_lease() -> None:
    """A lease that exceeded its prediction leaves no room for others until it ends."""
    replica = _replica((90, 30, 1))

    assert 30 == _start("peak", replica, _inference(1, 1))


@pytest.mark.parametrize("name", ADMISSIONS)
def test_tokens_that_no_lease_explains_take_room(name: str) -> None:
    """An aborted call holds its KV until the engine has freed it."""
    replica = _replica((10, 1, 1))
    fitting = _inference(40, 1)

    assert _fits(name, replica, fitting)

    replica.unaccounted_tokens = 49  # 51 are left, and 52 are needed

    assert not _fits(name, replica, fitting)


@pytest.mark.parametrize(
    ("predicted", "at_most", "made", "left"),
    [
        (10, 100, 0, 10),
        (10, 100, 9, 1),
        (10, 100, 10, 10),  # exceeded: twice the prediction
        (10, 100, 25, 15),  # 40
        (10, 30, 25, 5),  # 40, at most 30
        (10, 30, 30, 0),
        (0, 100, 0, 2),
        (50, 30, 0, 30),
        (0, 0, 0, 0),
    ],
)
def test_expected_length_doubles_until_it_covers_the_tokens_made(
    predicted: int, at_most: int, made: int, left: int
) -> None:
    """A low prediction must not admit too much again and again."""
    assert left == _inference(1, predicted, at_most=at_most).expected_remaining(made)


def test_need_is_the_longest_context_in_whole_blocks() -> None:
    """40 + 20 over 3 choices, each wasting up to 15."""
    assert _inference(40, 20, choices=3).kv_need_tokens(16) == 105


def test_footprint_is_the_held_and_the_expected_tokens() -> None:
    """After 4 of 10 tokens a prompt of 40 holds 44, and 6 are to come, over 3 choices 2 each."""
    footprint = _inference(40, 10, choices=3).expected_footprint(4)

    assert Footprint(2, 3, 44, "a") == footprint
    assert 44 + 3 * 2 == footprint.full_tokens
