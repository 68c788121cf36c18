"""One stream over as many leases as it takes: cut on one replica, it goes on on another."""

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from ray.exceptions import RayActorError, RayTaskError

from justitia_ray.config import IngressSection
from justitia_ray.core.actions import Grant
from justitia_ray.errors import CannotContinue, EngineError, JustitiaError, ReplicaGone
from justitia_ray.observability.log_events import log_event
from justitia_ray.protocol.error_forms import error_event
from justitia_ray.protocol.responses_body import RESPONSES
from justitia_ray.serve.answer_headers import served_by
from justitia_ray.serve.continuation import Delivered, Part
from justitia_ray.serve.dispatcher import Dispatcher
from justitia_ray.serve.keepalive import kept_alive
from justitia_ray.serve.outstanding import Ticket
from justitia_ray.serve.replica_calls import LEASE_UNUSABLE, ReplicaCalls, StreamItem

logger = logging.getLogger("ray.serve")


class StreamAttempts:
    """Runs streams of which the inference has been submitted."""

    def __init__(
        self, dispatcher: Dispatcher, calls: ReplicaCalls, section: IngressSection
    ) -> None:
        self._dispatcher = dispatcher
        self._calls = calls
        self._attempts = section.attempts
        self._keepalive_s = section.keepalive_s

    async def run(self, ticket: Ticket, path: str, payload: bytes) -> AsyncGenerator[StreamItem]:
        """Yield (status, headers), then chunks; cancel the inference if it is closed early.

        A stream that is cut goes on where it was cut, with comments while it waits. One that
        cannot, or was cut too often, ends with an error event that says so.

        Raises:
            JustitiaError: If it cannot run, before anything was yielded.
        """
        try:
            async with aclosing(self._run(ticket, path, payload)) as items:
                async for item in items:
                    if item is None:
                        break
                    yield item
                else:
                    return
                async with aclosing(kept_alive(items, self._keepalive_s)) as rest:
                    async for item in rest:
                        if item is not None:
                            yield item
        finally:
            self._dispatcher.cancel(ticket)  # nothing, if it has ended

    async def _run(
        self, ticket: Ticket, path: str, payload: bytes
    ) -> AsyncGenerator[StreamItem | None]:
        """Yield the items of a stream, and None where it was cut and has to wait again."""
        delivered = Delivered(names=path == RESPONSES)
        try:
            for _ in range(self._attempts):
                grant = await self._dispatcher.next_grant(ticket)
                try:
                    async with aclosing(self._run_once(grant, path, payload, delivered)) as items:
                        async for item in items:
                            yield item
                except CannotContinue:
                    raise
                except LEASE_UNUSABLE as error:
                    delivered.resume()  # raises if it cannot go on
                    await give_back(self._dispatcher, ticket, grant, error)
                    if delivered.status is not None:
                        yield None
                else:
                    self._dispatcher.end(ticket)
                    return
            raise EngineError(f"gave up after {self._attempts} attempts")
        except JustitiaError as error:
            if delivered.status is None:
                raise
            yield error_event(path, _told(error), delivered.chunks)

    async def _run_once(
        self, grant: Grant, path: str, payload: bytes, delivered: Delivered
    ) -> AsyncGenerator[StreamItem]:
        """Yield what one replica has to add to a stream."""
        resume, epoch = delivered.resume(), self._dispatcher.epoch
        async with aclosing(self._calls.stream(grant, epoch, path, payload, resume)) as items:
            async for item in items:
                if isinstance(item, Part):
                    delivered.add(item)
                    yield item.body
                elif delivered.status is None:
                    delivered.status, head = item
                    yield item[0], served_by(head, grant)
                elif delivered.status != item[0]:
                    raise CannotContinue(f"the next replica answered with status {item[0]}")


async def give_back(dispatcher: Dispatcher, ticket: Ticket, grant: Grant, error: Exception) -> None:
    """Return a lease that could not be used, or not to its end; the inference waits again."""
    log_event(
        logger,
        logging.WARNING,
        "lease.unusable",
        lease_id=grant.lease_id,
        replica_id=grant.replica_id,
        reason=type(error).__name__,
    )
    gone = isinstance(error, ReplicaGone | RayActorError)
    await dispatcher.refuse(ticket, grant, replica_gone=gone)


def _told(error: JustitiaError) -> JustitiaError:
    """Return what the caller is told of why a stream was cut and does not go on."""
    cause: JustitiaError = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, EngineError):
        cause = EngineError(
            "the replica was lost in the middle of this stream, which cannot be continued: "
            f"{cause}; what came before is incomplete"
        )
    return cause
