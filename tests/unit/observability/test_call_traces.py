"""The exported spans of a call."""

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

import pytest

from justitia_ray.core.actions import EndApplication, Grant
from justitia_ray.core.entities import Outcome
from justitia_ray.errors import AdmissionError, ConnectionLost, QueueFull
from justitia_ray.observability.call_traces import (
    ASKED_AFTER_S,
    CallFacts,
    CallTracer,
    EngineTracer,
    Span,
)
from justitia_ray.observability.span_conventions import TABLE
from justitia_ray.observability.trace_context import (
    ApplicationSampler,
    TraceContext,
    read_traceparent,
)
from justitia_ray.protocol.engine import Progress
from tests.eventually import eventually

KEY = "acme|report-17"
CHAT = "/v1/chat/completions"
CALLER = TraceContext(5, 7, is_sampled=True)
OUTLOOK = {"position": 3, "reason": "turn", "virtual_finish_time": 812.0}
GRANT = Grant("q", "i", "l-1", "r-1", 4, 100, 0.25)


class TracedCalls:
    """Tracer whose clock advances by one at each reading, and the spans that it exported."""

    def __init__(
        self, ratio: float = 1.0, parent: Literal["application", "caller"] = "application"
    ) -> None:
        self.spans: list[Span] = []
        self.asked: list[tuple[str, ...]] = []
        self.answer: Mapping[str, Any] | Exception = {KEY: OUTLOOK}
        self.now = 0
        self.sampler = ApplicationSampler("justitia", "small", ratio)
        self.tracer = CallTracer(
            self.sampler,
            self.spans.append,
            "small",
            self.fetch_outlooks,
            parent=parent,
            clock=self.clock,
        )

    def clock(self) -> int:
        self.now += 1
        return self.now

    async def fetch_outlooks(self, names: tuple[str, ...]) -> Mapping[str, Any]:
        self.asked.append(names)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def begin_call(self, traceparent: str | None = None) -> Any:
        return self.tracer.begin(CallFacts(CHAT, "default", "report", traceparent))

    def spans_named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


def has_only_table_attributes(spans: list[Span]) -> bool:
    """Return whether the attribute table lists every attribute of every span."""
    kinds = {"chat small": "call", "invoke_agent report": "application"}
    rows = [{row.name for row in TABLE if kinds.get(s.name, s.name) in row.spans} for s in spans]
    return all(set(span.attributes) <= row for span, row in zip(spans, rows, strict=True))


async def test_span_of_a_call_contains_its_wait_and_lease_spans() -> None:
    exported = TracedCalls()
    trace = exported.begin_call()
    trace.note_submitted(KEY)
    trace.note_granted(GRANT)
    trace.end(200)
    waits, runs, call = exported.spans
    application = exported.sampler.context(KEY)

    assert ["justitia.queue", "justitia.lease", "chat small"] == [s.name for s in exported.spans]
    assert application == call.parent
    assert [call.context, call.context] == [waits.parent, runs.parent]
    assert {application.trace_id} == {span.context.trace_id for span in exported.spans}
    assert 3 == len({span.context.span_id for span in exported.spans})
    assert call.started_ns < waits.started_ns < waits.ended_ns < runs.started_ns < runs.ended_ns
    assert runs.ended_ns < call.ended_ns
    assert ("internal", "client", "server") == (waits.kind, runs.kind, call.kind)
    assert {"justitia.waited_s": 0.25, "justitia.attempt": 1} == waits.attributes
    assert {
        "justitia.attempt": 1,
        "justitia.lease_id": "l-1",
        "justitia.priority": 4,
        "justitia.replica": "r-1",
    } == runs.attributes
    assert {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "justitia_ray",
        "gen_ai.request.model": "small",
        "gen_ai.conversation.id": "report-17",
        "gen_ai.agent.name": "report",
        "justitia.tenant": "acme",
        "justitia.tier": "default",
        "http.response.status_code": 200,
    } == call.attributes


async def test_replica_receives_the_trace_context_of_the_lease_span() -> None:
    exported = TracedCalls()
    trace = exported.begin_call()
    trace.note_submitted(KEY)
    trace.note_granted(GRANT)
    told = read_traceparent(trace.headers["traceparent"])
    trace.end(200)

    assert exported.spans_named("justitia.lease")[0].context == told


async def test_lost_lease_is_followed_by_a_second_wait_span() -> None:
    """The trace of a stream that moved shows both replicas and the wait between them."""
    exported = TracedCalls()
    trace = exported.begin_call()
    trace.note_submitted(KEY)
    trace.note_granted(GRANT)
    trace.note_lost(ConnectionLost("r-1"))
    trace.note_granted(GRANT)
    trace.end(200)

    attempts = [(s.name, s.attributes["justitia.attempt"], s.error) for s in exported.spans[:-1]]
    assert [
        ("justitia.queue", 1, None),
        ("justitia.lease", 1, "ConnectionLost"),
        ("justitia.queue", 2, None),
        ("justitia.lease", 2, None),
    ] == attempts
    assert exported.spans[-1].error is None


async def test_error_of_a_call_ends_all_its_open_spans() -> None:
    """A refused call is an error in its queue span and in its call span."""
    exported = TracedCalls()
    trace = exported.begin_call()
    trace.note_submitted(KEY)
    try:
        raise QueueFull("full", 5.0)
    except QueueFull:
        trace.end()
    trace.end(200)

    assert [("justitia.queue", "QueueFull"), ("chat small", "QueueFull")] == [
        (span.name, span.attributes["error.type"]) for span in exported.spans
    ]
    assert has_only_table_attributes(exported.spans)


@pytest.mark.parametrize(
    ("status", "told", "error"), [(200, None, None), (400, "400", None), (500, "500", "500")]
)
async def test_engine_error_is_recorded_by_its_status(
    status: int, told: str | None, error: str | None
) -> None:
    """A stream sends status 200 before its engine fails."""
    exported = TracedCalls()
    trace = exported.begin_call()
    trace.note_submitted(KEY)
    trace.note_granted(GRANT)
    trace.end(status)

    *_, call = exported.spans
    assert (status, told, error) == (
        call.attributes["http.response.status_code"],
        call.attributes.get("error.type"),
        call.error,
    )


async def test_disconnected_caller_is_not_recorded_as_an_error() -> None:
    exported = TracedCalls()
    trace = exported.begin_call()
    trace.note_submitted(KEY)
    try:
        raise asyncio.CancelledError
    except asyncio.CancelledError:
        trace.end()

    assert {"cancelled"} == {span.error for span in exported.spans}


async def test_unsampled_call_makes_no_spans() -> None:
    """Without the flag a tracing engine would start a new trace for each call."""
    exported = TracedCalls(ratio=0.0)
    trace = exported.begin_call()
    trace.note_submitted(KEY)
    trace.note_granted(GRANT)
    trace.note_lost(ConnectionLost("r-1"))
    trace.end(200)
    told = read_traceparent(trace.headers["traceparent"])

    assert [] == exported.spans
    assert told is not None
    assert not told.is_sampled


@pytest.mark.parametrize("parent", ["application", "caller"])
async def test_trace_of_the_caller_is_linked_or_joined(
    parent: Literal["application", "caller"],
) -> None:
    exported = TracedCalls(parent=parent)
    trace = exported.begin_call(CALLER.traceparent)
    trace.note_submitted(KEY)
    trace.end(200)
    call, own = exported.spans[-1], exported.sampler.context(KEY)

    expected = (own, (CALLER,)) if parent == "application" else (CALLER, (own,))
    assert expected == (call.parent, call.links)


@pytest.mark.parametrize(
    ("ratio", "parent", "sampled", "is_traced"),
    [
        (0.0, "application", True, False),
        (1.0, "application", False, True),
        (0.0, "caller", True, True),
        (1.0, "caller", False, False),
    ],
)
async def test_sampling_decision_of_the_caller_applies_to_the_whole_trace(
    ratio: float, parent: Literal["application", "caller"], sampled: bool, is_traced: bool
) -> None:
    exported = TracedCalls(ratio, parent)
    trace = exported.begin_call(TraceContext(5, 7, is_sampled=sampled).traceparent)
    trace.note_submitted(KEY)
    trace.end(200)

    assert is_traced == bool(exported.spans)


async def test_span_of_a_waiting_call_records_the_waiting_reason() -> None:
    """The scheduler is asked only for traced calls that wait."""
    exported = TracedCalls()
    trace = exported.begin_call()
    trace.note_submitted(KEY)
    await eventually(lambda: exported.asked, "it is asked", 10 + ASKED_AFTER_S)
    trace.note_granted(GRANT)
    trace.end(200)
    (waits,) = exported.spans_named("justitia.queue")

    assert [(KEY,)] == exported.asked
    assert (3, "turn", 812.0) == tuple(
        waits.attributes[f"justitia.{name}"]
        for name in ("position", "reason", "virtual_finish_time")
    )


@pytest.mark.parametrize("full_s", [0.84, None])
async def test_waiting_span_records_how_long_a_full_replica_delays_the_call(
    full_s: float | None,
) -> None:
    exported = TracedCalls()
    reason = {"position": 1, "reason": "context:r-2", "context_full_s": full_s}
    exported.answer = {KEY: reason}
    trace = exported.begin_call()
    trace.note_submitted(KEY)
    await eventually(lambda: exported.asked, "it is asked", 10 + ASKED_AFTER_S)
    trace.note_granted(GRANT)
    trace.end(200)
    (waits,) = exported.spans_named("justitia.queue")

    assert "context:r-2" == waits.attributes["justitia.reason"]
    assert full_s == waits.attributes.get("justitia.context_full_s")
    assert has_only_table_attributes(exported.spans)


@pytest.mark.parametrize("answer", [{}, AdmissionError("it is being started again")])
async def test_unknown_outlook_adds_no_span_attribute(answer: Any) -> None:
    """The outlook is unknown if the application or the scheduler has ended."""
    exported = TracedCalls()
    exported.answer = answer
    trace = exported.begin_call()
    trace.note_submitted(KEY)
    await eventually(lambda: exported.asked, "it is asked", 10 + ASKED_AFTER_S)
    trace.note_granted(GRANT)
    trace.end(200)

    assert "justitia.reason" not in exported.spans_named("justitia.queue")[0].attributes


def application_end(key: str = KEY) -> EndApplication:
    return EndApplication(
        key, "report", "acme", "i", Outcome.FINISHED, 100, 90, 812.0, 10.0, 11.0, 12.5, 3, 0, 40, 0,
        prompt_tokens=30,
    )  # fmt: skip


def test_application_span_is_the_parent_of_its_calls() -> None:
    exported = TracedCalls()
    exported.tracer.end_application(application_end())
    (span,) = exported.spans

    assert "invoke_agent report" == span.name
    assert (exported.sampler.context(KEY), None) == (span.context, span.parent)
    assert (10_000_000_000, 12_500_000_000) == (span.started_ns, span.ended_ns)
    assert {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.conversation.id": "report-17",
        "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.output_tokens": 40,
        "justitia.outcome": "finished",
        "justitia.kv_token_time": 90.0,
    }.items() <= span.attributes.items()


def test_untraced_application_has_no_span() -> None:
    exported = TracedCalls(ratio=0.0)
    exported.tracer.end_application(application_end())

    assert [] == exported.spans


def test_span_of_the_engine_has_token_counts() -> None:
    spans: list[Span] = []
    tracer = EngineTracer(spans.append, "small", "r-1")
    span = tracer.begin(CHAT, "l-1", {"traceparent": CALLER.traceparent})
    assert span is not None
    tracer.end(span, 200, Progress(12, 34, 8))

    assert [span] == spans
    assert (CALLER, "justitia.engine") == (span.parent, span.name)
    assert (12, 8, 34, "l-1") == tuple(
        span.attributes[name]
        for name in (
            "gen_ai.usage.input_tokens",
            "gen_ai.usage.cache_read.input_tokens",
            "gen_ai.usage.output_tokens",
            "justitia.lease_id",
        )
    )


@pytest.mark.parametrize(
    "headers", [{}, {"traceparent": TraceContext(5, 7, is_sampled=False).traceparent}]
)
def test_engine_makes_no_span_without_a_trace_header(headers: dict[str, str]) -> None:
    assert EngineTracer(lambda span: None, "small", "r-1").begin(CHAT, "l-1", headers) is None


async def test_span_attributes_match_the_documented_table() -> None:
    exported = TracedCalls()
    trace = exported.begin_call()
    trace.note_submitted(KEY)
    trace.note_granted(GRANT)
    trace.note_lost(ConnectionLost("r-1"))
    trace.end(200)
    exported.tracer.end_application(application_end())
    tracer = EngineTracer(exported.spans.append, "small", "r-1")
    span = tracer.begin(CHAT, "l-1", {"traceparent": CALLER.traceparent})
    assert span is not None
    tracer.end(span, 200, Progress(1, 1, 0))

    assert has_only_table_attributes(exported.spans)
