"""Run one inference: submit it, wait for its lease, call the leased replica, retry on failure."""

import logging
from asyncio import get_running_loop, sleep
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from justitia_ray.application_key import split_key
from justitia_ray.config import AppConfig, IngressSection
from justitia_ray.core.actions import Grant
from justitia_ray.core.events import NackReason
from justitia_ray.core.limits import LimitStanding
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
    NoReplicaAnswers,
    NotServed,
    StreamUnfinished,
)
from justitia_ray.observability.call_traces import UNTRACED, CallFacts, CallTrace, CallTracer
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
    name_model,
    parse_body,
)
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS, RESPONSES
from justitia_ray.protocol.inference_body import InferenceBody, read_object
from justitia_ray.protocol.request_mapping import RequestMapping
from justitia_ray.protocol.request_schemas import installed_schemas
from justitia_ray.protocol.stream_ends import StreamEnd
from justitia_ray.protocol.stream_parts import Delivered, Part
from justitia_ray.serve.ingress.estimates import Estimates
from justitia_ray.serve.ingress.pending_inferences import PendingInference
from justitia_ray.serve.ingress.queue_client import QueueClient
from justitia_ray.serve.ingress.replica_calls import (
    LEASE_UNUSABLE,
    Answer,
    ReplicaCalls,
    StreamItem,
)
from justitia_ray.serve.ingress.request_context import RequestContext
from justitia_ray.serve.ingress.submission import ApplicationSpecCache, Submitter
from justitia_ray.serve.ingress.token_counter import TokenCounter
from justitia_ray.serve.ingress.waiting_streams import StreamOutlooks
from justitia_ray.units import ApplicationId, ClientId, Seconds

logger = logging.getLogger("ray.serve")

_ASK_AGAIN_S: Seconds = 0.5
_ASK_AGAIN_MOST_S: Seconds = 10.0
"""First and longest pause between two queries of the engines' context (seconds)."""
_ASK_FOR_CACHE_S: Seconds = 60.0
"""Pause between two queries while the engines have no prefix cache: an update may enable it."""


def served_by(head: Mapping[str, str], grant: Grant, inference: PendingInference) -> dict[str, str]:
    """Return the headers of an answer, with its application, its replica and its time in the queue.

    Args:
        head: Headers of the engine's answer.
        grant: Lease under which the answer was generated; the first one, if a stream was cut.
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


Submit = Callable[[], Awaitable[PendingInference]]
"""Function that submits one inference to the queue."""


class Attempts:
    """Runs inferences, and retries each under new leases until its attempts run out."""

    def __init__(
        self,
        queue: QueueClient,
        calls: ReplicaCalls,
        section: IngressSection,
        on_dropped: Callable[[JustitiaError], None] = lambda error: None,
    ) -> None:
        """Create the runner of one model; `on_dropped` receives the error of each failed call."""
        self._queue = queue
        self._calls = calls
        self._attempts = section.attempts
        self._on_dropped = on_dropped

    async def answer(
        self, submit: Submit, path: str, payload: bytes, trace: CallTrace = UNTRACED
    ) -> Answer:
        """Return the whole answer to an inference; if this call is cancelled, cancel the inference.

        Raises:
            JustitiaError: If the inference cannot run.
        """
        inference: PendingInference | None = None
        try:
            inference = await submit()
            trace.note_submitted(inference.item.application_id)
            for _ in range(self._attempts):
                grant = await self._queue.next_grant(inference)
                trace.note_granted(grant)
                inference.on_grant = partial(self._replace_attempt, grant, None)
                try:
                    answer = await self._calls.unary(
                        grant, path, payload, _headers(trace, inference)
                    )
                except LEASE_UNUSABLE as error:
                    trace.note_lost(error)
                    await self._nack_lease(inference, grant, error)
                else:
                    self._queue.pending.note_answered(inference)
                    status, head, whole = answer
                    trace.end(status)
                    return status, served_by(head, grant, inference), whole
            raise AttemptsExhausted(f"gave up after {self._attempts} attempts")
        except JustitiaError as error:
            self._on_dropped(error)
            raise
        finally:
            if inference is not None:
                self._queue.cancel_inference(inference)  # no effect after the answer
            trace.end()  # no effect if it has ended

    async def stream(
        self, submit: Submit, path: str, payload: bytes, trace: CallTrace = UNTRACED
    ) -> AsyncGenerator[StreamItem]:
        """Yield (status, headers), then the body; if closed early, cancel the inference.

        A stream that is cut continues at the cut under the next lease; an empty chunk means that it
        waits for that lease.

        Raises:
            EngineFailed: If the engine ended the stream with an error, which is in the last chunk.
            JustitiaError: If the inference cannot run, or the stream cannot continue, was cut too
                often or has no end; the chunks yielded before are then an incomplete answer.
        """
        inference: PendingInference | None = None
        delivered, end = Delivered(names=path == RESPONSES), StreamEnd(path)
        try:
            inference = await submit()
            trace.note_submitted(inference.item.application_id)
            for _ in range(self._attempts):
                if delivered.status is not None:
                    yield b""
                grant = await self._queue.next_grant(inference)
                trace.note_granted(grant)
                inference.on_grant = partial(self._replace_attempt, grant, delivered)
                try:
                    resume = delivered.resume()
                    headers = _headers(trace, inference)
                    parts = self._calls.stream(grant, path, payload, resume, headers)
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
                    delivered.resume()  # raises if the stream cannot go on
                    trace.note_lost(error)
                    await self._nack_lease(inference, grant, error)
                else:
                    self._queue.pending.note_answered(inference)
                    if delivered.status is not None and delivered.status < 400:
                        end.check()
                    trace.end(delivered.status)
                    return
            raise AttemptsExhausted(f"gave up after {self._attempts} attempts")
        except JustitiaError as error:
            self._on_dropped(error)
            trace.end()
            raise (error if delivered.status is None else _told(error)) from None
        finally:
            if inference is not None:
                self._queue.cancel_inference(inference)  # no effect after the answer
            trace.end()

    def _replace_attempt(self, grant: Grant, delivered: Delivered | None, newer: Grant) -> None:
        """Abort an attempt whose inference was granted another lease: it would run twice.

        A stream that no other engine can continue is left running.
        """
        is_other = newer.lease_id != grant.lease_id
        if is_other and (delivered is None or delivered.can_move):
            self._calls.abandon(grant)

    async def _nack_lease(
        self, inference: PendingInference, grant: Grant, error: Exception
    ) -> None:
        """Return a lease that could not be used to its end; the inference waits for another one."""
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
            return  # the scheduler itself replaced the lease
        is_cut = isinstance(error, ConnectionLost)
        reason = NackReason.CONNECTION if is_cut else NackReason.LEASE
        await self._queue.nack_lease(inference, grant, reason)


_SELF_EXPLAINED = (EngineFailed, StreamUnfinished, KillsEngines)
"""Engine errors whose message already explains why the stream ended."""


def _headers(trace: CallTrace, inference: PendingInference) -> dict[str, str]:
    """Return extra headers for the replica, the trace and the tenant; none is the caller's."""
    return {**trace.headers, TENANT_HEADER: split_key(inference.item.application_id)[0]}


def _told(error: JustitiaError) -> JustitiaError:
    """Return the error to report to the caller of a stream that was cut and cannot continue."""
    if isinstance(error, EngineError) and not isinstance(error, _SELF_EXPLAINED):
        return EngineError(
            "the replica was lost in the middle of this stream, which cannot be continued: "
            f"{error}; what came before is incomplete"
        )
    return error


async def _nothing(application_ids: tuple[ApplicationId, ...]) -> Mapping[str, Any]:
    return {}


async def _in_items(answer: Callable[[], Awaitable[Answer]]) -> AsyncGenerator[StreamItem]:
    status, head, whole = await answer()
    yield status, head
    yield whole


class Gateway:
    """Turns requests for one model into inferences, and their answers into responses."""

    def __init__(
        self,
        config: AppConfig,
        queue: QueueClient,
        calls: ReplicaCalls,
        estimates: Estimates,
        counter: TokenCounter,
        specs: ApplicationSpecCache,
        metrics: IngressMetrics | None = None,
        outlooks: StreamOutlooks | None = None,
        tracer: CallTracer | None = None,
    ) -> None:
        """Create the gateway of one model.

        Args:
            config: The model's configuration.
            queue: Client of the model's queue.
            calls: Calls to the model's replicas.
            estimates: Estimates of the model's predictor.
            counter: Counts the model's prompt tokens.
            specs: Specifications of applications that were opened at another model.
            metrics: Counts estimates and dropped calls; None: they are not counted.
            outlooks: Returns the outlooks of waiting streams; None: they have no outlook.
            tracer: Traces calls; None: calls are not traced.
        """
        self._tracer = tracer
        self.outlooks = outlooks or StreamOutlooks(_nothing, config.ingress.keepalive_s)
        self._config = config
        self._queue = queue
        self._calls = calls
        self._metrics = metrics
        model = config.model
        self._mapping: RequestMapping | None = None
        if model.aliases or model.reasoning_efforts:
            self._mapping = RequestMapping(model.names, model.aliases, model.reasoning_efforts)
        self._schemas = installed_schemas() if config.engine.kind == "vllm" else None
        self._attempts = Attempts(queue, calls, config.ingress)
        if metrics is not None:
            self._attempts = Attempts(queue, calls, config.ingress, metrics.record_drop)
        self._paths: frozenset[str] | None = None
        """Paths that the engine serves, constant in this process; None until they were queried."""
        self.max_model_len = config.engine.declared_context
        """Context length of the model (tokens): as declared until a replica reports its own; None:
        unknown."""
        self.submitter = Submitter(queue, estimates, counter, self.max_model_len, specs, metrics)

    async def answer(self, path: str, context: RequestContext, body: InferenceBody) -> Answer:
        """Run an inference and return its whole answer.

        Raises:
            JustitiaError: If the inference cannot run; `protocol.errors` maps it to an HTTP answer.
        """
        submit = partial(self.submitter.submit_inference, context, body)
        trace = self._trace(path, context)
        return await self._attempts.answer(submit, path, body.payload, trace)

    def stream(
        self,
        path: str,
        context: RequestContext,
        body: InferenceBody,
        on_submitted: Callable[[ApplicationId], None] = lambda application_id: None,
    ) -> AsyncGenerator[StreamItem]:
        """Run an inference and yield its answer: (status, headers), then bytes as they arrive.

        If the body does not request a stream, the answer is yielded whole.

        Args:
            path: Path of the endpoint.
            context: Context of the call.
            body: Body of the call.
            on_submitted: Called with the application's id once the inference waits in the queue.

        Raises:
            JustitiaError: If the inference cannot run, before anything was yielded.
        """
        if not body.stream:
            return _in_items(partial(self.answer, path, context, body))

        async def submit() -> PendingInference:
            inference = await self.submitter.submit_inference(context, body)
            on_submitted(inference.item.application_id)
            return inference

        return self._attempts.stream(submit, path, body.payload, self._trace(path, context))

    def _trace(self, path: str, context: RequestContext) -> CallTrace:
        if self._tracer is None:
            return UNTRACED
        facts = CallFacts(
            path,
            context.tier,
            context.application_class,
            context.headers.get(TRACEPARENT),
        )
        return self._tracer.begin(facts)

    def note_failed_stream(self, status: int) -> None:
        """Count a stream that failed after its head was sent.

        Args:
            status: HTTP status that the call would have had if it had failed before.
        """
        if self._metrics is not None:
            self._metrics.record_failed_stream(status)

    def standings(self, context: RequestContext) -> tuple[LimitStanding, ...]:
        """Return the known limits of a call's tenant; almost always none."""
        return self.standings_of(context.tenant) if self._queue.standings else ()

    def standings_of(self, tenant: ClientId) -> tuple[LimitStanding, ...]:
        """Return the limits of a tenant, as last sent by the scheduler."""
        return self._queue.standings.of(tenant, get_running_loop().time())

    def parse(self, path: str, body: bytes, fields: dict[str, Any] | None = None) -> InferenceBody:
        """Parse a request's body for this model; see `protocol.endpoints.parse_body`.

        A body that the engine's own request models forbid is refused, too.
        """
        if self._mapping is not None:
            fields = read_object(body) if fields is None else fields
            body = self._mapping.map_request(fields, body)
        read = parse_body(path, body, self._config.model.names, self.max_model_len, fields)
        if self._schemas is not None:
            self._schemas.check(path, read.fields)
        return read

    async def counted(self, context: RequestContext, body: InferenceBody) -> InferenceBody:
        """Return a request's body with the token counts of its prompts."""
        size = await self.submitter.count_prompts(context.tenant, body)
        return replace(body, size=size)

    async def learn_context(self) -> None:
        """Query the replicas until one has reported its context length and prefix-cache block size.

        vLLM derives the context length or fits it to its memory, so only a started engine has it.
        """
        pause_s = _ASK_AGAIN_S
        while True:
            try:
                self.max_model_len = self.submitter.max_model_len = await self._calls.context()
                block_size = await self._calls.cache_block()
            except Exception:  # no replica answers, or an old release lacks the method
                await sleep(pause_s)
                pause_s = min(2 * pause_s, _ASK_AGAIN_MOST_S)
                continue
            self.submitter.note_blocks(block_size)
            if block_size:
                return
            await sleep(_ASK_FOR_CACHE_S)

    async def check_served(self, path: str) -> None:
        """Refuse a path that the model's engine does not serve, before the request waits.

        Chat and completion requests skip the lookup until the paths are cached, since almost every
        model serves them. While no replica answers the lookup, the request is not refused: it waits
        for a replica like any other.

        Raises:
            NotServed: If the engine does not serve the path.
        """
        if self._paths is None:
            if path in (CHAT, COMPLETIONS):
                return
            try:
                self._paths = await self._calls.paths()
            except NoReplicaAnswers:
                return
        self.check_path(path)

    def check_path(self, path: str) -> None:
        """Refuse a path if the cached paths lack it; no replica is called.

        Raises:
            NotServed: If the engine does not serve the path.
        """
        if self._paths is not None and path not in self._paths:
            raise NotServed(f"the model {self._config.model.name!r} has no {path}")

    def name_body(self, body: bytes, fields: dict[str, Any]) -> bytes:
        """Return the body of an unscheduled call, with the model's name filled in.

        Raises:
            UnknownModel: If the body names another model.
        """
        if self._mapping is not None:
            body = self._mapping.map_request(fields, body)
        return name_model(fields, body, self._config.model.names)

    async def unscheduled(self, path: str, payload: bytes) -> Answer:
        """Return the answer to an unscheduled call, which bypasses the queue.

        Raises:
            NotServed: If the model's engine does not serve the path.
            NoReplicaAnswers: If no replica answers.
        """
        await self.check_served(path)
        return await self._calls.unscheduled(path, payload)
