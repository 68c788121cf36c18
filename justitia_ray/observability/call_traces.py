"""Spans of traces: a whole call, its wait in the queue, each of its leases, and its application.

A call that is not traced costs one hash of its application's name. Spans are created by hand when
they end, and passed to an export function.
"""

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from justitia_ray.application_key import split_key
from justitia_ray.core.actions import EndApplication, Grant
from justitia_ray.errors import JustitiaError
from justitia_ray.observability import span_conventions as c
from justitia_ray.observability.trace_context import (
    TRACEPARENT,
    ApplicationSampler,
    TraceContext,
    read_sampled,
    read_traceparent,
)
from justitia_ray.protocol.engine import Progress
from justitia_ray.units import ApplicationId, LeaseId, ReplicaId, Seconds

ASKED_AFTER_S: Seconds = 0.05
"""Seconds after which a traced call that waits asks the scheduler why it waits."""

Kind = Literal["internal", "server", "client"]
Value = str | int | float | bool
AskOutlooks = Callable[[tuple[ApplicationId, ...]], Awaitable[Mapping[str, Any]]]
"""Function that asks the scheduler when applications will start and why they wait."""


@dataclass(slots=True)
class Span:
    """A started span of a trace; it is exported when it ends."""

    name: str
    context: TraceContext
    parent: TraceContext | None
    started_ns: int
    """Start of the span in nanoseconds since 1970."""
    kind: Kind = "internal"
    ended_ns: int = 0
    attributes: dict[str, Value] = field(default_factory=dict)
    links: tuple[TraceContext, ...] = ()
    error: str | None = None
    """Class name of the error that ended the span; None if it succeeded."""

    def set(self, attribute: c.Attribute, value: Value | None) -> None:
        """Set an attribute of the span; None leaves it unset."""
        if value is not None:
            self.attributes[attribute.name] = value


Export = Callable[[Span], None]


def _child_context(parent: TraceContext) -> TraceContext:
    return TraceContext(parent.trace_id, random.getrandbits(64) or 1, parent.is_sampled)


def _error_name(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "cancelled"
    return type(error).__name__


class CallTrace(Protocol):
    """Trace of one call; its methods are called in the order of their definitions."""

    headers: Mapping[str, str]
    """Trace headers for the replica, set when the call is submitted."""

    def note_submitted(self, application_id: ApplicationId) -> None:
        """Record that the call waits in the queue as an inference of an application."""

    def note_granted(self, grant: Grant) -> None:
        """Record that the call was granted a lease."""

    def note_lost(self, error: BaseException) -> None:
        """Record that a lease was lost before the call ended; the call waits for another lease."""

    def end(self, status: int | None = None) -> None:
        """End the trace once, with a status or with the exception being handled."""


class CallFacts(NamedTuple):
    """Facts about a call that are known before it is submitted."""

    path: str
    tier: str
    application_class: str | None
    traceparent: str | None
    """The caller's `traceparent` header; None if it sent none."""


class CallTracer:
    """Starts the traces of calls to one model, and exports the spans of its applications.

    Args:
        sampler: Selects the applications that are traced.
        export: Receives the finished spans.
        model: The model's name.
        ask_outlooks: Requests the applications' outlooks from the scheduler.
        parent: Parent of a call's span if the caller sends a trace context: either the
            application's span or the caller's span. The other one of the two is linked; the parent
            also decides whether the call is traced.
        clock: Returns nanoseconds since 1970.
    """

    def __init__(
        self,
        sampler: ApplicationSampler,
        export: Export,
        model: str,
        ask_outlooks: AskOutlooks,
        *,
        parent: Literal["application", "caller"] = "application",
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.sampler = sampler
        self.export = export
        self.model = model
        self.ask_outlooks = ask_outlooks
        self.joins_callers = parent == "caller"
        self.clock = clock

    def begin(self, facts: CallFacts) -> CallTrace:
        """Start the trace of a call."""
        return TracedCall(self, facts)

    def end_application(self, ended: EndApplication) -> None:
        """Export the span of an ended application, if it is traced."""
        context = self.sampler.context(ended.application_id)
        if not context.is_sampled:
            return
        span = Span(
            f"{c.APPLICATION} {ended.application_class}",
            context,
            None,
            round(1e9 * ended.arrived_at),
            ended_ns=round(1e9 * ended.ended_at),
        )
        _set_call_attributes(span, c.APPLICATION, self.model)
        _set_application_attributes(span, ended.application_id, ended.application_class)
        span.set(c.OUTCOME, ended.outcome.value)
        span.set(c.INFERENCES, ended.inferences)
        span.set(c.INPUT_TOKENS, ended.prompt_tokens)
        span.set(c.CACHED_TOKENS, ended.cached_tokens)
        span.set(c.OUTPUT_TOKENS, ended.output_tokens)
        span.set(c.PREDICTED, float(ended.predicted_kv_token_time))
        span.set(c.SERVED, float(ended.kv_token_time))
        span.set(c.TAG, float(ended.virtual_finish_time))
        span.set(c.LAG, None if ended.lag is None else float(ended.lag.seconds))
        self.export(span)


def _set_call_attributes(span: Span, operation: str, model: str) -> None:
    span.set(c.OPERATION, operation)
    span.set(c.PROVIDER, c.PROVIDER_NAME)
    span.set(c.MODEL, model)


def _set_application_attributes(
    span: Span, application_id: ApplicationId, application_class: str | None
) -> None:
    tenant, own_id = split_key(application_id)
    span.set(c.CONVERSATION, own_id)
    span.set(c.AGENT, application_class)
    span.set(c.TENANT, tenant)


class TracedCall:
    """Trace of one call while tracing is on; sampling is decided when the call is submitted."""

    def __init__(self, tracer: CallTracer, facts: CallFacts) -> None:
        self.headers: Mapping[str, str] = {}
        self._tracer = tracer
        self._facts = facts
        self._began_ns = tracer.clock()
        self._call: Span | None = None
        """Span of the whole call; None if the call is not traced, or has ended."""
        self._waits: Span | None = None
        self._runs: Span | None = None
        self._attempt = 0
        self._application_id: ApplicationId = ""
        self._timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None

    def note_submitted(self, application_id: ApplicationId) -> None:
        """Decide whether the call is traced; if so, start the span of its wait in the queue."""
        facts, tracer = self._facts, self._tracer
        own = parent = tracer.sampler.context(application_id)
        links: tuple[TraceContext, ...] = ()
        if facts.traceparent is not None:
            caller = read_traceparent(facts.traceparent)
            if caller is not None:
                parent, link = (caller, own) if tracer.joins_callers else (own, caller)
                links = (link,)
        if not parent.is_sampled:
            # Without a trace header, vLLM would decide itself whether to trace the call.
            self.headers = {TRACEPARENT: parent.traceparent}
            return
        operation = c.operation_of(facts.path)
        call = Span(
            f"{operation} {tracer.model}",
            _child_context(parent),
            parent,
            self._began_ns,
            "server",
            links=links,
        )
        _set_call_attributes(call, operation, tracer.model)
        _set_application_attributes(call, application_id, facts.application_class)
        call.set(c.TIER, facts.tier)
        self._call, self._application_id = call, application_id
        self._start_wait()

    def note_granted(self, grant: Grant) -> None:
        """End the span of the wait in the queue, and start the span of the lease."""
        if self._call is None or self._waits is None:
            return
        self._cancel_outlook_request()
        self._waits.set(c.WAITED, grant.waited_s)
        self._end_span(self._waits)
        self._waits = None
        runs = self._new_child(c.LEASE_SPAN, "client")
        runs.set(c.ATTEMPT, self._attempt)
        runs.set(c.LEASE, grant.lease_id)
        runs.set(c.PRIORITY, grant.priority)
        runs.set(c.REPLICA, grant.replica_id)
        self._runs = runs
        self.headers = {TRACEPARENT: runs.context.traceparent}

    def note_lost(self, error: BaseException) -> None:
        """End the span of the lease with its error, and start a span of waiting again."""
        if self._runs is not None:
            self._set_error(self._runs, error)
            self._end_span(self._runs)
            self._runs = None
            self._start_wait()

    def end(self, status: int | None = None) -> None:
        """End all open spans of the call, with a status or with the exception being handled."""
        call = self._call
        if call is None:
            return
        self._call = None
        self._cancel_outlook_request()
        error = sys.exception()
        for span in (self._waits, self._runs, call):
            if span is None:
                continue
            if status is not None:
                self._set_status(span, status)
            elif error is not None:
                self._set_error(span, error)
            self._end_span(span)

    # --- private helpers

    def _start_wait(self) -> None:
        self._attempt += 1
        self._waits = self._new_child(c.QUEUE_SPAN)
        self._waits.set(c.ATTEMPT, self._attempt)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(ASKED_AFTER_S, self._start_outlook_request)

    def _start_outlook_request(self) -> None:
        self._asking = asyncio.create_task(self._request_outlook())

    async def _request_outlook(self) -> None:
        """Ask the scheduler why the call waits, and add the answer to the span of the wait."""
        span = self._waits
        with suppress(JustitiaError):  # The scheduler may be restarting.
            outlooks = await self._tracer.ask_outlooks((self._application_id,))
            outlook = outlooks.get(self._application_id)
            if span is not None and outlook is not None:
                span.set(c.POSITION, outlook["position"])
                span.set(c.REASON, outlook["reason"])
                span.set(c.CONTEXT_FULL, outlook.get("context_full_s"))
                span.set(c.MISSING_KV, outlook.get("missing_kv_tokens"))
                span.set(c.TAG, outlook.get("virtual_finish_time"))

    def _cancel_outlook_request(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    def _new_child(self, name: str, kind: Kind = "internal") -> Span:
        assert self._call is not None
        parent = self._call.context
        return Span(name, _child_context(parent), parent, self._tracer.clock(), kind)

    @staticmethod
    def _set_status(span: Span, status: int) -> None:
        if span.kind == "server":
            span.set(c.STATUS, status)
        if status >= 400:
            span.set(c.ERROR, str(status))
        if status >= 500:  # 4xx is the caller's error
            span.error = str(status)

    @staticmethod
    def _set_error(span: Span, error: BaseException) -> None:
        span.error = _error_name(error)
        span.set(c.ERROR, span.error)

    def _end_span(self, span: Span) -> None:
        span.ended_ns = self._tracer.clock()
        self._tracer.export(span)


class EngineTracer:
    """Creates the spans of engine calls, as children of the spans of leases."""

    def __init__(
        self,
        export: Export,
        model: str,
        replica_id: ReplicaId,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._end_span = export
        self._model = model
        self._replica_id = replica_id
        self._clock = clock

    def begin(self, path: str, lease_id: LeaseId, headers: Mapping[str, str]) -> Span | None:
        """Return a new span for an engine call; None if its lease is not traced."""
        lease = read_sampled(headers.get(TRACEPARENT))
        if lease is None:
            return None
        span = Span(c.ENGINE_SPAN, _child_context(lease), lease, self._clock())
        _set_call_attributes(span, c.operation_of(path), self._model)
        span.set(c.LEASE, lease_id)
        span.set(c.REPLICA, self._replica_id)
        return span

    def end(self, span: Span, status: int, used: Progress) -> None:
        """Export the span of an ended engine call, with the exception being handled, if any.

        Args:
            span: Span of the call.
            status: Status of the answer; 0 if there is none.
            used: Tokens of the call.
        """
        error = sys.exception()
        if error is not None:
            span.error = _error_name(error)
            span.set(c.ERROR, span.error)
        if status:
            span.set(c.STATUS, status)
        span.set(c.INPUT_TOKENS, used.prompt_tokens)
        span.set(c.CACHED_TOKENS, used.cached_tokens)
        span.set(c.OUTPUT_TOKENS, used.output_tokens)
        span.ended_ns = self._clock()
        self._end_span(span)
