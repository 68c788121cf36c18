"""Room now and later, against a replica that is walked through iteration by iteration."""

from hypothesis import example, given
from hypothesis import strategies as st

from justitia_ray.core.admission import ADMISSIONS, expected_footprint
from justitia_ray.core.entities import Inference, Replica, ReplicaCapacity
from justitia_ray.core.footprints import Footprint
from justitia_ray.core.forecast import Load

_LOADS = st.lists(
    st.builds(Load, st.integers(1, 12), st.sampled_from([1, 1, 1, 2, 3]), st.integers(1, 25)),
    min_size=1,
    max_size=7,
)
_WANTED = st.builds(Load, st.integers(1, 12), st.sampled_from([1, 1, 2]), st.integers(1, 40))
_BLOCKS = st.sampled_from([1, 4])
_KV = st.integers(10, 140)
_SEATS = st.integers(3, 12)


def _replica(loads: list[Load], kv_tokens: int, block: int, seats: int) -> Replica:
    replica = Replica("r0", ReplicaCapacity(kv_tokens, block, seats), 0.0)
    for number, load in enumerate(loads):
        remaining = load.iterations * load.choices
        replica.leases[str(number)] = Footprint(load.context_tokens, remaining, load.choices, "a")
    return replica


def _inference(load: Load) -> Inference:
    output = load.iterations * load.choices
    return Inference(
        "r", "b", "0", "i0", load.context_tokens, output, output, load.choices, 0.0, 1
    )  # fmt: skip


def _after(loads: list[Load], iterations: int) -> list[Load]:
    """Return what still runs then."""
    return [
        Load(end - iterations, choices, context + choices * iterations)
        for end, choices, context in loads
        if end > iterations
    ]


def _held(loads: list[Load], block: int) -> int:
    return sum(context + choices * (block - 1) for _, choices, context in loads)


def _peak(loads: list[Load], block: int) -> int:
    """Return the most that is held, a lease holding its last token until the next iteration."""
    ends = [end for end, _, _ in loads]
    return max(
        _held([Load(0, c, p + c * now) for end, c, p in loads if end >= now], block)
        for now in range(max(ends) + 1)
    )


def _fits(rule: str, replica: Replica, running: list[Load], wanted: Load) -> bool:
    """Return what the rule says, by its words."""
    capacity = replica.capacity
    everybody = [*running, wanted]
    sequences = sum(load.choices for load in everybody)
    if sequences > capacity.max_num_seqs:
        return False
    if rule == "prompt":
        return _held(everybody, capacity.block_size) + sequences <= capacity.kv_tokens
    return _peak(everybody, capacity.block_size) <= capacity.kv_tokens


@given(st.sampled_from(sorted(ADMISSIONS)), _LOADS, _WANTED, _KV, _BLOCKS, _SEATS)
def test_fits_is_what_the_rule_says(
    rule: str, loads: list[Load], wanted: Load, kv_tokens: int, block: int, seats: int
) -> None:
    """The sums that decide most cases, and the look at the ends, must decide them alike."""
    replica = _replica(loads, kv_tokens, block, seats)
    expected = _fits(rule, replica, loads, wanted)

    assert expected == ADMISSIONS[rule].fits(replica, _inference(wanted))


@given(_LOADS, _WANTED, _BLOCKS)
def test_peak_is_the_most_of_all_moments(loads: list[Load], wanted: Load, block: int) -> None:
    """Only ends are looked at, and the peak must be at one."""
    replica = _replica(loads, 1, block, 1)
    wanted_footprint = expected_footprint(_inference(wanted))
    forecast = replica.leases.forecast(block)

    assert _peak([*loads, wanted], block) == forecast.peak_with(wanted_footprint.load)


@given(st.sampled_from(sorted(ADMISSIONS)), _LOADS, _WANTED, _KV, _BLOCKS, _SEATS)
@example("peak", [Load(20, 1, 50)], Load(20, 1, 20), 100, 1, 9)
def test_start_is_the_first_moment_that_fits(
    rule: str, loads: list[Load], wanted: Load, kv_tokens: int, block: int, seats: int
) -> None:
    """Backfilling relies on it: too late a start would let others delay the first in line."""
    replica = _replica(loads, kv_tokens, block, seats)
    inference = _inference(wanted)
    forecast = replica.leases.forecast(block)
    expected = next(
        now
        for now in range(1000)
        if not (running := _after(loads, now)) or _fits(rule, replica, running, wanted)
    )

    assert expected == ADMISSIONS[rule].start(replica, inference, forecast)
