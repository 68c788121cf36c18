"""Forecasts of KV use, against a replica that is simulated iteration by iteration."""

from hypothesis import example, given
from hypothesis import strategies as st

from justitia_ray.core.admission import ADMISSIONS
from justitia_ray.core.entities import Inference, KnownReplica, ReplicaCapacity
from justitia_ray.core.footprints import Footprint

_LEASES = st.lists(
    st.builds(
        Footprint,
        st.integers(1, 12),
        st.sampled_from([1, 1, 1, 2, 3]),
        st.integers(1, 25),
        st.just("a"),
    ),
    min_size=1,
    max_size=7,
)
_WANTED = st.builds(
    Footprint, st.integers(1, 12), st.sampled_from([1, 1, 2]), st.integers(1, 40), st.just("b")
)
_BLOCKS = st.sampled_from([1, 4])
_KV = st.integers(10, 140)
_SEATS = st.integers(3, 12)


def _replica_with(leases: list[Footprint], kv_tokens: int, block: int, seats: int) -> KnownReplica:
    replica = KnownReplica("r0", ReplicaCapacity(kv_tokens, block, seats), 0.0)
    for number, lease in enumerate(leases):
        replica.leases[str(number)] = lease
    return replica


def _inference_of(lease: Footprint) -> Inference:
    output = lease.iterations * lease.choices
    return Inference(
        "r", "b", "0", "i0", lease.context_tokens, output, output, lease.choices, 0.0, 1
    )  # fmt: skip


def _leases_after(leases: list[Footprint], iterations: int) -> list[Footprint]:
    """Return the leases that still run after the given number of iterations."""
    return [
        Footprint(end - iterations, choices, context + choices * iterations, owner)
        for end, choices, context, owner in leases
        if end > iterations
    ]


def _held_tokens(leases: list[Footprint], block: int) -> int:
    return sum(lease.context_tokens + lease.choices * (block - 1) for lease in leases)


def _peak_tokens(leases: list[Footprint], block: int) -> int:
    """Return the peak KV tokens; a lease keeps its last token until the next iteration."""
    return max(
        _held_tokens(
            [Footprint(0, c, p + c * now, a) for end, c, p, a in leases if end >= now], block
        )
        for now in range(max(lease.iterations for lease in leases) + 1)
    )


def _fits_literally(
    rule: str, replica: KnownReplica, running: list[Footprint], wanted: Footprint
) -> bool:
    """Return whether a lease fits, by direct computation over all iterations."""
    capacity = replica.capacity
    everybody = [*running, wanted]
    sequences = sum(lease.choices for lease in everybody)
    if sequences > capacity.max_num_seqs:
        return False
    if rule == "prompt":
        return _held_tokens(everybody, capacity.block_size) + sequences <= capacity.kv_tokens
    return _peak_tokens(everybody, capacity.block_size) <= capacity.kv_tokens


@given(st.sampled_from(sorted(ADMISSIONS)), _LEASES, _WANTED, _KV, _BLOCKS, _SEATS)
def test_cached_admission_decisions_equal_recomputed_decisions(
    rule: str, leases: list[Footprint], wanted: Footprint, kv_tokens: int, block: int, seats: int
) -> None:
    """Cached sums decide most cases, and a scan of all leases decides the others."""
    replica = _replica_with(leases, kv_tokens, block, seats)
    expected = _fits_literally(rule, replica, leases, wanted)

    assert expected == ADMISSIONS[rule].fits(
        replica, _inference_of(wanted), replica.leasable_tokens
    )


@given(_LEASES, _LEASES, _LEASES, _WANTED, _KV, _BLOCKS)
def test_memory_forecast_counts_all_leases_in_any_order_of_starts(
    first: list[Footprint],
    later: list[Footprint],
    reported: list[Footprint],
    wanted: Footprint,
    kv_tokens: int,
    block: int,
) -> None:
    """A forecast made before leases started must not be used after that."""
    leases = _replica_with(first, kv_tokens, block, 1).leases
    for number, lease in enumerate([*first, *later]):
        leases[str(number)] = lease
        assert (_peak_tokens([*leases.values(), wanted], block) > kv_tokens) == leases.exceed(
            kv_tokens, wanted, block
        )
    for name, lease in zip([*leases], reported, strict=False):
        if name == "1":
            del leases[name]
        else:
            leases[name] = lease
        leases["last"] = lease
        assert (_peak_tokens([*leases.values(), wanted], block) > kv_tokens) == leases.exceed(
            kv_tokens, wanted, block
        )


@given(_LEASES, _WANTED, _BLOCKS)
def test_memory_use_peaks_at_the_end_of_a_lease(
    leases: list[Footprint], wanted: Footprint, block: int
) -> None:
    """Memory use rises until a lease ends, so only the ends of leases need to be examined."""
    replica = _replica_with(leases, 1, block, 1)
    forecast = replica.leases.forecast(block)

    assert _peak_tokens([*leases, wanted], block) == forecast.peak_with_lease(wanted)


@given(st.sampled_from(sorted(ADMISSIONS)), _LEASES, _WANTED, _KV, _BLOCKS, _SEATS)
@example("peak", [Footprint(20, 1, 50, "a")], Footprint(20, 1, 20, "b"), 100, 1, 9)
def test_forecast_start_is_the_first_time_with_enough_memory(
    rule: str, leases: list[Footprint], wanted: Footprint, kv_tokens: int, block: int, seats: int
) -> None:
    """If the forecast were too late, backfilling would delay the first in line."""
    replica = _replica_with(leases, kv_tokens, block, seats)
    inference = _inference_of(wanted)
    forecast = replica.leases.forecast(block)
    expected = next(
        now
        for now in range(1000)
        if not (running := _leases_after(leases, now))
        or _fits_literally(rule, replica, running, wanted)
    )

    assert expected == ADMISSIONS[rule].start(replica, inference, forecast, replica.leasable_tokens)
