"""HTTP service that records the requests it receives."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

Answer = tuple[int, dict[str, Any] | bytes]
Sent = tuple[str, str, Any]
"""Method, path and body of a request."""


@contextmanager
def recording_service(
    answer: Answer | Callable[[str, str, Any], Answer], sent: list[Sent] | None = None
) -> Iterator[str]:
    """Run an HTTP server with a fixed or computed answer, record the requests, and yield its URL.

    An answer of bytes is sent as it is, any other as JSON. Every request is appended to `sent`.
    """

    class RecordingHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length") or 0))
            request = (self.command, self.path, json.loads(content) if content else None)
            if sent is not None:
                sent.append(request)
            status, body = answer(*request) if callable(answer) else answer
            told = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(told)))
            self.end_headers()
            self.wfile.write(told)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), RecordingHandler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
