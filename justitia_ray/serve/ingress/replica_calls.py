"""Calls from the ingress to replicas.

A call by Serve's handle runs in a separate task with a fresh context: Serve copies its internal
request id from the context into every call, and of several calls with one id only the first is sure
to be routed.
"""

import asyncio
import contextvars
import logging
import math
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from ray.exceptions import ActorDiedError, RayActorError, TaskCancelledError
from ray.serve.exceptions import RequestCancelledError
from ray.serve.handle import DeploymentHandle

from justitia_ray.core.actions import Grant
from justitia_ray.errors import (
    ConnectionLost,
    EngineError,
    LeaseError,
    LeaseSuperseded,
    NoReplicaAnswers,
)
from justitia_ray.observability.log_events import log_event
from justitia_ray.protocol.engine import Answer, ResponseHead
from justitia_ray.protocol.refusals import LONGEST_RETRY_S
from justitia_ray.protocol.stream_parts import Part, Resume, joined
from justitia_ray.serve.ingress.replica_links import ReplicaLinks
from justitia_ray.units import ReplicaId, Seconds, Tokens

logger = logging.getLogger("ray.serve")

T = TypeVar("T")

Head = tuple[int, dict[str, str]]
"""Status and headers of an HTTP answer."""
StreamItem = Head | bytes

LEASE_UNUSABLE = (LeaseError, EngineError, ConnectionLost)
"""Errors of a replica call after which the call can run again under another lease."""

_NO_ANSWER = (
    EngineError,
    RayActorError,
    TaskCancelledError,
    RequestCancelledError,  # The replica was shut down while it ran the call.
)
"""Errors of a replica call after which another replica may answer."""
_HEADERS = {"content-type": "application/json"}
_NO_HEADERS: Mapping[str, str] = {}
_UNSCHEDULED_S: Seconds = 30.0
"""Maximum seconds of a call without a lease, including the wait for a replica."""
_PATHS_S: Seconds = 2.0
"""Maximum seconds of a request for a replica's paths or context length, which calls can do without.
"""
_AGAIN_S: Seconds = 0.1
_MOST_DEATHS = 2
"""Number of replicas that may die during a call without a lease before it is refused."""


class ReplicaCalls:
    """Calls to a named replica by connection, and to any replica by Ray Serve handle."""

    def __init__(self, links: ReplicaLinks, replicas: DeploymentHandle) -> None:
        self.links = links
        self._replicas = replicas
        self._silent_since: Seconds | None = None
        """Time since which no replica has answered a call without a lease; None: the last one was
        answered.
        """

    async def unary(
        self, grant: Grant, path: str, body: bytes, headers: Mapping[str, str] = _NO_HEADERS
    ) -> Answer:
        """Return the whole answer of a leased call; `headers` are passed on to the engine.

        Raises:
            ConnectionLost, UnknownLease, EngineError: If the lease cannot be used.
        """
        link = await self.links.link_to(grant.replica_id)
        answer: Answer = await link.call(
            "unary", grant.lease_id, path, {**_HEADERS, **headers}, body
        )
        return answer

    async def stream(
        self,
        grant: Grant,
        path: str,
        body: bytes,
        resume: Resume | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> AsyncGenerator[Head | Part]:
        """Yield (status, headers) of a leased call's answer, then its parts.

        Args:
            grant: The lease.
            path: Path of the OpenAI surface.
            body: JSON request body.
            resume: Position at which an earlier attempt was cut; the parts continue there.
            headers: Further headers for the engine.

        Raises:
            CannotContinue: If the stream cannot continue at that position.
            ConnectionLost, UnknownLease, EngineError: If the lease cannot be used, or the call is
                cut.
        """
        link = await self.links.link_to(grant.replica_id)
        arguments = (grant.lease_id, path, {**_HEADERS, **headers}, body, resume)
        async with aclosing(link.stream("stream", *arguments)) as batches:
            async for items in batches:
                if isinstance(items[0], ResponseHead):
                    head = items.pop(0)
                    yield head.status, dict(head.headers)
                if items:
                    yield joined(items) if len(items) > 1 else items[0]

    def abandon(self, grant: Grant) -> None:
        """End a leased call with `LeaseSuperseded`, and make its replica stop the inference."""
        error = LeaseSuperseded(grant.lease_id, grant.replica_id)
        self.links.abandon(grant.replica_id, grant.lease_id, error)

    async def unscheduled(self, path: str, body: bytes) -> Answer:
        """Return the answer of any replica to a call that needs no lease.

        Raises:
            NoReplicaAnswers: If no replica answers in time, or two replica processes died under the
                call.
        """
        answer: Answer = await self._call_any_replica(
            _UNSCHEDULED_S, "aside", path, _HEADERS, body, most_deaths=_MOST_DEATHS
        )
        return answer

    async def paths(self) -> frozenset[str]:
        """Return the paths that the engines serve, as reported by any replica.

        Raises:
            NoReplicaAnswers: If no replica answers in time.
        """
        answer: frozenset[str] = await self._call_any_replica(_PATHS_S, "paths")
        return answer

    async def context(self) -> Tokens:
        """Return the context length of the engines in tokens, as reported by any replica.

        Raises:
            NoReplicaAnswers: If no replica answers in time.
        """
        answer: Tokens = await self._call_any_replica(_PATHS_S, "context")
        return answer

    async def cache_block(self) -> Tokens:
        """Return the block size of the engines' prefix caches in tokens; 0 without a cache.

        Raises:
            NoReplicaAnswers: If no replica answers in time.
        """
        answer: Tokens = await self._call_any_replica(_PATHS_S, "cache_block")
        return answer

    async def _call_any_replica(
        self, within_s: Seconds, method: str, *arguments: Any, most_deaths: float = math.inf
    ) -> Any:
        """Return the answer of any replica that Serve chooses; if it dies, call another replica.

        The call itself may have killed the replica, so at most `most_deaths` replicas are tried. A
        drain, a lost node or a kill may also be the cause; Ray reports all of these alike, so the
        caller is asked to repeat the call later.

        While no replica answers, Retry-After is the time since the last answer, because the start
        time of a replica is unknown here.
        """
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        deaths = 0
        try:
            async with asyncio.timeout(within_s):
                while True:
                    try:
                        answer = await call_remote(self._replicas, method, *arguments)
                        self._silent_since = None
                        return answer
                    except _NO_ANSWER as error:
                        reason = type(error).__name__
                        log_event(logger, logging.WARNING, "replica.unusable", reason=reason)
                        deaths += isinstance(error, ActorDiedError)
                        if deaths >= most_deaths:
                            raise NoReplicaAnswers(
                                f"{deaths} replicas have ended while they answered this call",
                                _UNSCHEDULED_S,
                            ) from None
                        await asyncio.sleep(_AGAIN_S)
        except TimeoutError:
            if self._silent_since is None:
                self._silent_since = began_at
            silent_s = loop.time() - self._silent_since
            message = f"no replica has answered within {within_s:g} s"
            raise NoReplicaAnswers(message, min(silent_s, LONGEST_RETRY_S)) from None

    async def inspect(self, replica_id: ReplicaId) -> dict[str, Any]:
        """Return a replica's `ReplicaReport` as a dict.

        Raises:
            ConnectionLost: If the replica cannot be reached.
        """
        link = await self.links.link_to(replica_id)
        answer: dict[str, Any] = await link.call("inspect")
        return answer


def in_fresh_context(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run a coroutine in a task that does not inherit the current request's context."""
    return asyncio.get_running_loop().create_task(work, context=contextvars.Context())


async def call_remote(handle: DeploymentHandle, method: str, *arguments: Any) -> Any:
    """Call a deployment's method without the current request's context; return the answer."""

    async def call() -> Any:
        return await getattr(handle, method).remote(*arguments)

    return await in_fresh_context(call())


async def end_task(task: "asyncio.Future[Any]") -> None:
    """Cancel a task and wait for its end; the task's result or error is ignored."""
    task.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await task
