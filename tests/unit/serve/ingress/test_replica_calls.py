"""Calls that need no lease: any replica answers, and one that dies meanwhile is none."""

from collections import deque
from typing import Any, cast

import pytest

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


async def test_when_no_replica_answers_the_caller_hears_of_it() -> None:
    """With a status that says: try again later."""
    calls = calls_to(Handle(EngineError("dead")))

    with pytest.raises(NoReplicaAnswers, match="no replica has answered"):
        await calls.paths()
    with pytest.raises(NoReplicaAnswers, match="no replica has answered"):
        await calls.unscheduled("/tokenize", b"")
