"""Calls from the ingress to one leased replica.

Each runs in a task of its own, in a fresh context: Serve copies its internal request id from the
context into every call made there, and of several calls with one id only the first is sure to be
routed. Nothing links such a task to its caller any more, so it is cancelled explicitly.
"""

import asyncio
import contextvars
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from ray.exceptions import RayActorError, TaskCancelledError
from ray.serve.exceptions import RequestCancelledError
from ray.serve.handle import DeploymentHandle

from justitia_ray.core.actions import Grant
from justitia_ray.errors import EngineError, LeaseError, NoReplicaAnswers
from justitia_ray.observability.log_events import log_event
from justitia_ray.serve.continuation import Part, Resume, unpacked
from justitia_ray.units import ReplicaId, Seconds

logger = logging.getLogger("ray.serve")

T = TypeVar("T")

Answer = tuple[int, dict[str, str], bytes]
Head = tuple[int, dict[str, str]]
"""Status and headers of an answer."""
StreamItem = Head | bytes

LEASE_UNUSABLE = (
    LeaseError,
    EngineError,
    RayActorError,
    TaskCancelledError,
    RequestCancelledError,  # the replica was shut down under the call
)
"""What a call raises that can run again under another lease."""

_QUEUED_CHUNKS = 64
"""A slow reader holds back its stream after so many chunks, not the ingress's memory."""
_HEADERS = {"content-type": "application/json"}
_ANY_REPLICA = ""
"""As a session id: Serve's router chooses."""
_ASIDE_S: Seconds = 30.0
"""How long a call without a lease may wait for a replica."""
_PATHS_S: Seconds = 2.0
"""Longer is not worth the wait: the question saves a wait in the queue, of rare requests."""
_AGAIN_S: Seconds = 0.1


class ReplicaCalls:
    """Sends payloads by lease."""

    def __init__(self, replicas: DeploymentHandle) -> None:
        self._replicas = replicas
        self._handles: dict[tuple[ReplicaId, bool], DeploymentHandle] = {}

    async def unary(self, grant: Grant, epoch: int, path: str, body: bytes) -> Answer:
        """Return the whole answer of a leased call.

        Raises:
            ReplicaGone, UnknownLease, EngineError, RayActorError: If the lease cannot be used.
        """
        response = None

        async def call() -> Answer:
            nonlocal response
            handle = self._handle(grant.replica_id, stream=False)
            response = handle.unary.remote(grant.lease_id, epoch, path, _HEADERS, body)
            answer: Answer = await response
            return answer

        task = in_fresh_context(call())
        try:
            return await asyncio.shield(task)
        finally:
            if not task.done():
                if response is not None:
                    response.cancel()
                await _end(task)

    async def stream(
        self, grant: Grant, epoch: int, path: str, body: bytes, resume: Resume | None = None
    ) -> AsyncGenerator[Head | Part]:
        """Yield (status, headers), then the parts of a leased call.

        Args:
            grant: The lease.
            epoch: The scheduler's.
            path: Path of the OpenAI surface.
            body: JSON request body.
            resume: Where an earlier attempt was cut; the parts go on there.

        Raises:
            CannotContinue: If they cannot.
            ReplicaGone, UnknownLease, EngineError, RayActorError: If the lease cannot be used, or
                the call is cut.
        """
        items: asyncio.Queue[Head | Part | Exception | None] = asyncio.Queue(_QUEUED_CHUNKS)

        async def pump() -> None:
            handle = self._handle(grant.replica_id, stream=True)
            response = handle.stream.remote(grant.lease_id, epoch, path, _HEADERS, body, resume)
            try:
                async for item in response:
                    await items.put(item if len(item) == 2 else unpacked(item))
            except asyncio.CancelledError:
                raise
            except Exception as error:  # whatever it is, the reader gets it in its place
                await items.put(error)
                return
            finally:
                # Dropping the generator would not cancel what runs at the other end.
                response.cancel()
            await items.put(None)

        task = in_fresh_context(pump())
        try:
            while (item := await items.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            if not task.done():
                await _end(task)

    async def aside(self, path: str, body: bytes) -> Answer:
        """Return the answer of any replica to a call that needs no lease.

        Raises:
            NoReplicaAnswers: If none does in time.
        """

        async def call(handle: DeploymentHandle) -> Answer:
            answer: Answer = await handle.aside.remote(path, _HEADERS, body)
            return answer

        return await self._of_any(call, _ASIDE_S)

    async def paths(self) -> frozenset[str]:
        """Return the paths to which the replicas have an answer, as any of them says.

        Raises:
            NoReplicaAnswers: If none does in time.
        """

        async def call(handle: DeploymentHandle) -> frozenset[str]:
            answer: frozenset[str] = await handle.paths.remote()
            return answer

        return await self._of_any(call, _PATHS_S)

    async def _of_any(
        self, call: Callable[[DeploymentHandle], Coroutine[Any, Any, T]], within_s: Seconds
    ) -> T:
        """Return what a replica of Serve's choice answers; one that dies meanwhile is no answer."""
        handle = self._handle(_ANY_REPLICA, stream=False)
        try:
            async with asyncio.timeout(within_s):
                while True:
                    try:
                        return await in_fresh_context(call(handle))
                    except LEASE_UNUSABLE as error:
                        reason = type(error).__name__
                        log_event(logger, logging.WARNING, "replica.unusable", reason=reason)
                        await asyncio.sleep(_AGAIN_S)
        except TimeoutError:
            raise NoReplicaAnswers(f"no replica has answered within {within_s:g} s") from None

    async def examine(self, replica_id: ReplicaId) -> dict[str, Any]:
        """Return what a replica says of itself, as a `ReplicaOwn` in a dict.

        Raises:
            ReplicaGone, RayActorError: If it takes no calls.
        """

        async def call() -> dict[str, Any]:
            handle = self._handle(replica_id, stream=False)
            answer: dict[str, Any] = await handle.examine.remote()
            return answer

        return await in_fresh_context(call())

    def _handle(self, replica_id: ReplicaId, *, stream: bool) -> DeploymentHandle:
        key = (replica_id, stream)
        if key not in self._handles:
            if len(self._handles) > 4096:
                self._handles.clear()  # replicas come and go; a handle is cheap to make
            self._handles[key] = self._replicas.options(session_id=replica_id, stream=stream)
        return self._handles[key]


def in_fresh_context(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run a coroutine in a task that knows nothing of the request it was made in."""
    return asyncio.get_running_loop().create_task(work, context=contextvars.Context())


async def _end(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await task
