"""Run one inference: submit it, wait for its lease, call the leased replica, retry on failure."""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial

from justitia_ray.application_key import split_key
from justitia_ray.config import IngressSection
from justitia_ray.core.actions import Grant
from justitia_ray.core.events import NackReason
from justitia_ray.core.tenants import DEFAULT_TIER
from justitia_ray.errors import (
    AttemptsExhausted,
    CannotContinue,
    ConnectionLost,
    EngineError,
    EngineFailed,
    JustitiaError,
    KillsEngines,
    LeaseSuperseded,
    StreamRefused,
    StreamUnfinished,
)
from justitia_ray.observability.call_traces import CallFacts, CallTrace, CallTracer
from justitia_ray.observability.log_events import log_event
from justitia_ray.observability.part_metrics import IngressMetrics
from justitia_ray.observability.trace_context import TRACEPARENT
from justitia_ray.protocol.endpoints import (
    APPLICATION_HEADER,
    POSITION_HEADER,
    REPLICA_HEADER,
    TENANT_HEADER,
    TIER_HEADER,
    WAITED_HEADER,
)
from justitia_ray.protocol.engine import Answer
from justitia_ray.protocol.generation_bodies import RESPONSES
from justitia_ray.protocol.inference_body import InferenceBody
from justitia_ray.protocol.stream_ends import StreamEnd
from justitia_ray.protocol.stream_parts import Delivered, Part, Resume
from justitia_ray.serve.ingress.pending_inferences import PendingInference
from justitia_ray.serve.ingress.queue_client import QueueClient
from justitia_ray.serve.ingress.replica_calls import LEASE_UNUSABLE, ReplicaCalls, StreamItem
from justitia_ray.serve.ingress.request_context import RequestContext
from justitia_ray.serve.ingress.submission import Submitter
from justitia_ray.units import ApplicationId

logger = logging.getLogger("ray.serve")


def served_by(head: Mapping[str, str], grant: Grant, inference: PendingInference) -> dict[str, str]:
    """Return an answer's headers, with its application, its replica and its time in the queue.

    Args:
        head: Headers of the engine's answer.
        grant: Lease under which the answer was generated; the first lease, if a stream was cut.
        inference: The inference; a caller that named no application learns its id here.
    """
    application, position = inference.application, inference.position
    return {
        **head,
        APPLICATION_HEADER: split_key(inference.item.application_id)[1],
        TIER_HEADER: DEFAULT_TIER if application is None else application.tier,
        REPLICA_HEADER: grant.replica_id,
        WAITED_HEADER: f"{grant.waited_s:.4f}",
        **({} if position is None else {POSITION_HEADER: str(position)}),
    }


class Attempts:
    """Runs inferences of one model, each with a limited number of attempts under new leases.

    Args:
        submitter: Submits the inferences.
        queue: Receives the leases.
        calls: Calls to the leased replicas.
        section: Settings: the number of leases under which one inference is tried.
        metrics: Counts failed calls; None: they are not counted.
        tracer: Traces calls; None: calls are not traced.
    """

    def __init__(
        self,
        submitter: Submitter,
        queue: QueueClient,
        calls: ReplicaCalls,
        section: IngressSection,
        metrics: IngressMetrics | None = None,
        tracer: CallTracer | None = None,
    ) -> None:
        self._submitter = submitter
        self._queue = queue
        self._calls = calls
        self._most_attempts = section.attempts
        self._metrics = metrics
        self._tracer = tracer

    async def answer(self, path: str, context: RequestContext, body: InferenceBody) -> Answer:
        """Run an inference and return its answer; a cancelled call cancels the inference.

        Raises:
            JustitiaError: If the inference cannot run; `protocol.errors` maps it to an HTTP answer.
        """
        trace = None if self._tracer is None else self._tracer.begin(_call_facts(path, context))
        inference: PendingInference | None = None
        try:
            inference = await self._submitter.submit_inference(context, body)
            if trace is not None:
                trace.note_submitted(inference.item.application_id)
            for _ in range(self._most_attempts):
                grant = await self._queue.next_grant(inference)
                if trace is not None:
                    trace.note_granted(grant)
                inference.on_grant = partial(self._replace_attempt, grant, None)
                try:
                    headers = _replica_headers(trace, inference)
                    answer = await self._calls.unary(grant, path, body.payload, headers)
                except LEASE_UNUSABLE as error:
                    if trace is not None:
                        trace.note_lost(error)
                    await self._nack_lease(inference, grant, error)
                except StreamRefused:
                    self._queue.note_answered(inference)
                    raise
                else:
                    self._queue.note_answered(inference)
                    status, head, whole = answer
                    if trace is not None:
                        trace.end(status)
                    return status, served_by(head, grant, inference), whole
            raise AttemptsExhausted(f"gave up after {self._most_attempts} attempts")
        except BaseException as error:
            if inference is not None:
                self._queue.cancel_inference(inference)
            if trace is not None:
                trace.end()
            if self._metrics is not None and isinstance(error, JustitiaError):
                self._metrics.record_drop(error)
            raise

    async def stream(
        self,
        path: str,
        context: RequestContext,
        body: InferenceBody,
        on_submitted: Callable[[ApplicationId], None] = lambda application_id: None,
    ) -> AsyncGenerator[StreamItem]:
        """Run an inference: yield (status, headers), then the body's bytes as they arrive.

        If the generator is closed early, the inference is cancelled. A stream that is cut continues
        at the cut under the next lease; an empty chunk means that the stream waits for that lease.
        If the body does not request a stream, the answer is yielded whole.

        Args:
            path: Path of the endpoint.
            context: Context of the call.
            body: Body of the call.
            on_submitted: Called with the application's id once a stream waits in the queue.

        Raises:
            EngineFailed: If the engine ended the stream with an error, which is in the last chunk.
            JustitiaError: If the inference cannot run, or the stream cannot continue, was cut too
                often or has no end; the chunks yielded before are then an incomplete answer.
        """
        if not body.stream:
            status, head, whole = await self.answer(path, context, body)
            yield status, head
            yield whole
            return
        trace = None if self._tracer is None else self._tracer.begin(_call_facts(path, context))
        inference: PendingInference | None = None
        delivered, end = Delivered(names=path == RESPONSES), StreamEnd(path)
        resume: Resume | None = None
        try:
            inference = await self._submitter.submit_inference(context, body)
            on_submitted(inference.item.application_id)
            if trace is not None:
                trace.note_submitted(inference.item.application_id)
            for _ in range(self._most_attempts):
                if delivered.status is not None:
                    yield b""
                grant = await self._queue.next_grant(inference)
                if trace is not None:
                    trace.note_granted(grant)
                inference.on_grant = partial(self._replace_attempt, grant, delivered)
                try:
                    headers = _replica_headers(trace, inference)
                    parts = self._calls.stream(grant, path, body.payload, resume, headers)
                    async with aclosing(parts):
                        async for item in parts:
                            if isinstance(item, Part):
                                delivered.add_part(item)
                                end.note_chunk(item.body)
                                yield item.body
                            elif delivered.status is None:
                                delivered.status, head = item
                                yield item[0], served_by(head, grant, inference)
                            elif delivered.status != item[0]:
                                raise CannotContinue(
                                    f"the next replica answered with status {item[0]}"
                                )
                except CannotContinue:
                    raise
                except LEASE_UNUSABLE as error:
                    resume = delivered.resume()  # This raises if the stream cannot continue.
                    if trace is not None:
                        trace.note_lost(error)
                    await self._nack_lease(inference, grant, error)
                except StreamRefused:
                    self._queue.note_answered(inference)
                    raise
                else:
                    self._queue.note_answered(inference)
                    if delivered.status is not None and delivered.status < 400:
                        end.check()
                    if trace is not None:
                        trace.end(delivered.status)
                    return
            raise AttemptsExhausted(f"gave up after {self._most_attempts} attempts")
        except BaseException as error:
            if inference is not None:
                self._queue.cancel_inference(inference)
            if trace is not None:
                trace.end()
            if not isinstance(error, JustitiaError):
                raise
            if self._metrics is not None:
                self._metrics.record_drop(error)
            raise (error if delivered.status is None else _error_to_report(error)) from None

    def _replace_attempt(self, grant: Grant, delivered: Delivered | None, newer: Grant) -> None:
        """Abort an attempt of an inference that has a new lease, so that it does not run twice.

        A stream that no other engine can continue is left running.
        """
        is_other = newer.lease_id != grant.lease_id
        if is_other and (delivered is None or delivered.can_move):
            self._calls.abandon(grant)

    async def _nack_lease(
        self, inference: PendingInference, grant: Grant, error: Exception
    ) -> None:
        """Return an unusable lease to the scheduler; its inference waits for another lease."""
        inference.on_grant = None
        log_event(
            logger,
            logging.WARNING,
            "lease.unusable",
            lease_id=grant.lease_id,
            replica_id=grant.replica_id,
            reason=type(error).__name__,
        )
        if isinstance(error, LeaseSuperseded):
            return  # The scheduler itself has replaced the lease.
        is_cut = isinstance(error, ConnectionLost)
        reason = NackReason.CONNECTION if is_cut else NackReason.LEASE
        await self._queue.nack_lease(inference, grant, reason)


_SELF_EXPLAINED = (EngineFailed, StreamUnfinished, KillsEngines)
"""Engine errors whose own message tells the caller why the stream ended."""


def _call_facts(path: str, context: RequestContext) -> CallFacts:
    traceparent = context.headers.get(TRACEPARENT)
    return CallFacts(path, context.tier, context.application_class, traceparent)


def _replica_headers(trace: CallTrace | None, inference: PendingInference) -> dict[str, str]:
    """Return the trace and tenant headers for a replica, which callers must not set."""
    tenant, _ = split_key(inference.item.application_id)
    return {TENANT_HEADER: tenant} if trace is None else {**trace.headers, TENANT_HEADER: tenant}


def _error_to_report(error: JustitiaError) -> JustitiaError:
    """Return the error for the caller whose stream was cut and cannot continue."""
    if isinstance(error, EngineError) and not isinstance(error, _SELF_EXPLAINED):
        return EngineError(
            "the replica was lost in the middle of this stream, which cannot be continued: "
            f"{error}; what came before is incomplete"
        )
    return error
