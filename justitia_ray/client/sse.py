"""Server-sent events, as the OpenAI API streams them: chunks in, JSON objects out."""

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

from justitia_ray.client.answers import stream_error
from justitia_ray.errors import ResponseError

_LINE_END = re.compile(rb"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event."""

    event: str
    """Its name, `message` unless the service gave one."""
    data: str
    """Its data lines, joined by newlines."""


class SseDecoder:
    """An incremental parser of the WHATWG event stream format.

    Chunks may be cut anywhere, inside a line end or a UTF-8 character too. Comments, `id` and
    `retry` are ignored; an event without its closing blank line is never returned.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._after_carriage_return = False
        self._event = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Take the next bytes and return the events that they complete, in order."""
        if not chunk:
            return []
        if self._after_carriage_return:
            chunk = chunk.removeprefix(b"\n")
        self._after_carriage_return = chunk.endswith(b"\r")
        *lines, self._rest = _LINE_END.split(self._rest + chunk)
        events = (self._line(line.decode("utf-8", "replace")) for line in lines)
        return [event for event in events if event is not None]

    def _line(self, line: str) -> ServerSentEvent | None:
        if line:
            name, _, value = line.partition(":")  # a comment has the empty name
            if name == "data":
                self._data.append(value.removeprefix(" "))
            elif name == "event":
                self._event = value.removeprefix(" ")
            return None
        event, data = self._event or "message", self._data
        self._event, self._data = "", []
        return ServerSentEvent(event, "\n".join(data)) if data else None


async def json_events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[dict[str, Any]]:
    """Yield the JSON object of each event until `[DONE]`.

    What follows `[DONE]` is read and dropped, so that the service sees its stream taken to the end
    and not a caller that left.

    Raises:
        ResponseError: If an event is an error, or not a JSON object.
        ConnectionError: If the chunks end before `[DONE]`.
    """
    decoder, done = SseDecoder(), False
    async for chunk in chunks:
        for event in decoder.feed(chunk):
            done = done or event.data == "[DONE]"
            if not done:
                yield _payload(event)
    if not done:
        raise ConnectionError("the stream ended before [DONE]")


def _payload(event: ServerSentEvent) -> dict[str, Any]:
    try:
        payload = json.loads(event.data)
    except ValueError:
        payload = None
    if event.event == "error" or (isinstance(payload, dict) and payload.get("error")):
        raise stream_error(payload)
    if not isinstance(payload, dict):
        raise ResponseError(200, "an event of the stream is not a JSON object")
    return payload
