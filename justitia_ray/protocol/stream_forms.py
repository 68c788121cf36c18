"""Events that the service inserts into an engine's stream, in the form of each API.

An engine's events are passed through. While a stream is silent, its caller receives keepalives; if
the stream fails after its head, an error event. The events of a Responses stream have numbers and
contain the response's id, so the engine's events are renumbered after the first inserted event.
"""

import json
import re
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from functools import cached_property
from typing import Any

from justitia_ray.errors import JustitiaError
from justitia_ray.protocol.errors import anthropic_error, error_body, status_of
from justitia_ray.protocol.generation_bodies import CHAT, MESSAGES, RESPONSES


class Keepalive(StrEnum):
    """Form of keepalives in a silent stream."""

    EVENT = "event"
    """Keepalive event of the API (`ping`, `response.queued`, `keepalive`); a comment where the API
    has none.
    """
    CHUNK = "chunk"
    """Keepalive as an event on every API; where the API has no keepalive event, a chunk without
    text.
    """
    COMMENT = "comment"
    """Keepalive as a comment of server-sent events, which clients ignore."""
    NONE = "none"


_REPEATED: dict[str, Any] = {
    "model": "",
    "instructions": None,
    "metadata": None,
    "parallel_tool_calls": True,
    "temperature": None,
    "top_p": None,
    "max_output_tokens": None,
    "tool_choice": "auto",
    "tools": [],
}
"""Request fields that a response repeats, with their default values."""


class StreamForm:
    """Changes the events of a stream for its caller; base class for the forms of APIs.

    Args:
        path: Path of the endpoint.
        payload: The call's body.
        clock: Seconds since 1970.
    """

    def __init__(self, path: str, payload: bytes, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._payload = payload
        self._clock = clock
        self._last = b""
        """Last chunk with text that was sent to the caller."""

    @cached_property
    def _repeated_fields(self) -> dict[str, Any]:
        """Request fields that the response repeats; parsed when first needed."""
        try:
            fields = json.loads(self._payload)
        except ValueError:
            fields = {}
        told = {name: fields.get(name) for name in _REPEATED}
        return {name: _REPEATED[name] if told[name] is None else told[name] for name in told}

    @property
    def is_between_events(self) -> bool:
        """Whether the last chunk ended an event, so that another event can be inserted."""
        return not self._last or self._last.endswith(b"\n\n")

    def passed(self, chunk: bytes) -> bytes:
        """Return an engine's chunk in the form in which the caller gets it."""
        self._last = chunk
        return chunk

    def keepalive(self, kind: Keepalive, comment: bytes, *, is_news: bool = False) -> bytes:
        """Return a keepalive for a silent stream.

        Args:
            kind: Form of the keepalive.
            comment: Comment to send, in the form of server-sent events.
            is_news: Whether the comment carries information, so that the comment is sent beside an
                event.
        """
        if kind is Keepalive.COMMENT:
            return comment
        event = self._keepalive_event(kind)
        if kind is Keepalive.CHUNK or not is_news:
            return event or comment
        return comment + event

    def failure(self, error: JustitiaError) -> bytes:
        """Return the event that ends a stream after an error."""
        return self.refusal(status_of(error)[0], error_body(error)["error"])

    def refusal(self, status: int, error: dict[str, Any]) -> bytes:
        """Return the event that ends a stream if the engine answered its call with an error.

        Args:
            status: HTTP status of the answer.
            error: Error object in the form of OpenAI's API.
        """
        return b"data: " + json.dumps({"error": error}).encode() + b"\n\n"

    def _keepalive_event(self, kind: Keepalive) -> bytes:
        return b""


_CHUNK_START = re.compile(
    rb'^data: \{"id": ?"([^"\\]*)", ?"object": ?"[^"]*", ?"created": ?(\d+)', re.M
)


class ChunkForm(StreamForm):
    """Stream form of chats and completions: no event types; a keepalive is a chunk without text."""

    def __init__(self, path: str, payload: bytes, clock: Callable[[], float] = time.time) -> None:
        super().__init__(path, payload, clock)
        self._start: tuple[bytes, bytes] | None = None
        """Id and creation time of chunks that were inserted before the engine's first chunk."""

    def passed(self, chunk: bytes) -> bytes:
        """Return an engine's chunk with the response id and time that the caller saw before."""
        if self._start is not None:
            chunk = _CHUNK_START.sub(self._with_sent_start, chunk)
        self._last = chunk
        return chunk

    def _with_sent_start(self, found: re.Match[bytes]) -> bytes:
        assert self._start is not None
        text, at = found[0], found.start()
        (name_from, name_to), (time_from, _) = found.span(1), found.span(2)
        name, created = self._start
        return text[: name_from - at] + name + text[name_to - at : time_from - at] + created

    def _keepalive_event(self, kind: Keepalive) -> bytes:
        if kind is not Keepalive.CHUNK:
            return b""
        found = _CHUNK_START.search(self._last)
        if found is not None:
            name, created = found[1].decode(), int(found[2])
        else:
            if self._start is None:
                prefix = "chatcmpl" if self.path == CHAT else "cmpl"
                self._start = f"{prefix}-{uuid.uuid4().hex}".encode(), b"%d" % self._clock()
            name, created = self._start[0].decode(), int(self._start[1])
        says: dict[str, Any] = {"delta": {}} if self.path == CHAT else {"text": ""}
        data = {
            "id": name,
            "object": "chat.completion.chunk" if self.path == CHAT else "text_completion",
            "created": created,
            "model": self._repeated_fields["model"],
            "choices": [{"index": 0, **says, "logprobs": None, "finish_reason": None}],
        }
        return b"data: " + json.dumps(data).encode() + b"\n\n"


class MessageForm(StreamForm):
    """Stream form of Anthropic's Messages: typed events, `ping` as keepalive."""

    def refusal(self, status: int, error: dict[str, Any]) -> bytes:
        return _encode_event(anthropic_error(status, error.get("message")))

    def _keepalive_event(self, kind: Keepalive) -> bytes:
        return _encode_event({"type": "ping"})


_SEQUENCE = re.compile(rb'"sequence_number": ?(\d+)')
_RESPONSE = re.compile(rb'"response": ?\{("id": ?"([^"\\]*)")')
_CREATED_AT = re.compile(rb'"created_at": ?(\d+)')
_CREATED = b"event: response.created\n"


class ResponseForm(StreamForm):
    """Stream form of OpenAI's Responses: numbered events, the first with the response's id.

    While an inference waits for its first lease the engine has not created a response. A response
    with status `queued` is then created here, and the engine's events are sent under its id.
    """

    def __init__(self, path: str, payload: bytes, clock: Callable[[], float] = time.time) -> None:
        super().__init__(path, payload, clock)
        self._name: bytes | None = None
        """Response id that was sent to the caller; None before the first event."""
        self._created_at = 0
        self._replaces: tuple[tuple[bytes, bytes], ...] | None = None
        """Pairs of the engine's id or time and the value sent to the caller in its place; None: not
        known yet.
        """
        self._began_here = False
        self._shift = 0
        """Offset added to the engine's sequence numbers, because events were inserted."""
        self._number: int | None = None
        """Sequence number of the next event; None: one more than the last number in the last chunk.
        """

    def passed(self, chunk: bytes) -> bytes:
        """Return an engine's chunk in the form in which the caller gets it."""
        if self._name is None:
            found, created = _RESPONSE.search(chunk), _CREATED_AT.search(chunk)
            if found is not None:
                self._name = found[2]
                self._created_at = 0 if created is None else int(created[1])
        if self._shift or self._began_here:
            chunk = self._renumber(chunk)
            if not chunk:
                return chunk
        self._number = None
        self._last = chunk
        return chunk

    def refusal(self, status: int, error: dict[str, Any]) -> bytes:
        """Return the event `response.failed`, after a `response.created` if none was sent."""
        code = error.get("code")
        if not isinstance(code, str):
            fallback = "invalid_prompt" if 400 <= status < 500 else "server_error"
            code = "rate_limit_exceeded" if status == 429 else fallback
        told = {"code": code, "message": error.get("message")}
        begun = self._created_event() if self._name is None else b""
        return begun + self._response_event("response.failed", "failed", told)

    def _keepalive_event(self, kind: Keepalive) -> bytes:
        if self._last:
            self._shift += 1
            return _encode_event({"type": "keepalive", "sequence_number": self._next_number()})
        begun = self._created_event() if self._name is None else b""
        self._shift += 1
        return begun + self._response_event("response.queued", "queued")

    def _created_event(self) -> bytes:
        self._name = b"resp_" + uuid.uuid4().hex.encode()
        self._created_at = int(self._clock())
        self._began_here = True
        self._shift += 1
        return self._response_event("response.created", "queued")

    def _response_event(self, kind: str, status: str, error: dict[str, Any] | None = None) -> bytes:
        assert self._name is not None
        response = {
            "id": self._name.decode(),
            "object": "response",
            "created_at": self._created_at,
            "status": status,
            "error": error,
            "incomplete_details": None,
            "output": [],
            "usage": None,
            **self._repeated_fields,
        }
        number = self._next_number()
        return _encode_event({"type": kind, "sequence_number": number, "response": response})

    def _next_number(self) -> int:
        if self._number is None:
            numbers = [int(number) for number in _sequence_numbers(self._last)]
            self._number = max(numbers, default=-1) + 1
        self._number += 1
        return self._number - 1

    def _renumber(self, chunk: bytes) -> bytes:
        """Return a chunk's events with the sequence numbers and ids for the caller."""
        if self._began_here and self._replaces is None:
            found, created = _RESPONSE.search(chunk), _CREATED_AT.search(chunk)
            if found is not None:
                own = b'"id": "' + (self._name or b"") + b'"'
                self._replaces = ((found[1], own),)
                if created is not None:
                    self._replaces += ((created[0], b'"created_at": %d' % self._created_at),)
        events = []
        for event in chunk.split(b"\n\n"):
            if self._began_here and event.startswith(_CREATED):
                self._shift -= 1
                continue
            for name, known in self._replaces or ():
                event = event.replace(name, known)
            events.append(_shift_number(event, self._shift))
        return b"\n\n".join(events)


def _shift_number(event: bytes, shift: int) -> bytes:
    found = _SEQUENCE.search(event)
    if found is None or not shift:
        return event
    if _SEQUENCE.search(event, found.end()) is None:
        number = b"%d" % (int(found[1]) + shift)
        return event[: found.start(1)] + number + event[found.end(1) :]
    lines = []
    for line in event.split(b"\n"):
        if line.startswith(b"data:"):
            data = json.loads(line[5:])
            data["sequence_number"] += shift
            line = b"data: " + json.dumps(data).encode()
        lines.append(line)
    return b"\n".join(lines)


def _sequence_numbers(chunk: bytes) -> list[int]:
    """Return the sequence numbers of a chunk's events; events without a number are skipped."""
    numbers = []
    for line in chunk.split(b"\n"):
        found = _SEQUENCE.search(line) if line.startswith(b"data:") else None
        if found is not None:
            with suppress(ValueError):
                numbers.append(json.loads(line[5:]).get("sequence_number", -1))
    return numbers


def _encode_event(data: dict[str, Any]) -> bytes:
    told = json.dumps(data, separators=(",", ":"))
    return f"event: {data['type']}\ndata: {told}\n\n".encode()


def stream_form(path: str, payload: bytes, clock: Callable[[], float] = time.time) -> StreamForm:
    """Return the `StreamForm` for a path; `clock` returns seconds since 1970."""
    form = {MESSAGES: MessageForm, RESPONSES: ResponseForm}.get(path, ChunkForm)
    return form(path, payload, clock)
