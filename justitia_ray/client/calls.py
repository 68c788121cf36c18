"""JSON calls over a transport with safe retries, their answers, and event streams."""

import asyncio
import json
import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import Any, TypeVar
from urllib.parse import quote

from justitia_ray.client.transport import Response, ServiceUnreachable, StreamedResponse, Transport
from justitia_ray.errors import ConfigError, ResponseError
from justitia_ray.protocol.endpoints import RETRY_COUNT_HEADER
from justitia_ray.protocol.rate_limits import read_limits
from justitia_ray.protocol.refusals import (
    DROPPED_REASON_HEADER,
    LONGEST_RETRY_S,
    RETRY_AFTER_HEADER,
    RETRY_AFTER_MS_HEADER,
    SHOULD_RETRY_HEADER,
)
from justitia_ray.units import Seconds, Tokens

T = TypeVar("T")

Sleep = Callable[[Seconds], Awaitable[None]]

_NOT_TAKEN = frozenset({429, 503})
"""HTTP statuses of requests that the service has not started, because its queue is full or it has
no replicas.
"""
_FIRST_BACKOFF_S = 0.5
"""Seconds before the first retry, doubled with each retry; a proxy restarts in this time."""
_EXCERPT_CHARS = 200
"""Maximum number of characters that are quoted from an error page in an unknown format."""
_LINE_END = re.compile(rb"\r\n|\r|\n")


def path_for_model(path: str, model: str | None) -> str:
    """Add the model, if given, to a path as a query parameter."""
    return path if model is None else f"{path}?model={quote(model, safe='')}"


@dataclass(frozen=True, slots=True)
class Completion:
    """The service's answer to an inference."""

    text: str
    """Text of the answer's first choice; empty if the model called a tool instead."""
    choices: tuple[str, ...]
    """Texts of all choices of an answer, in the order of their indices."""
    prompt_tokens: Tokens
    output_tokens: Tokens
    """Number of generated tokens, over all choices."""
    finish_reason: str | None
    """Why the first choice ended, as OpenAI's `finish_reason`: `stop`, `length`, `tool_calls`."""
    raw: Mapping[str, Any]
    """The engine's whole JSON answer, parsed."""


def is_success(status: int) -> bool:
    return 200 <= status < 300


def json_object(response: Response) -> dict[str, Any]:
    """Return the JSON object in the body of a successful answer.

    Raises:
        ResponseError: If the status is an error, or the body is not a JSON object.
    """
    if not is_success(response.status):
        raise response_error(response.status, response.headers, response.body)
    try:
        answer = json.loads(response.body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ResponseError(response.status, "the answer is not a JSON object")
    return answer


def completion(answer: Mapping[str, Any]) -> Completion:
    """Parse the JSON answer of `/v1/chat/completions` or `/v1/completions`.

    Raises:
        ResponseError: If the answer has no choices or no usage.
    """
    try:
        choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
        texts = tuple(
            (choice["message"]["content"] if "message" in choice else choice["text"]) or ""
            for choice in choices
        )
        usage = answer["usage"]
        return Completion(
            text=texts[0],
            choices=texts,
            prompt_tokens=int(usage["prompt_tokens"]),
            output_tokens=int(usage.get("completion_tokens") or 0),
            finish_reason=choices[0].get("finish_reason"),
            raw=answer,
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ResponseError(
            200, f"the answer is not a completion: {type(error).__name__}: {error}"
        ) from error


def response_error(status: int, headers: Mapping[str, str], body: bytes) -> ResponseError:
    """Return the exception for an HTTP error answer; an unknown form of body is quoted in part."""
    try:
        error = json.loads(body)["error"]
        message, code = str(error["message"]), error.get("code")
    except (ValueError, KeyError, TypeError, AttributeError):
        message = body[:_EXCERPT_CHARS].decode("utf-8", "replace") or "no message"
        code = None
    limits = read_limits(headers)
    should_retry = headers.get(SHOULD_RETRY_HEADER)
    return ResponseError(
        status,
        message,
        code if isinstance(code, str) else None,
        _retry_after_s(headers),
        headers.get(DROPPED_REASON_HEADER),
        asdict(limits[0]) if limits and limits[0].remaining < 1 else None,
        None if should_retry not in ("true", "false") else should_retry == "true",
    )


def stream_error(payload: object) -> ResponseError:
    """Return the exception for an error event within a stream, whose HTTP status was 200.

    In `code`, vLLM gives the status that the error would have had; without `code`, 500 is assumed.
    """
    error = payload.get("error", payload) if isinstance(payload, dict) else None
    if not isinstance(error, dict):
        return ResponseError(500, "the stream ended with an error")
    code = error.get("code")
    return ResponseError(
        code if isinstance(code, int) and 400 <= code <= 599 else 500,
        str(error.get("message") or "the stream ended with an error"),
        code if isinstance(code, str) else None,
    )


def _retry_after_s(headers: Mapping[str, str]) -> Seconds | None:
    """Return the seconds to wait before a retry, from `retry-after-ms` or `Retry-After`."""
    wait_ms = _parse_seconds(headers.get(RETRY_AFTER_MS_HEADER))
    return (
        wait_ms / 1_000 if wait_ms is not None else _parse_seconds(headers.get(RETRY_AFTER_HEADER))
    )


def _parse_seconds(value: str | None) -> Seconds | None:
    """Parse a number of seconds in a header; None if it is missing, a date, or negative."""
    try:
        seconds = float(value or "")
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    event: str
    """Name of a server-sent event; `message` by default."""
    data: str
    """Data lines of a server-sent event, joined by newlines."""


class SseDecoder:
    """Incremental parser of server-sent events (WHATWG event stream format).

    Chunks may be split anywhere, even inside a line end or a UTF-8 character. Comments, `id` and
    `retry` are ignored; an event is returned only after its closing blank line.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._after_carriage_return = False
        self._event = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Parse the next bytes of a stream and return the events that are now complete."""
        if not chunk:
            return []
        if self._after_carriage_return:
            chunk = chunk.removeprefix(b"\n")
        self._after_carriage_return = chunk.endswith(b"\r")
        *lines, self._rest = _LINE_END.split(self._rest + chunk)
        events = (self._parse_line(line.decode("utf-8", "replace")) for line in lines)
        return [event for event in events if event is not None]

    def _parse_line(self, line: str) -> ServerSentEvent | None:
        if line:
            name, _, value = line.partition(":")  # a comment has an empty name
            if name == "data":
                self._data.append(value.removeprefix(" "))
            elif name == "event":
                self._event = value.removeprefix(" ")
            return None
        event, data = self._event or "message", self._data
        self._event, self._data = "", []
        return ServerSentEvent(event, "\n".join(data)) if data else None


async def json_events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[dict[str, Any]]:
    """Yield the JSON object of each server-sent event until `[DONE]`.

    Data after `[DONE]` are read and dropped, so that the service does not assume that the caller
    has disconnected.

    Raises:
        ResponseError: If an event is an error, or not a JSON object.
        ConnectionError: If the stream ends before `[DONE]`.
    """
    decoder, done = SseDecoder(), False
    async for chunk in chunks:
        for event in decoder.feed(chunk):
            done = done or event.data == "[DONE]"
            if not done:
                yield _parse_payload(event)
    if not done:
        raise ConnectionError("the stream ended before [DONE]")


def _parse_payload(event: ServerSentEvent) -> dict[str, Any]:
    try:
        payload = json.loads(event.data)
    except ValueError:
        payload = None
    if event.event == "error" or (isinstance(payload, dict) and payload.get("error")):
        raise stream_error(payload)
    if not isinstance(payload, dict):
        raise ResponseError(200, "an event of the stream is not a JSON object")
    return payload


class JsonCalls:
    """Sends JSON requests over a transport, with retries.

    A call is retried only if the service cannot have started it: the connection failed, or it
    answered 429 or 503 without `x-should-retry: false`. Requested waits are obeyed up to two
    minutes; a longer wait is reported to the caller as an error. A call is not retried once its
    stream has started.

    Args:
        transport: Connection to the service.
        max_retries: Maximum number of retries of one call.
        sleep: Waits the given number of seconds; replaced in tests.

    Raises:
        ConfigError: If `max_retries` is negative.
    """

    def __init__(
        self, transport: Transport, *, max_retries: int = 2, sleep: Sleep = asyncio.sleep
    ) -> None:
        if max_retries < 0:
            raise ConfigError(f"max_retries must be >= 0, got {max_retries}")
        self._transport = transport
        self._max_retries = max_retries
        self._sleep = sleep

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Send a JSON request and return the JSON object of the answer.

        Raises:
            ResponseError: If the service answered with an error.
            ConnectionError: If the service did not answer.
        """
        head, payload = _encode_json(body, headers)

        async def attempt(repeats: int) -> dict[str, Any]:
            sent = _with_retry_count(head, repeats)
            return json_object(await self._transport.request(method, path, sent, payload))

        return await self._call_with_retries(attempt)

    async def events(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[dict[str, Any]]:
        """Post a JSON request and yield the JSON objects of the streamed answer.

        Closing the generator early cancels the call in the service.

        Raises:
            ResponseError: If the service answered, or ended the stream, with an error.
            ConnectionError: If the service did not answer, or the stream broke off.
        """
        head, payload = _encode_json(body, headers)

        async def attempt(repeats: int) -> tuple[AsyncExitStack, StreamedResponse]:
            async with AsyncExitStack() as stack:
                streamed = await stack.enter_async_context(
                    self._transport.stream("POST", path, _with_retry_count(head, repeats), payload)
                )
                if not is_success(streamed.status):
                    error = b"".join([chunk async for chunk in streamed.chunks])
                    raise response_error(streamed.status, streamed.headers, error)
                return stack.pop_all(), streamed

        opened, streamed = await self._call_with_retries(attempt)
        async with opened:
            async for event in json_events(streamed.chunks):
                yield event

    async def _call_with_retries(self, attempt: Callable[[int], Awaitable[T]]) -> T:
        """Repeat a request until it succeeds, or until its error must not be retried."""
        for repeats in range(self._max_retries):
            wait_s = _FIRST_BACKOFF_S * 2**repeats
            try:
                return await attempt(repeats)
            except ServiceUnreachable:
                pass
            except ResponseError as error:
                if error.retry_after_s is not None:
                    wait_s = error.retry_after_s
                is_taken = error.status not in _NOT_TAKEN
                if is_taken or error.should_retry is False or wait_s > LONGEST_RETRY_S:
                    raise
            await self._sleep(wait_s)
        return await attempt(self._max_retries)


def _with_retry_count(headers: Mapping[str, str], repeats: int) -> dict[str, str]:
    """Add the number of earlier attempts to the headers, because the service prefers retries."""
    return {**headers, RETRY_COUNT_HEADER: str(repeats)}


def _encode_json(
    body: Mapping[str, Any] | None, headers: Mapping[str, str] | None
) -> tuple[dict[str, str], bytes]:
    if body is None:
        return dict(headers or {}), b""
    payload = json.dumps(body, allow_nan=False).encode()
    return {"content-type": "application/json", **(headers or {})}, payload
