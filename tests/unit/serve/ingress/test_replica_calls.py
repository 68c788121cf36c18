"""Calls that need no lease: any replica answers, and one that dies meanwhile is none."""

import asyncio
from collections import deque
from typing import Any, cast

import pytest
from ray.exceptions import ActorDiedError

from justitia_ray.errors import EngineError, NoReplicaAnswers
from justitia_ray.serve.ingress import replica_calls
from justitia_ray.serve.ingress.replica_calls import ReplicaCalls


class Method:
    """A remote method that raises or returns what the test has laid out, call by call."""

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
    """A handle of the replicas."""

    def __init__(self, *results: Any) -> None:
        self.aside = self.paths = Method([*results])


def calls_to(handle: Handle) -> ReplicaCalls:
    """Return the calls over a handle."""
    return ReplicaCalls(cast(Any, None), cast(Any, handle))


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a call be tried again at once, and given up soon."""
    monkeypatch.setattr(replica_calls, "_AGAIN_S", 0.0)
    monkeypatch.setattr(replica_calls, "_UNSCHEDULED_S", 0.05)
    monkeypatch.setattr(replica_calls, "_PATHS_S", 0.05)


async def test_replica_that_dies_is_asked_in_vain_and_the_next_answers() -> None:
    """Serve chooses."""
    handle = Handle(EngineError("dead"), (200, {}, b"{}"))

    assert (200, {}, b"{}") == await calls_to(handle).unscheduled("/tokenize", b"body")
    assert 2 == len(handle.aside.calls)
    assert ("/tokenize", b"body") == (handle.aside.calls[1][0], handle.aside.calls[1][2])


async def test_call_under_which_two_replicas_have_ended_asks_no_third_one() -> None:
    """One text for `/tokenize` would take all of them; a drain is no fault of the caller."""
    handle = Handle(EngineError("dead"), ActorDiedError(), ActorDiedError(), (200, {}, b""))

    with pytest.raises(NoReplicaAnswers, match="2 replicas have ended") as refused:
        await calls_to(handle).unscheduled("/tokenize", b"body")
    assert 3 == len(handle.aside.calls)
    assert (refused.value.retry_after_s or 0.0) > 0


async def test_lookup_goes_on_while_replicas_end_under_it() -> None:
    """It sends nothing of a caller's, whose own call has run nowhere."""
    found = frozenset({"/tokenize"})
    handle = Handle(*[ActorDiedError() for _ in range(4)], found)

    assert found == await calls_to(handle).paths()


async def test_when_no_replica_answers_the_caller_hears_of_it() -> None:
    """With a status that says: try again later."""
    calls = calls_to(Handle(EngineError("dead")))

    with pytest.raises(NoReplicaAnswers, match="no replica has answered"):
        await calls.paths()
    with pytest.raises(NoReplicaAnswers, match="no replica has answered"):
        await calls.unscheduled("/tokenize", b"")


async def test_caller_comes_back_after_as_long_again_as_no_replica_has_answered() -> None:
    """Not every five seconds for an hour; a replica that answers ends the silence."""
    handle = Handle(EngineError("dead"))
    calls, loop = calls_to(handle), asyncio.get_running_loop()
    waits = []
    for silent_s in (None, 40.0, 1e4):
        calls._silent_since = None if silent_s is None else loop.time() - silent_s
        with pytest.raises(NoReplicaAnswers) as refused:
            await calls.paths()
        waits.append(refused.value.retry_after_s or 0.0)
    handle.paths.results[0] = frozenset({"/tokenize"})
    await calls.paths()

    assert 0.05 <= waits[0] < 20 < 40.0 <= waits[1] < 60
    assert 120.0 == waits[2]
    assert calls._silent_since is None
