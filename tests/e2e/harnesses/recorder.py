"""Proxy between a client and the service that records requests and answers."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Any

import aiohttp
from aiohttp import web

from tests.harness.local_app import serve_locally

_HOP_BY_HOP = frozenset(
    {"connection", "content-length", "host", "keep-alive", "te", "transfer-encoding", "upgrade"}
)


@dataclass(slots=True)
class RecordedCall:
    """An HTTP call of a client and the service's answer, as a test proxy recorded them."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    status: int = 0
    """HTTP status; 0 if the client disconnected before an answer."""
    answer_headers: Mapping[str, str] = field(default_factory=dict)
    answer: bytes = b""
    pieces: int = 0
    """Number of network chunks in which the answer came."""
    is_whole: bool = False
    """Whether the answer ended before the client disconnected."""
    begun_at: float = field(default_factory=time.monotonic)
    ended_at: float = inf

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of the request body; empty if the body is no JSON object."""
        try:
            read = json.loads(self.body)
        except ValueError:
            return {}
        return read if isinstance(read, dict) else {}

    @property
    def events(self) -> list[dict[str, Any]]:
        """Complete server-sent events of the answer so far."""
        whole = self.answer.rpartition(b"\n\n")[0]
        lines = (line.removeprefix(b"data: ") for line in whole.splitlines())
        return [json.loads(line) for line in lines if line.startswith(b"{")]

    @property
    def said(self) -> str:
        texts: list[str] = []
        for event in self.events:
            delta = event.get("delta")
            if event.get("type") == "response.output_text.delta":
                texts.append(str(delta))
            elif isinstance(delta, dict):
                texts.append(delta.get("text") or "")
            texts += (one["delta"].get("content") or "" for one in event.get("choices") or ())
        return "".join(texts)

    @property
    def application(self) -> str | None:
        """Application to which the service assigned the call."""
        return self.answer_headers.get("x-justitia-application")

    @property
    def is_inference(self) -> bool:
        """Whether the call goes to an endpoint that generates text."""
        path = self.path.partition("?")[0]
        return self.method == "POST" and path in (
            "/v1/chat/completions",
            "/v1/messages",
            "/v1/responses",
        )


class Recorder:
    """HTTP proxy that forwards calls and records them in the order of arrival."""

    def __init__(self, service: str) -> None:
        self._service = service
        self.exchanges: list[RecordedCall] = []
        self.url = ""

    @property
    def inferences(self) -> list[RecordedCall]:
        """Recorded calls of endpoints that generate text."""
        return [one for one in self.exchanges if one.is_inference]

    @asynccontextmanager
    async def recording(self) -> AsyncIterator[None]:
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._forward_call)
        timeout = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as self._session,
            serve_locally(app, handler_cancellation=True) as self.url,
        ):
            yield

    async def _forward_call(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        exchange = RecordedCall(request.method, request.path_qs, headers, await request.read())
        self.exchanges.append(exchange)
        passed = {name: value for name, value in headers.items() if name not in _HOP_BY_HOP}
        passed["accept-encoding"] = "identity"
        answer = web.StreamResponse()
        async with self._session.request(
            request.method, self._service + request.path_qs, headers=passed, data=exchange.body
        ) as answered:
            exchange.status = answered.status
            exchange.answer_headers = {
                name.lower(): value for name, value in answered.headers.items()
            }
            answer.set_status(answered.status)
            for name, value in answered.headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    answer.headers[name] = value
            try:
                await answer.prepare(request)
                async for chunk in answered.content.iter_any():
                    exchange.answer += chunk
                    exchange.pieces += 1
                    await answer.write(chunk)
                exchange.is_whole = True
                await answer.write_eof()
            except ConnectionError:  # Some clients disconnect after the end of an answer.
                answered.close()
            except asyncio.CancelledError:
                answered.close()
                raise
            finally:
                exchange.ended_at = time.monotonic()
        return answer
