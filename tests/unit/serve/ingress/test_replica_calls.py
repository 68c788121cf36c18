"""Calls without a lease: any replica may answer, and a dead one is replaced by the next."""

import asyncio
from collections import deque
from typing import Any, cast

import pytest
from ray.exceptions import ActorDiedError

from justitia_ray.errors import EngineError, NoReplicaAnswers
from justitia_ray.serve.ingress.replica_calls import ReplicaCalls
from tests.harness.simulation.virtual_loop import run_virtually


class PlannedMethod:
    """Fake remote method that raises or returns planned results in order."""

    def __init__(self, results: list[Any]) -> None:
        self.results = deque(results)
        self.calls: list[tuple[Any, ...]] = []

    async def remote(self, *args: Any) -> Any:
        self.calls.append(args)
        result = self.results[0] if len(self.results) == 1 else self.results.popleft()
        if isinstance(result, Exception):
            raise result
        return result


class Handle:
    def __init__(self, *results: Any) -> None:
        self.aside = self.paths = PlannedMethod([*results])


def calls_to(handle: Handle) -> ReplicaCalls:
    return ReplicaCalls(cast(Any, None), cast(Any, handle))


async def test_unscheduled_call_is_answered_by_another_replica_after_a_death() -> None:
    handle = Handle(EngineError("dead"), (200, {}, b"{}"))

    assert (200, {}, b"{}") == await calls_to(handle).unscheduled("/tokenize", b"body")
    assert 2 == len(handle.aside.calls)
    assert ("/tokenize", b"body") == (handle.aside.calls[1][0], handle.aside.calls[1][2])


async def test_call_that_ended_two_replicas_is_not_sent_to_a_third() -> None:
    """A `/tokenize` request that kills engines must not take down all replicas.

    A drain is harmless.
    """
    handle = Handle(EngineError("dead"), ActorDiedError(), ActorDiedError(), (200, {}, b""))

    with pytest.raises(NoReplicaAnswers, match="2 replicas have ended") as refused:
        await calls_to(handle).unscheduled("/tokenize", b"body")
    assert 3 == len(handle.aside.calls)
    assert (refused.value.retry_after_s or 0.0) > 0


async def test_lookup_of_served_paths_continues_although_replicas_die() -> None:
    """A lookup carries no input of the caller, so it cannot have killed the replicas."""
    found = frozenset({"/tokenize"})
    handle = Handle(*[ActorDiedError() for _ in range(4)], found)

    assert found == await calls_to(handle).paths()


def test_caller_gets_a_retryable_error_when_no_replica_answers() -> None:
    async def call_without_replicas() -> None:
        calls = calls_to(Handle(EngineError("dead")))
        with pytest.raises(NoReplicaAnswers, match="no replica has answered within 2 s"):
            await calls.paths()
        with pytest.raises(NoReplicaAnswers, match="no replica has answered within 30 s"):
            await calls.unscheduled("/tokenize", b"")

    run_virtually(call_without_replicas())


def test_retry_time_grows_with_the_length_of_the_outage() -> None:
    """The retry time grows with the outage instead of staying at five seconds."""
    waits = []

    async def measure_outages() -> None:
        handle = Handle(EngineError("dead"))
        calls, loop = calls_to(handle), asyncio.get_running_loop()
        for silent_s in (None, 40.0, 1e4):
            calls._silent_since = None if silent_s is None else loop.time() - silent_s
            with pytest.raises(NoReplicaAnswers) as refused:
                await calls.paths()
            waits.append(refused.value.retry_after_s or 0.0)
        handle.paths.results[0] = frozenset({"/tokenize"})
        await calls.paths()
        assert calls._silent_since is None

    run_virtually(measure_outages())

    assert 2.0 <= waits[0] < 20 < 40.0 <= waits[1] < 60
    assert 120.0 == waits[2]
