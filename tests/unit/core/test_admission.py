"""Admission on a replica with running inferences: both rules, by hand."""

import pytest

from justitia_ray.core.admission import ADMISSIONS
from justitia_ray.core.entities import Inference, KnownReplica, ReplicaCapacity
from justitia_ray.core.footprints import Footprint


def _create_inference(
    prompt: int, output: int, choices: int = 1, at_most: int = 10**6
) -> Inference:
    return Inference("r", "a", "0", "i0", prompt, output, at_most, choices, 0.0, 1)


def _replica_with_leases(
    *footprints: tuple[int, int, int], kv: int = 100, block: int = 1, seats: int = 256
) -> KnownReplica:
    replica = KnownReplica("r0", ReplicaCapacity(kv, block, seats), 0.0)
    for number, sizes in enumerate(footprints):
        replica.leases[str(number)] = _lease_footprint(*sizes)
    return replica


def _lease_footprint(context: int, remaining: int, choices: int) -> Footprint:
    return Footprint(-(-remaining // choices), choices, context, "b")


def _is_admitted(name: str, replica: KnownReplica, inference: Inference) -> bool:
    return ADMISSIONS[name].fits(replica, inference, replica.leasable_tokens)


def _iterations_until_start(name: str, replica: KnownReplica, inference: Inference) -> int:
    """Return the number of iterations until the inference fits on the replica."""
    forecast = replica.leases.forecast(replica.capacity.block_size)
    return ADMISSIONS[name].start(replica, inference, forecast, replica.leasable_tokens)


def _peak_tokens(*footprints: tuple[int, int, int], block: int = 1) -> int:
    """Return the peak memory of these leases in KV tokens, the last of which starts now."""
    forecast = _replica_with_leases(*footprints[:-1]).leases.forecast(block)
    return forecast.peak_with_lease(_lease_footprint(*footprints[-1]))


@pytest.mark.parametrize(
    ("rule", "replica", "fits", "does_not"),
    [
        ("prompt", _replica_with_leases((20, 50, 1), (40, 50, 1)), (37, 1000), (38, 1)),
        # blocks of 16 tokens waste up to 15 per sequence: 20 + 15 + p + 15 + 1 + 1 ≤ 100
        ("prompt", _replica_with_leases((20, 50, 1), block=16), (48, 1), (49, 1)),
        ("prompt", _replica_with_leases((20, 50, 2)), (75, 3, 3), (76, 3, 3)),
        ("peak", _replica_with_leases((40, 20, 1)), (20, 20), (21, 20)),
        ("peak", _replica_with_leases((30, 60, 1)), (40, 5), (40, 60)),
    ],
    ids=["prompt", "blocks", "choices", "peak", "short beside long"],
)
def test_admission_rule_is_exact_to_one_token(
    rule: str, replica: KnownReplica, fits: tuple[int, ...], does_not: tuple[int, ...]
) -> None:
    """A lower bound would waste memory, and a higher one would make the engine preempt."""
    admitted = (
        _is_admitted(rule, replica, _create_inference(*sizes)) for sizes in (fits, does_not)
    )

    assert (True, False) == tuple(admitted)


def test_predicted_peak_memory_includes_choices_and_wasted_blocks() -> None:
    assert (24, 24, 42) == (
        _peak_tokens((10, 7, 2), block=4),
        _peak_tokens((20, 1, 1), block=4),
        _peak_tokens((10, 7, 2), (20, 1, 1), block=4),
    )


def test_peak_rule_may_start_an_inference_before_a_running_lease_ends() -> None:
    replica = _replica_with_leases((50, 20, 1))

    assert not _is_admitted("peak", replica, _create_inference(20, 20))
    assert 10 == _iterations_until_start("peak", replica, _create_inference(20, 20))


@pytest.mark.parametrize("name", ADMISSIONS)
def test_inference_larger_than_the_memory_waits_until_all_leases_have_ended(name: str) -> None:
    replica = _replica_with_leases((10, 5, 1), (10, 7, 1))

    assert 7 == _iterations_until_start(name, replica, _create_inference(500, 500))


@pytest.mark.parametrize("name", ADMISSIONS)
def test_inference_waits_for_enough_free_seats(name: str) -> None:
    replica = _replica_with_leases((1, 5, 1), (2, 18, 2), seats=4)

    assert (5, 9) == (
        _iterations_until_start(name, replica, _create_inference(1, 1, choices=2)),
        _iterations_until_start(name, replica, _create_inference(1, 1, choices=3)),
    )


def test_peak_rule_waits_for_the_end_of_a_lease_that_fills_the_memory() -> None:
    replica = _replica_with_leases((90, 30, 1))

    assert 30 == _iterations_until_start("peak", replica, _create_inference(1, 1))


@pytest.mark.parametrize("name", ADMISSIONS)
def test_kv_memory_in_use_without_a_lease_counts_as_used(name: str) -> None:
    """An aborted call holds its KV memory until the engine has freed it."""
    replica = _replica_with_leases((10, 1, 1))
    fitting = _create_inference(40, 1)

    assert _is_admitted(name, replica, fitting)

    replica.unaccounted_tokens = 49  # 51 tokens are free and 52 are needed

    assert not _is_admitted(name, replica, fitting)


@pytest.mark.parametrize(
    ("predicted", "at_most", "made", "left"),
    [
        (10, 100, 0, 10),
        (10, 100, 9, 1),
        (10, 100, 10, 10),  # the output is already twice the prediction
        (10, 100, 25, 15),  # 40
        (10, 30, 25, 5),  # 40, at most 30
        (10, 30, 30, 0),
        (0, 100, 0, 2),
        (50, 30, 0, 30),
        (0, 0, 0, 0),
    ],
)
def test_exceeded_output_prediction_doubles_until_it_covers_the_output(
    predicted: int, at_most: int, made: int, left: int
) -> None:
    """A prediction that is too low must not admit too many inferences again and again."""
    assert left == _create_inference(1, predicted, at_most=at_most).expected_remaining(made)


def test_memory_of_an_inference_is_its_longest_context_in_whole_blocks() -> None:
    assert _create_inference(40, 20, choices=3).kv_need_tokens(16) == 105


def test_footprint_of_a_lease_has_its_held_and_expected_tokens() -> None:
    footprint = _create_inference(40, 10, choices=3).expected_footprint(4)

    assert Footprint(2, 3, 44, "a") == footprint
    assert 44 + 3 * 2 == footprint.full_tokens
