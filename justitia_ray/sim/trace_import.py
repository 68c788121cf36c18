"""Import a user's own trace as a workload: CSV (`trace_csv`) or OpenTelemetry GenAI spans.

Rules where a trace lacks information:
- CSV has no ends. Requests of one `application_id` are submitted as long after the first as in the
  trace, whatever the duration of the others.
- Spans do not record dependencies. An inference that began after others of its application had
  ended depends on them, and the gap is tool time. Only the last of them are named: an inference
  that ended before another of them began is implied.
- Requests without output received no service; they are left out and counted.

A line of spans is either OTLP JSON (`{"resourceSpans": …}`, as the collector's file exporter
writes) or one span: with OTLP's names, or with those of the Python SDK (`context`, `start_time`, a
mapping of attributes). Attribute names are those of the semantic conventions for generative AI,
v1.41 (and, for tokens, their former names). An inference is a span whose `gen_ai.operation.name` is
chat, text_completion or generate_content; `gen_ai.usage.input_tokens` and `output_tokens` are its
lengths. Spans of agents and workflows, which may carry the sum of their inferences, are only read
for the agent's name.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

from justitia_ray.errors import ConfigError
from justitia_ray.json_lines import JsonRecord, numbered_lines, read_records
from justitia_ray.sim.suites.options import SuiteOptions
from justitia_ray.sim.suites.vtc import APPLICATION_CLASS
from justitia_ray.sim.trace_csv import TraceRow, read_trace
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from justitia_ray.units import Seconds

OPERATIONS = ("chat", "text_completion", "generate_content")
_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_PARENTS = 1000
"""Maximum length of a chain of parent spans; a longer chain counts as a cycle."""


@dataclass(frozen=True, slots=True)
class InferenceSpan:
    """Inference in an OpenTelemetry trace."""

    application_id: str
    """Conversation of the inference; the trace if no conversation is named."""
    application_class: str
    """Agent that made the call; if unnamed, the service; otherwise `trace`."""
    tenant: str
    """User named in the span, as the tenant; otherwise `default`."""
    start_ns: int
    end_ns: int
    """End time of the span in nanoseconds, at least 1 ns after its start."""
    input_tokens: int
    output_tokens: int
    """Output tokens; 0 for a span without counts, such as a failed call."""


@dataclass(frozen=True, slots=True)
class _TraceSpan:
    record: JsonRecord
    trace_id: str
    span_id: str
    parent_id: str
    start: Any
    end: Any
    attributes: Mapping[str, Any]
    service: Any


def read_inference_spans(path: Path) -> list[InferenceSpan]:
    """Return the inferences of a trace, in the order of the file.

    Raises:
        ConfigError: If the file cannot be read, or an inference lacks its ids, times or counts; the
            message names file, line, field, value and allowed values.
    """
    spans = [span for record in read_records(path) for span in _spans_of(record)]
    by_id = {(span.trace_id, span.span_id): span for span in spans}
    return [
        _inference_of(span, by_id)
        for span in spans
        if span.attributes.get("gen_ai.operation.name") in OPERATIONS
    ]


def _inference_of(span: _TraceSpan, by_id: Mapping[tuple[str, str], _TraceSpan]) -> InferenceSpan:
    start_ns = _nanoseconds_since_1970(span.record, "startTimeUnixNano", span.start)
    end_ns = _nanoseconds_since_1970(span.record, "endTimeUnixNano", span.end)
    if end_ns < start_ns:
        raise span.record.error("endTimeUnixNano", f"at least the start, {start_ns}", end_ns)
    conversation = span.attributes.get("gen_ai.conversation.id")
    application_id = str(conversation or span.trace_id)
    if not application_id.strip():
        raise span.record.error("traceId", "a text that is not blank", span.trace_id)
    served = (
        _first_present_attribute(span, _INPUT)[1] is not None
        and _first_present_attribute(span, _OUTPUT)[1] is not None
    )
    user = span.attributes.get("user.id") or span.attributes.get("enduser.id")
    return InferenceSpan(
        application_id=application_id,
        application_class=_outermost_agent(span, by_id) or str(span.service or "trace"),
        tenant=str(user or "default"),
        start_ns=start_ns,
        end_ns=max(end_ns, start_ns + 1),
        input_tokens=_count(span, _INPUT, least=1) if served else 0,
        output_tokens=_count(span, _OUTPUT, least=0) if served else 0,
    )


def _outermost_agent(span: _TraceSpan, by_id: Mapping[tuple[str, str], _TraceSpan]) -> str | None:
    """Return the outermost agent around a span, with which the user interacts."""
    name, at = None, by_id.get((span.trace_id, span.span_id), span)
    for _ in range(_MAX_PARENTS):
        name = at.attributes.get("gen_ai.agent.name") or name
        parent = by_id.get((at.trace_id, at.parent_id))
        if parent is None:
            break
        at = parent
    return None if name is None else str(name)


def _spans_of(record: JsonRecord) -> Iterator[_TraceSpan]:
    groups = record.value("resourceSpans")
    if groups is None:
        resource = record.value("resource")
        yield _parse_span(record, record.fields, _span_attributes(record, resource))
        return
    for group in _checked_objects(record, "resourceSpans", groups):
        resource = _span_attributes(record, group.get("resource"))
        for scope in _checked_objects(record, "scopeSpans", group.get("scopeSpans", [])):
            for fields in _checked_objects(record, "spans", scope.get("spans", [])):
                yield _parse_span(record, fields, resource)


def _parse_span(
    record: JsonRecord, fields: Mapping[str, Any], resource: Mapping[str, Any]
) -> _TraceSpan:
    context = fields.get("context")
    ids = context if isinstance(context, dict) else fields
    return _TraceSpan(
        record=record,
        trace_id=str(ids.get("traceId") or ids.get("trace_id") or ""),
        span_id=str(ids.get("spanId") or ids.get("span_id") or ""),
        parent_id=str(fields.get("parentSpanId") or fields.get("parent_id") or ""),
        start=fields.get("startTimeUnixNano", fields.get("start_time")),
        end=fields.get("endTimeUnixNano", fields.get("end_time")),
        attributes=_span_attributes(record, fields),
        service=resource.get("service.name"),
    )


def _checked_objects(record: JsonRecord, name: str, value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise record.error(name, "a list of objects", value)
    return value


def _span_attributes(record: JsonRecord, holder: object) -> Mapping[str, Any]:
    """Return a span's attributes as a mapping, from a mapping or from OTLP's list of pairs."""
    attributes = holder.get("attributes") if isinstance(holder, dict) else None
    if attributes is None:
        return {}
    if isinstance(attributes, dict):
        return attributes
    return {
        str(pair.get("key")): _decode_otlp_value(pair.get("value"))
        for pair in _checked_objects(record, "attributes", attributes)
    }


def _decode_otlp_value(value: object) -> object:
    """Return the content of an OTLP value; 64-bit integers are encoded as texts."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    [(kind, held)] = value.items()
    return int(held) if kind == "intValue" and str(held).lstrip("-").isdecimal() else held


def _first_present_attribute(span: _TraceSpan, names: tuple[str, ...]) -> tuple[str, object]:
    """Return the first of several attributes that the span has.

    If it has none, the first name and None.
    """
    found = [(name, span.attributes[name]) for name in names if name in span.attributes]
    return found[0] if found else (names[0], None)


def _count(span: _TraceSpan, names: tuple[str, ...], *, least: int) -> int:
    name, value = _first_present_attribute(span, names)
    if type(value) is not int or value < least:
        raise span.record.error(name, f"a whole number >= {least}", value)
    return value


def _nanoseconds_since_1970(record: JsonRecord, name: str, value: object) -> int:
    """Return nanoseconds since 1970, from OTLP's number or the Python SDK's ISO text."""
    text = str(value)
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        since = datetime.fromisoformat(text).astimezone(UTC) - _EPOCH
    except (ValueError, OverflowError) as error:
        allowed = "nanoseconds since 1970 or an ISO 8601 instant"
        raise record.error(name, allowed, value) from error
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000


def import_trace(path: Path, options: SuiteOptions) -> tuple[list[WorkloadApplication], int]:
    """Return the applications of a trace, and the number of requests that have no output.

    There is at least one application. Applications are in order of arrival; the first arrives at 0.

    Args:
        path: CSV, or JSON lines of spans, which start with `{`.
        options: `count` keeps the first applications; `window_s` scales arrivals so that the last
            application arrives at its end, and leaves tool time unchanged.

    Raises:
        ConfigError: If the file is wrong, holds no request with output, or another option is set.
    """
    options.refuse_unsupported("a trace", ("count", "window_s"))
    if _is_json(path):
        spans = read_inference_spans(path)
        applications = _from_spans(span for span in spans if span.output_tokens > 0)
        without_output = sum(span.output_tokens == 0 for span in spans)
    else:
        rows = list(read_trace(path))
        applications = _from_rows(row for row in rows if row.output_tokens > 0)
        without_output = sum(row.output_tokens == 0 for row in rows)
    if not applications:
        raise ConfigError(
            f"{path}: must hold at least one request with output: a CSV row, or a span with"
            f" gen_ai.operation.name {', '.join(OPERATIONS)} and gen_ai.usage.*, holds none"
        )
    applications.sort(key=lambda application: application.arrived_at_s)
    return _shift_and_scale(applications[: options.count], options.window_s), without_output


def _is_json(path: Path) -> bool:
    texts = (line.lstrip() for _, line in numbered_lines(path))
    return next((text for text in texts if text), "").startswith("{")


def _shift_and_scale(
    applications: Sequence[WorkloadApplication], window_s: Seconds | None
) -> list[WorkloadApplication]:
    first_s, last_s = applications[0].arrived_at_s, applications[-1].arrived_at_s
    stretch = 1.0 if window_s is None or last_s == first_s else window_s / (last_s - first_s)
    return [
        replace(application, arrived_at_s=round((application.arrived_at_s - first_s) * stretch, 6))
        for application in applications
    ]


def _from_rows(rows: Iterable[TraceRow]) -> list[WorkloadApplication]:
    groups: dict[str, list[TraceRow]] = {}
    for number, row in enumerate(rows):
        own_id = f"request-{number}"
        groups.setdefault(row.application_id or own_id, []).append(row)
    return [_application_of_rows(name, group) for name, group in groups.items()]


def _application_of_rows(application_id: str, rows: Sequence[TraceRow]) -> WorkloadApplication:
    rows = sorted(rows, key=lambda row: row.arrival_s)
    first = rows[0]
    for row in rows:
        for name in ("client", "application_class"):
            if getattr(row, name) != getattr(first, name):
                raise ConfigError(
                    f"{row.where}: {name} must be the same for all of application"
                    f" {application_id!r}, {getattr(first, name)!r}, got {getattr(row, name)!r}"
                )
    return WorkloadApplication(
        application_id,
        first.application_class or APPLICATION_CLASS,
        first.arrival_s,
        tuple(
            WorkloadInference(
                str(number),
                row.input_tokens,
                row.output_tokens,
                delay_s=round(row.arrival_s - first.arrival_s, 6),
            )
            for number, row in enumerate(rows)
        ),
        tenant=first.client or "default",
    )


def _from_spans(spans: Iterable[InferenceSpan]) -> list[WorkloadApplication]:
    groups: dict[str, list[InferenceSpan]] = {}
    for span in spans:
        groups.setdefault(span.application_id, []).append(span)
    began_ns = min((span.start_ns for group in groups.values() for span in group), default=0)
    return [application_of_spans(name, group, began_ns) for name, group in groups.items()]


def application_of_spans(
    application_id: str, spans: Sequence[InferenceSpan], began_ns: int
) -> WorkloadApplication:
    """Return an application, each of whose calls waits for all calls that had ended before it.

    Args:
        application_id: Id of the application.
        spans: Calls of the application, at least one.
        began_ns: Time at which the workload begins.
    """
    spans = sorted(spans, key=lambda span: (span.start_ns, span.end_ns))
    by_end = sorted(range(len(spans)), key=lambda number: spans[number].end_ns)
    ends = [spans[number].end_ns for number in by_end]
    last_starts = list(accumulate((spans[number].start_ns for number in by_end), max))
    inferences = []
    for number, span in enumerate(spans):
        ended = bisect_right(ends, span.start_ns)
        if ended:
            # Earlier inferences are implied by later ones that waited for them.
            first = bisect_right(ends, last_starts[ended - 1])
            after, since_ns = sorted(by_end[first:ended]), ends[ended - 1]
        else:
            after, since_ns = [], spans[0].start_ns
        inferences.append(
            WorkloadInference(
                str(number),
                span.input_tokens,
                span.output_tokens,
                tuple(str(predecessor) for predecessor in after),
                round((span.start_ns - since_ns) / 1e9, 6),
            )
        )
    first_span = spans[0]
    return WorkloadApplication(
        application_id,
        first_span.application_class,
        (first_span.start_ns - began_ns) / 1e9,
        tuple(inferences),
        tenant=first_span.tenant,
    )
