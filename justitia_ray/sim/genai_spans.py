"""OpenTelemetry GenAI spans as JSON lines: which inferences ran, when, and for which application.

A line is either OTLP JSON (`{"resourceSpans": …}`, what the collector's file exporter writes) or
one span: with OTLP's names, or with those of the Python SDK (`context`, `start_time`, a mapping of
attributes).

Names are those of the semantic conventions for generative AI, v1.41 (and, for tokens, those that
were renamed). An inference is a span whose `gen_ai.operation.name` is chat, text_completion or
generate_content; `gen_ai.usage.input_tokens` and `output_tokens` are its lengths. Spans of agents
and workflows, which may carry the sum of their inferences, are only read for the agent's name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from justitia_ray.workloads.json_lines import Record, read_records

OPERATIONS = ("chat", "text_completion", "generate_content")
_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_PARENTS = 1000
"""A chain of parents that is longer goes in a circle."""


@dataclass(frozen=True, slots=True)
class InferenceSpan:
    """One inference of a trace."""

    where: str
    """File and line, for messages."""
    application_id: str
    """The conversation, or the trace where no conversation is named."""
    application_class: str
    """The agent that it ran for, else the service, else `trace`."""
    tenant: str
    """The user named on the span, else `default`."""
    start_ns: int
    end_ns: int
    """At least 1 ns after the start."""
    input_tokens: int
    output_tokens: int
    """Both 0 if the span has no counts: the call failed, or was not counted."""


@dataclass(frozen=True, slots=True)
class _Span:
    record: Record
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
        ConfigError: If the file cannot be read, or an inference lacks its ids, times or counts;
            file, line, field, value and what is allowed are named.
    """
    spans = [span for record in read_records(path) for span in _spans(record)]
    by_id = {(span.trace_id, span.span_id): span for span in spans}
    return [_inference(span, by_id) for span in spans if _is_inference(span)]


def _is_inference(span: _Span) -> bool:
    return span.attributes.get("gen_ai.operation.name") in OPERATIONS


def _inference(span: _Span, by_id: Mapping[tuple[str, str], _Span]) -> InferenceSpan:
    start_ns = _instant(span.record, "startTimeUnixNano", span.start)
    end_ns = _instant(span.record, "endTimeUnixNano", span.end)
    if end_ns < start_ns:
        raise span.record.error("endTimeUnixNano", f"at least the start, {start_ns}", end_ns)
    conversation = span.attributes.get("gen_ai.conversation.id")
    application_id = str(conversation or span.trace_id)
    if not application_id.strip():
        raise span.record.error("traceId", "a text that is not blank", span.trace_id)
    served = _first(span, _INPUT)[1] is not None and _first(span, _OUTPUT)[1] is not None
    user = span.attributes.get("user.id") or span.attributes.get("enduser.id")
    return InferenceSpan(
        where=span.record.where,
        application_id=application_id,
        application_class=_agent(span, by_id) or str(span.service or "trace"),
        tenant=str(user or "default"),
        start_ns=start_ns,
        end_ns=max(end_ns, start_ns + 1),
        input_tokens=_count(span, _INPUT, least=1) if served else 0,
        output_tokens=_count(span, _OUTPUT, least=0) if served else 0,
    )


def _agent(span: _Span, by_id: Mapping[tuple[str, str], _Span]) -> str | None:
    """Return the outermost agent that the span is part of: the one a user talks to."""
    name, at = None, by_id.get((span.trace_id, span.span_id), span)
    for _ in range(_MAX_PARENTS):
        name = at.attributes.get("gen_ai.agent.name") or name
        parent = by_id.get((at.trace_id, at.parent_id))
        if parent is None:
            break
        at = parent
    return None if name is None else str(name)


def _spans(record: Record) -> Iterator[_Span]:
    groups = record.value("resourceSpans")
    if groups is None:
        resource = record.value("resource")
        yield _span(record, record.fields, _attributes(record, resource))
        return
    for group in _objects(record, "resourceSpans", groups):
        resource = _attributes(record, group.get("resource"))
        for scope in _objects(record, "scopeSpans", group.get("scopeSpans", [])):
            for fields in _objects(record, "spans", scope.get("spans", [])):
                yield _span(record, fields, resource)


def _span(record: Record, fields: Mapping[str, Any], resource: Mapping[str, Any]) -> _Span:
    context = fields.get("context")
    ids = context if isinstance(context, dict) else fields
    return _Span(
        record=record,
        trace_id=str(ids.get("traceId") or ids.get("trace_id") or ""),
        span_id=str(ids.get("spanId") or ids.get("span_id") or ""),
        parent_id=str(fields.get("parentSpanId") or fields.get("parent_id") or ""),
        start=fields.get("startTimeUnixNano", fields.get("start_time")),
        end=fields.get("endTimeUnixNano", fields.get("end_time")),
        attributes=_attributes(record, fields),
        service=resource.get("service.name"),
    )


def _objects(record: Record, name: str, value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise record.error(name, "a list of objects", value)
    return value


def _attributes(record: Record, holder: object) -> Mapping[str, Any]:
    """Return attributes as a mapping, whether they are one already or OTLP's list of pairs."""
    attributes = holder.get("attributes") if isinstance(holder, dict) else None
    if attributes is None:
        return {}
    if isinstance(attributes, dict):
        return attributes
    return {
        str(pair.get("key")): _value(pair.get("value"))
        for pair in _objects(record, "attributes", attributes)
    }


def _value(value: object) -> object:
    """Return what an OTLP value holds; 64-bit integers come as texts."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    [(kind, held)] = value.items()
    return int(held) if kind == "intValue" and str(held).lstrip("-").isdecimal() else held


def _first(span: _Span, names: tuple[str, ...]) -> tuple[str, object]:
    """Return the first of some attributes that the span has, or the first name and None."""
    found = [(name, span.attributes[name]) for name in names if name in span.attributes]
    return found[0] if found else (names[0], None)


def _count(span: _Span, names: tuple[str, ...], *, least: int) -> int:
    name, value = _first(span, names)
    if type(value) is not int or value < least:
        raise span.record.error(name, f"a whole number >= {least}", value)
    return value


def _instant(record: Record, name: str, value: object) -> int:
    """Return nanoseconds since 1970, of OTLP's number or the Python SDK's ISO text."""
    text = str(value)
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        since = datetime.fromisoformat(text).astimezone(UTC) - _EPOCH
    except (ValueError, OverflowError) as error:
        allowed = "nanoseconds since 1970 or an ISO 8601 instant"
        raise record.error(name, allowed, value) from error
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000
