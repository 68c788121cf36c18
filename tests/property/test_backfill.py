"""Property tests of backfilling with true predictions on one replica."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Grant
from justitia_ray.core.admission import ADMISSIONS
from justitia_ray.core.entities import ReplicaCapacity
from justitia_ray.core.placement import Placement
from tests.fake_replica import FakeReplica, HeldLease
from tests.property.profiles import examples


@dataclass(frozen=True)
class Call:
    """Inference that is the only one of its application."""

    prompt: int
    output: int
    choices: int = 1
    iteration: int = 0


_CALLS = st.lists(
    st.builds(
        lambda prompt, each, choices, iteration: Call(prompt, each * choices, choices, iteration),
        st.integers(1, 40),
        st.integers(1, 15),
        st.sampled_from([1, 1, 1, 2]),
        st.integers(0, 12),
    ),
    min_size=4,
    max_size=14,
)


def _run_calls(
    calls: Sequence[Call], kv_tokens: int, seats: int, admission: str, backfill: object
) -> tuple[dict[str, int], int, list[str]]:
    """Run the calls to their end, at one token per iteration.

    Returns the start of each call, the largest number of times that one call was passed, and the
    calls that were first in line and did not fit, in order.
    """
    core = SchedulerCore("fcfs", {"backfill": backfill}, admission)
    replica = FakeReplica("r0", ReplicaCapacity(kv_tokens, 1, seats))
    sizes = {f"q{number}": call for number, call in enumerate(calls)}
    starts: dict[str, int] = {}
    blocked: dict[str, None] = {}
    most_passes = iteration = 0
    while len(starts) < len(calls) or replica.held:
        now = iteration * 0.01
        core.handle(ev.PullAnswered("r0"), now)
        for name, call in sizes.items():
            if call.iteration == iteration:
                core.handle(ev.ApplicationArrived(name, "class", "t", 1, 1, "i0"), now)
                size = (call.prompt, call.output, call.output, call.choices)
                core.handle(ev.InferenceSubmitted(name, name, "0", "i0", *size), now)
        replica.start_all()
        for lease_id in list(replica.held):
            owner = core.state.leases[lease_id].request_id
            replica.make(lease_id, sizes[owner].choices)
        for action in core.handle(replica.pull(), now):
            assert isinstance(action, Grant)
            call = sizes[action.request_id]
            replica.held[action.lease_id] = HeldLease(call.prompt, call.output)
            starts[action.request_id] = iteration
        first = core.ledger.queue.first()
        if first is not None:
            blocked[first.application_id] = None
        passes = [inference.passes for inference in core.state.inferences.values()]
        most_passes = max(most_passes, *passes, 0)
        iteration += 1
    return starts, most_passes, list(blocked)


@pytest.mark.slow
@examples(150)
@given(_CALLS, st.integers(40, 120), st.integers(2, 6), st.sampled_from(sorted(ADMISSIONS)))
def test_backfill_does_not_delay_the_first_inference_in_the_queue(
    calls: list[Call], kv_tokens: int, seats: int, admission: str
) -> None:
    """Smaller calls that start before the first in line must not delay it."""
    strict, _, blocked = _run_calls(calls, kv_tokens, seats, admission, 0)
    free, _, _ = _run_calls(calls, kv_tokens, seats, admission, "unlimited")

    # After the second blocked call the runs differ, so later starts are not compared.
    assert all(free[name] <= strict[name] for name in blocked[:1])


@given(_CALLS, st.integers(40, 120), st.integers(1, 3))
def test_backfill_overtakes_no_inference_more_often_than_allowed(
    calls: list[Call], kv_tokens: int, limit: int
) -> None:
    """If predictions are wrong, only the limit on overtaking bounds the delay."""
    _, passes, _ = _run_calls(calls, kv_tokens, 4, "peak", limit)

    assert passes <= limit


_LONG_AND_SHORT = [Call(20, 20), Call(60, 20), Call(10, 40)]
"""Three calls: the second waits for the first, and the third would delay the second."""


def test_unsafe_backfill_that_delays_the_first_inference_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strict, _, blocked = _run_calls(_LONG_AND_SHORT, 100, 4, "peak", "unlimited")
    monkeypatch.setattr(Placement, "_would_delay", lambda *_: False)
    greedy, passes, _ = _run_calls(_LONG_AND_SHORT, 100, 4, "peak", "unlimited")

    assert ["q1"] == blocked[:1]
    assert greedy["q1"] > strict["q1"]
    assert 1 == passes
