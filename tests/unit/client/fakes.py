"""In-memory service, reached over httpx or over a handle that behaves like Ray Serve's."""

import asyncio
import contextvars
import json
from collections.abc import AsyncIterator, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx

SERVE_REQUEST_ID: contextvars.ContextVar[str] = contextvars.ContextVar("serve_request_id")
"""Context variable of the current request's id, which child calls inherit, as in Serve."""

Answer = tuple[int, dict[str, str], list[bytes]]


@dataclass
class ReceivedRequest:
    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class FakeService:
    """Fake service that answers every request, first with the answers queued by the test."""

    requests: list[ReceivedRequest] = field(default_factory=list)
    answers: dict[str, list[Answer | Exception]] = field(default_factory=dict)
    """Queued answers, or connection errors, by path."""
    deltas: tuple[str, ...] = ("Hel", "lo")
    models: tuple[str, ...] = ("tiny",)
    hold: str | None = None
    """Path of requests that get no answer until they are cancelled."""
    held: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    """Semaphore that is released once for each waiting request."""
    unfinished_streams: int = 0
    """Number of streams that their reader left before the end."""
    cancelled_calls: int = 0

    def requests_to(self, path: str) -> list[ReceivedRequest]:
        return [request for request in self.requests if request.path == path]

    async def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        """Answer as the ingress would, or with the queued answer."""
        content = json.loads(body) if body else {}
        self.requests.append(ReceivedRequest(method, path, headers, content))
        if self.answers.get(path):
            queued = self.answers[path].pop(0)
            if isinstance(queued, Exception):
                raise queued
            return queued
        if path == self.hold:
            self.held.release()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled_calls += 1
                raise
        return 200, {"Content-Type": "application/json"}, self._response_chunks(path, content)

    def _response_chunks(self, path: str, body: dict[str, Any]) -> list[bytes]:
        usage = {"prompt_tokens": 7, "completion_tokens": len(self.deltas)}
        if path == "/v1/models":
            return json_chunks({"data": [{"id": name} for name in self.models]})
        if path == "/v1/applications":
            return json_chunks(
                {
                    "application_id": body.get("application_id", "a/1"),
                    "predicted_kv_token_time": 1234,
                    "virtual_finish_time": 99.5,
                }
            )
        if body.get("stream"):
            events = [{"choices": [{"index": 0, "delta": {"content": d}}]} for d in self.deltas]
            return sse_chunks([*events, {"choices": [], "usage": usage}])
        text = "".join(self.deltas)
        choice = {"message": {"content": text}} if path.endswith("chat/completions") else {}
        choices = [{"index": 0, "text": text, "finish_reason": "length", **choice}]
        return json_chunks({"choices": choices, "usage": usage})

    def http_transport(self) -> httpx.MockTransport:
        async def handle_request(request: httpx.Request) -> httpx.Response:
            path = request.url.raw_path.decode()
            status, headers, chunks = await self.answer(
                request.method, path, dict(request.headers), request.content
            )
            return httpx.Response(status, headers=headers, stream=_ResponseBody(self, chunks))

        return httpx.MockTransport(handle_request)

    def serve_handle(self) -> "FakeHandle":
        return FakeHandle(self)


class _ResponseBody(httpx.AsyncByteStream):
    def __init__(self, service: FakeService, chunks: list[bytes]) -> None:
        self._service = service
        self._chunks = list(chunks)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._chunks:
            yield self._chunks.pop(0)

    async def aclose(self) -> None:
        self._service.unfinished_streams += bool(self._chunks)


class FakeHandle:
    """Fake Serve handle of the ingress; calls that share a context fail, since Serve may hang."""

    def __init__(self, service: FakeService, *, stream: bool = False) -> None:
        self._service = service
        self.responses: list[FakeResponse] = []
        setattr(self, "stream" if stream else "call", self)

    def options(self, *, stream: bool) -> "FakeHandle":
        options = FakeHandle(self._service, stream=stream)
        options.responses = self.responses
        return options

    def remote(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Any:
        assert SERVE_REQUEST_ID.get(None) is None, "the call inherited another request's id"
        SERVE_REQUEST_ID.set(path)
        response = FakeResponse(self._service, (method, path, headers, body))
        self.responses.append(response)
        return response


class FakeResponse:
    """Stand-in for Serve's `DeploymentResponse` and `DeploymentResponseGenerator`."""

    def __init__(
        self, service: FakeService, request: tuple[str, str, dict[str, str], bytes]
    ) -> None:
        self._service = service
        self._request = request
        self._items: list[Any] | None = None
        self.cancels = 0

    def __await__(self) -> Generator[Any, None, Any]:
        return self._whole_response().__await__()

    async def _whole_response(self) -> tuple[int, dict[str, str], bytes]:
        status, headers, chunks = await self._service.answer(*self._request)
        return status, headers, b"".join(chunks)

    def __aiter__(self) -> "FakeResponse":
        return self

    async def __anext__(self) -> Any:
        if self._items is None:
            status, headers, chunks = await self._service.answer(*self._request)
            self._items = [(status, headers), *chunks]
        if not self._items:
            raise StopAsyncIteration
        return self._items.pop(0)

    def cancel(self) -> None:
        self.cancels += 1
        self._service.unfinished_streams += bool(self._items)


def json_chunks(value: object) -> list[bytes]:
    return [json.dumps(value).encode()]


def sse_chunks(events: Iterable[object]) -> list[bytes]:
    """Return a server-sent event stream with a first comment and a final `[DONE]`."""
    lines = [f"data: {json.dumps(event)}\n\n".encode() for event in events]
    return [b": waiting\n\n", *lines, b"data: [DONE]\n\n"]


def error_answer(status: int, message: str, **more: str) -> Answer:
    headers = {"Retry-After": more.pop("retry_after")} if "retry_after" in more else {}
    return status, headers, json_chunks({"error": {"message": message, **more}})
