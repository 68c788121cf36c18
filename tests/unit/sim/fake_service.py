"""In-memory service that takes 1 s to the first token and 0.5 s per further token."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

Json = dict[str, Any]

MODEL = {"id": "tiny", "max_model_len": 1000}


@dataclass
class FakeService:
    """Service that answers as an ingress does; its fields select the failures."""

    requests: list[tuple[float, str, str, Json]] = field(default_factory=list)
    """Instant, method, path and body of each request, in order."""
    raw: list[httpx.Request] = field(default_factory=list)
    ready: tuple[int, Json] = (200, {"status": "ready", "reason": None})
    models: list[Json] = field(default_factory=lambda: [MODEL])
    status: Json = field(
        default_factory=lambda: {
            "policy": "justitia",
            "settings": {"admission": "peak"},
            "applications": 0,
            "replicas": {"r1": {"kv_tokens": 800}, "r2": {"kv_tokens": 500}},
            "kv": {"used_token_s": 10.0, "capacity_token_s": 100.0, "preemptions": 2},
        }
    )
    later: Json = field(default_factory=dict)
    """Fields that replace those of `status` from the second request on."""
    known: Json = field(default_factory=dict)
    """Further fields in the answer of `GET /v1/applications/{id}`."""
    refused: set[str] = field(default_factory=set)
    """Ids of applications whose opening is refused."""
    streams: dict[int, str] = field(default_factory=dict)
    """Kind of failure of a stream, by the `max_tokens` of its call."""
    asked_status: int = 0

    def network(self) -> httpx.MockTransport:
        """Return the service as an httpx transport."""
        return httpx.MockTransport(self._handle_request)

    def requests_to(self, path: str) -> list[tuple[float, str, Json]]:
        """Return seconds since the first request, method and body of the requests to a path."""
        began = self.requests[0][0]
        return [(at - began, method, body) for at, method, p, body in self.requests if p == path]

    async def _handle_request(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else {}
        path = request.url.path
        now = asyncio.get_running_loop().time()
        self.requests.append((now, request.method, path, body))
        self.raw.append(request)
        if path == "/v1/completions":
            return self._answer_stream(body)
        status, answer = self._answer_json(request.method, path, body)
        return httpx.Response(status, json=answer)

    def _answer_json(self, method: str, path: str, body: Json) -> tuple[int, Json]:
        if path == "/readyz":
            return self.ready
        if path == "/v1/models":
            return 200, {"data": self.models}
        if path == "/v1/status":
            self.asked_status += 1
            return 200, self.status | (self.later if self.asked_status > 1 else {})
        if path == "/v1/applications":
            if body["application_id"] in self.refused:
                return 400, {"error": {"message": "no such weight"}}
            tags = {"predicted_kv_token_time": 70.0, "virtual_finish_time": 7.5}
            return 200, {"application_id": body["application_id"], **tags}
        return 200, self.known if method == "GET" else {"closed": True}

    def _answer_stream(self, body: Json) -> httpx.Response:
        trouble = self.streams.get(body["max_tokens"])
        if trouble == "error":
            return httpx.Response(500, json={"error": {"message": "broken"}})
        return httpx.Response(200, stream=_Stream(lambda: _stream_events(body, trouble)))


class _Stream(httpx.AsyncByteStream):
    def __init__(self, events: Callable[[], AsyncIterator[bytes]]) -> None:
        self._events = events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for event in self._events():
            yield event


async def _stream_events(body: Json, trouble: str | None) -> AsyncIterator[bytes]:
    yield b": waiting\n\n"
    yield _sse_event({"choices": []})
    if trouble == "silent":
        await asyncio.Event().wait()
    for number in range(body["max_tokens"]):
        await asyncio.sleep(0.5 if number else 1.0)
        yield _sse_event({"choices": [{"index": 0, "text": "w "}]})
        if trouble == "cut":
            return
        if trouble == "event":
            yield _sse_event({"error": {"message": "the replica was lost", "code": 502}})
    if trouble != "no usage":
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        yield _sse_event({"choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


def _sse_event(value: Json) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()
