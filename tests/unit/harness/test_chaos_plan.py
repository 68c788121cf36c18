"""The plan is a function of its seed, and contains everything that was requested."""

from collections import Counter

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS
from tests.harness.chaos.load import CLASSES, call_body, draw_load, draw_long_streams
from tests.harness.chaos.plan import OF_A_FIXED_FLEET, OF_A_SCALED_FLEET, FaultKind, draw_plan


def test_same_seed_gives_the_same_plan_and_load() -> None:
    """A failed run must be repeatable."""
    plans = [draw_plan(seed, tuple(FaultKind), 2, 8) for seed in (7, 7, 8)]
    loads = [draw_load(seed, 200, 1_000, 33) for seed in (1, 1, 2)]

    assert plans[0] == plans[1] != plans[2]
    assert loads[0] == loads[1] != loads[2]


@pytest.mark.parametrize("times", [1, 2, 3])
def test_each_kind_of_fault_is_injected_alone_as_often_as_requested(times: int) -> None:
    """A kind of fault that was never drawn would be untested."""
    plan = draw_plan(3, tuple(FaultKind), times, pairs=5)
    alone = Counter(fault_round.kinds[0] for fault_round in plan if len(fault_round.kinds) == 1)

    assert dict.fromkeys(FaultKind, times) == alone
    assert 5 == sum(len(fault_round.kinds) == 2 for fault_round in plan)


def test_pairs_of_faults_can_overlap_in_time() -> None:
    """For example, Redis cannot be suspended while it is dead."""
    pairs = [set(fault_round.kinds) for fault_round in draw_plan(3, tuple(FaultKind), 0, 40)]

    assert 40 == len({frozenset(pair) for pair in pairs})
    assert {FaultKind.REDIS_KILLED, FaultKind.REDIS_STOPPED} not in pairs
    assert {FaultKind.SCHEDULER_KILLED, FaultKind.REDIS_EMPTIED} not in pairs
    assert not any(FaultKind.REDEPLOYED in pair for pair in pairs)


def test_plan_that_cannot_be_drawn_is_refused() -> None:
    """A shorter plan would look like a complete one."""
    with pytest.raises(ConfigError, match=r"pairs is 2: these kinds make 1 at most"):
        draw_plan(1, (FaultKind.REPLICA_KILLED, FaultKind.INGRESS_KILLED), 1, 2)

    with pytest.raises(ConfigError, match="each may be named once"):
        draw_plan(1, (FaultKind.SCALED, FaultKind.SCALED))


def test_each_kind_of_fault_is_drawn_for_fixed_or_autoscaled_replicas() -> None:
    """A kind of fault that neither run draws would never be tested."""
    assert {*FaultKind} == {*OF_A_FIXED_FLEET, *OF_A_SCALED_FLEET}
    assert FaultKind.LOADING_KILLED not in OF_A_FIXED_FLEET


def test_each_phase_of_a_chaos_load_ends_with_long_streams() -> None:
    """Replicas must be removed while they still serve such a stream."""
    tails = draw_long_streams(1, 4, 3, (250, 600))
    streams = [inference for planned in tails for inference in planned.inferences]

    assert tails == draw_long_streams(1, 4, 3, (250, 600)) != draw_long_streams(2, 4, 3, (250, 600))
    assert [0, 1, 2, 3] == [planned.phase for planned in tails]
    assert 12 == len({stream.name for stream in streams})
    assert all(stream.stream and 250 <= stream.max_tokens <= 600 for stream in streams)


LOAD = draw_load(1, 200, 1_000, 33)
INFERENCES = [inference for planned in LOAD for inference in planned.inferences]


def test_chaos_load_has_the_requested_size_in_every_request_format() -> None:
    """Unary calls, streams and calls over a handle may each break by themselves."""
    assert (200, 1_000) == (len(LOAD), len(INFERENCES))
    assert 1_000 == len({inference.name for inference in INFERENCES})
    assert 1_000 == len({inference.prompt for inference in INFERENCES})
    assert set(range(33)) == {planned.phase for planned in LOAD}
    assert set(CLASSES) == {planned.application_class for planned in LOAD}
    assert {True, False} == {planned.over_handle for planned in LOAD}
    assert {CHAT, COMPLETIONS} == {inference.path for inference in INFERENCES}
    assert {(True, 1), (False, 1), (False, 2)} == {(i.stream, i.choices) for i in INFERENCES}
    assert 3 == len({planned.tenant for planned in LOAD})
    assert 3 == len({planned.weight for planned in LOAD})


def test_request_body_names_its_inference_and_call() -> None:
    """The replicas' journal identifies a run only by its request."""
    streamed = next(inference for inference in INFERENCES if inference.stream)
    body = call_body(streamed, 3)

    assert f"{streamed.name}#3" == body["user"]
    assert {"include_usage": True} == body["stream_options"]
    assert 0 == body["temperature"]


def test_load_that_cannot_be_distributed_is_refused() -> None:
    with pytest.raises(ConfigError, match="3 applications of 9 inferences in 4 phases"):
        draw_load(1, 3, 9, 4)
