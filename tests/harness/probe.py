"""Calls to a chosen process of a deployment, although Serve chooses the process of each call."""

import asyncio
import time
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from justitia_ray.errors import NoReplicaAnswers
from justitia_ray.units import ReplicaId, Seconds

_WITHIN_S: Seconds = 60.0
_AGAIN_S: Seconds = 0.02


class Probed:
    """Base of deployment classes whose processes tests can call individually by `probe`."""

    async def probe(
        self, target: ReplicaId, method: str, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> list[Any]:
        """Call a method in the process with the given id; return [] in other processes."""
        if target != serve.get_replica_context().replica_id.unique_id:
            return []
        answer = getattr(self, method)(*arguments, **named)
        return [await answer if asyncio.iscoroutine(answer) else answer]


async def probe(
    handle: DeploymentHandle,
    target: ReplicaId,
    method: str,
    *arguments: Any,
    within_s: Seconds = _WITHIN_S,
    **named: Any,
) -> Any:
    """Call a deployment until the target process answers, and return its method's answer.

    Args:
        handle: Of a deployment whose class is `Probed`.
        target: Serve's name of the process.
        method: Any method of its class, also one that Serve does not know.
        arguments: Of the method.
        within_s: How long to ask.
        named: More arguments of the method.

    Raises:
        NoReplicaAnswers: If that process has not answered in time: it may be gone.
    """
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if answer := await handle.probe.remote(target, method, arguments, named):
            return answer[0]
        await asyncio.sleep(_AGAIN_S)
    raise NoReplicaAnswers(f"{target} has not answered within {within_s:g} s")
