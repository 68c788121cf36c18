"""Calls from the ingress to replicas.

A call by Serve's handle runs in a task of its own, in a fresh context: Serve copies its internal
request id from the context into every call made there, and of several calls with one id only the
first is sure to be routed.
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
from justitia_ray.protocol.engine import ResponseHead
from justitia_ray.protocol.refusals import LONGEST_RETRY_S
from justitia_ray.protocol.stream_parts import Part, Resume, joined
from justitia_ray.serve.ingress.replica_links import ReplicaLinks
from justitia_ray.units import ReplicaId, Seconds, Tokens

logger = logging.getLogger("ray.serve")

T = TypeVar("T")

Answer = tuple[int, dict[str, str], bytes]
Head = tuple[int, dict[str, str]]
"""Status and headers of an answer."""
StreamItem = Head | bytes

LEASE_UNUSABLE = (LeaseError, EngineError, ConnectionLost)
"""Errors of a call that can run again under another lease."""

_NO_ANSWER = (
    EngineError,
    RayActorError,
    TaskCancelledError,
    RequestCancelledError,  # the replica was shut down under the call
)
"""Errors of a call that another replica may answer."""
_HEADERS = {"content-type": "application/json"}
_NO_HEADERS: Mapping[str, str] = {}
_UNSCHEDULED_S: Seconds = 30.0
"""Time that a call without a lease may wait for a replica."""
_PATHS_S: Seconds = 2.0
"""Time that the lookup of paths may take: it saves rare requests a wait in the queue."""
_AGAIN_S: Seconds = 0.1
_MOST_DEATHS = 2
"""Replicas whose processes end under a caller's call without a lease, before it is refused."""


class ReplicaCalls:
    """Calls to replicas: to the leased one and to a named one by connection, to any by Serve."""

    def __init__(self, links: ReplicaLinks, replicas: DeploymentHandle) -> None:
        """Prepare.

        Args:
            links: Connections to the replicas.
            replicas: Handle of their deployment.
        """
        self.links = links
        self._replicas = replicas
        self._silent_since: Seconds | None = None
        """Since when no replica has answered a call without a lease; None: the last one did."""

    async def unary(
        self, grant: Grant, path: str, body: bytes, headers: Mapping[str, str] = _NO_HEADERS
    ) -> Answer:
        """Return the whole answer of a leased call; `headers` are further ones for the engine.

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
        """Yield (status, headers), then the parts of a leased call.

        Args:
            grant: The lease.
            path: Path of the OpenAI surface.
            body: JSON request body.
            resume: The place where an earlier attempt was cut; the parts go on there.
            headers: Further headers for the engine.

        Raises:
            CannotContinue: If the stream cannot go on there.
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
        """Let a leased call fail with `LeaseSuperseded`, and the replica stop it."""
        error = LeaseSuperseded(grant.lease_id, grant.replica_id)
        self.links.abandon(grant.replica_id, grant.lease_id, error)

    async def unscheduled(self, path: str, body: bytes) -> Answer:
        """Return any replica's answer to a call that needs no lease.

        Raises:
            NoReplicaAnswers: If no replica answers in time, or the processes of two have ended
                under it.
        """
        answer: Answer = await self._ask_any(
            _UNSCHEDULED_S, "aside", path, _HEADERS, body, most_deaths=_MOST_DEATHS
        )
        return answer

    async def paths(self) -> frozenset[str]:
        """Return the paths that the replicas answer, as any of them says.

        Raises:
            NoReplicaAnswers: If no replica answers in time.
        """
        answer: frozenset[str] = await self._ask_any(_PATHS_S, "paths")
        return answer

    async def context(self) -> Tokens:
        """Return the context of the replicas' engines, as any of them says.

        Raises:
            NoReplicaAnswers: If no replica answers in time.
        """
        answer: Tokens = await self._ask_any(_PATHS_S, "context")
        return answer

    async def cache_block(self) -> Tokens:
        """Return the tokens of a block of the engines' prefix caches; 0 if they have none.

        Raises:
            NoReplicaAnswers: If no replica answers in time.
        """
        answer: Tokens = await self._ask_any(_PATHS_S, "cache_block")
        return answer

    async def _ask_any(
        self, within_s: Seconds, method: str, *arguments: Any, most_deaths: float = math.inf
    ) -> Any:
        """Return the answer of a replica of Serve's choice; one that dies meanwhile is replaced.

        What a caller has sent may be the reason, so that no more replicas are asked than
        `most_deaths`. It may as well be a drain, a lost node or a kill: Ray tells an ingress of all
        of them in the same words, so that the caller is to come back, later.

        While none answers, a caller is to come back after as long again as that has lasted: how
        long a replica takes to start cannot be known here.
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
            ConnectionLost: If it cannot be reached.
        """
        link = await self.links.link_to(replica_id)
        answer: dict[str, Any] = await link.call("inspect")
        return answer


def in_fresh_context(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run a coroutine in a task without the context of the request it was made in."""
    return asyncio.get_running_loop().create_task(work, context=contextvars.Context())


async def call_remote(handle: DeploymentHandle, method: str, *arguments: Any) -> Any:
    """Return the answer of a deployment's method, called in a fresh context."""

    async def call() -> Any:
        return await getattr(handle, method).remote(*arguments)

    return await in_fresh_context(call())


async def end_task(task: "asyncio.Future[Any]") -> None:
    """Cancel a task and wait for its end, whatever that is."""
    task.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await task
