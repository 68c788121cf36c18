"""Export spans with OTLP over HTTP, through OpenTelemetry's SDK, from a separate thread.

Calls never wait for the collector: spans that it does not accept in time are dropped.
"""

import asyncio
import logging
import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from justitia_ray import __version__
from justitia_ray.config import SharedSections, TracingSection
from justitia_ray.errors import ConfigError
from justitia_ray.observability.call_traces import Span
from justitia_ray.observability.log_events import log_event
from justitia_ray.observability.trace_context import TraceContext
from justitia_ray.units import Seconds

logger = logging.getLogger("ray.serve")

_LAST_EXPORT_S: Seconds = 5.0
"""Maximum seconds of waiting for the span collector when the process ends."""


class SpanExporter:
    """Passes spans to OpenTelemetry's SDK, which sends them to a collector in batches.

    Args:
        section: Tracing settings with an endpoint.
        name: `name` of the arguments.
        process: Kind of the process.
        process_id: Serve's id of the process.

    Raises:
        ConfigError: If the headers for the collector cannot be read.
    """

    def __init__(self, section: TracingSection, name: str, process: str, process_id: str) -> None:
        check_otel_is_installed()
        from opentelemetry import trace
        from opentelemetry.context import Context
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        class GivenIds(RandomIdGenerator):
            """Id generator of OpenTelemetry that returns the exported span's own ids."""

            given = TraceContext(1, 1, is_sampled=True)

            def generate_trace_id(self) -> int:
                return self.given.trace_id

            def generate_span_id(self) -> int:
                return self.given.span_id

        self._ids = GivenIds()
        self._trace, self._no_parent = trace, Context()
        # This provider is separate, because vLLM and perhaps Ray Serve set the global one.
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create(
                {
                    "service.name": name,
                    "service.namespace": "justitia",
                    "service.version": __version__,
                    "service.instance.id": process_id,
                    "justitia.process": process,
                }
            ),
            shutdown_on_exit=False,
            id_generator=self._ids,
        )
        exporter = OTLPSpanExporter(section.endpoint, headers=read_headers(section))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("justitia_ray", __version__)

    def export(self, span: Span) -> None:
        """Export a span that has ended; returns at once."""
        trace = self._trace
        self._ids.given = span.context
        context = self._no_parent
        if span.parent is not None:
            parent = trace.NonRecordingSpan(self._span_context(span.parent))
            context = trace.set_span_in_context(parent, self._no_parent)
        exported = self._tracer.start_span(
            span.name,
            context,
            trace.SpanKind[span.kind.upper()],
            span.attributes,
            [trace.Link(self._span_context(link)) for link in span.links],
            span.started_ns,
        )
        if span.error is not None:
            exported.set_status(trace.StatusCode.ERROR)
        exported.end(span.ended_ns)

    async def stop(self) -> None:
        """Export the remaining spans, in bounded time, and end the exporting thread."""
        try:
            await asyncio.wait_for(asyncio.to_thread(self._provider.shutdown), _LAST_EXPORT_S)
        except TimeoutError:
            log_event(logger, logging.WARNING, "tracing.not_exported")

    def _span_context(self, context: TraceContext) -> Any:
        trace = self._trace
        flags = trace.TraceFlags(trace.TraceFlags.SAMPLED * context.is_sampled)
        return trace.SpanContext(context.trace_id, context.span_id, True, flags)


def start_span_exporter(
    settings: SharedSections, process: str, process_id: str
) -> SpanExporter | None:
    """Return the running span exporter of a process; None if tracing is off.

    Raises:
        ConfigError: Like `SpanExporter`.
    """
    if settings.tracing.endpoint is None:
        return None
    return SpanExporter(settings.tracing, settings.name, process, process_id)


def check_otel_is_installed() -> None:
    """Raise ConfigError unless OpenTelemetry is installed to export spans.

    Raises:
        ConfigError: If the extra `otel` is not installed.
    """
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"tracing.endpoint: {error.name} is not installed; the extra `otel` has it:"
            " pip install 'justitia-ray[otel]'"
        ) from error


def read_headers(section: TracingSection) -> dict[str, str]:
    """Return the headers for the span collector; percent-encoded values are decoded.

    Raises:
        ConfigError: If the variable is not set, the file cannot be read, or a header is malformed.
    """
    headers: dict[str, str] = {}
    if section.headers_env is not None:
        where = f"tracing.headers_env: {section.headers_env}"
        text = os.environ.get(section.headers_env)
        if text is None:
            raise ConfigError(f"{where} is not set on this node")
        headers |= _parse_headers(text.split(","), where)
    if section.headers_file is not None:
        where = f"tracing.headers_file: {section.headers_file}"
        try:
            text = Path(section.headers_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{where} cannot be read: {error}") from error
        headers |= _parse_headers(text.splitlines(), where)
    return headers


def _parse_headers(pairs: list[str], where: str) -> dict[str, str]:
    headers = {}
    for number, pair in enumerate(pairs, 1):
        if not pair.strip():
            continue
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            # The header is not shown, because it may be a secret.
            raise ConfigError(f"{where}: header {number} is none; name=value is allowed")
        headers[name.strip().lower()] = unquote(value.strip())
    return headers
