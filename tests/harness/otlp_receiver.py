"""OTLP collector over HTTP that keeps the spans it receives for tests."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

_TYPE = "application/x-protobuf"


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """Trace span that the OpenTelemetry receiver has received."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    """Id of the parent span; empty for a root."""
    links: tuple[tuple[str, str], ...]
    """(trace id, span id) of each linked span."""
    attributes: dict[str, Any]
    resource: dict[str, Any]
    is_error: bool
    started_ns: int
    ended_ns: int


@dataclass(slots=True)
class OtlpReceiver:
    """OpenTelemetry requests and spans received so far."""

    url: str
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    """Headers of each request, with lower-case names."""

    def spans(self, **attributes: Any) -> list[ReceivedSpan]:
        """Return the spans with the given attributes; `__` in a keyword stands for a dot."""
        wanted = {name.replace("__", "."): value for name, value in attributes.items()}
        return [
            span
            for body in list(self.bodies)
            for span in _parse_spans(body)
            if wanted.items() <= span.attributes.items()
        ]

    def trace(self, trace_id: str) -> list[ReceivedSpan]:
        return [span for span in self.spans() if span.trace_id == trace_id]


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """Run an OpenTelemetry receiver on this machine for the length of a `with` block."""
    received = OtlpReceiver("")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            is_right = self.path == "/v1/traces" and self.headers["content-type"] == _TYPE
            if is_right:
                received.headers.append({k.lower(): v for k, v in self.headers.items()})
                received.bodies.append(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200 if is_right else 404)
            self.send_header("content-type", _TYPE)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        received.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield received
        finally:
            server.shutdown()
            thread.join()


def _parse_spans(body: bytes) -> Iterator[ReceivedSpan]:
    for group in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = _attribute_values(group.resource.attributes)
        for scope in group.scope_spans:
            for span in scope.spans:
                yield ReceivedSpan(
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
                    _attribute_values(span.attributes),
                    resource,
                    span.status.code == span.status.STATUS_CODE_ERROR,
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                )


def _attribute_values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
