"""The events that this service puts into a stream, in the form of each API.

An engine's events pass as they are. Where a stream is silent its caller gets a sign of life, and
where it fails after its head an event that says so. Responses number their events and name
themselves in them: from the first event that was put in on, the engine's are numbered anew.
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
    """Form of the signs of life in a silent stream."""

    EVENT = "event"
    """The API's own event (`ping`, `response.queued`, `keepalive`); a comment where it has none."""
    CHUNK = "chunk"
    """An event on every API: where it has none of its own, a chunk without text. No comments."""
    COMMENT = "comment"
    """A comment, which clients of server-sent events drop, and do not count."""
    NONE = "none"
    """Nothing."""


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
"""Fields of a call's body that its response repeats, with what they are where it has none."""


class StreamForm:
    """The events of one stream as its caller has them; this one is that of chats and completions.

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
        """The engine's last chunk that has text, as the caller has it."""

    @cached_property
    def _asked(self) -> dict[str, Any]:
        """What the call asked for; read late, for most streams are never silent for long."""
        try:
            fields = json.loads(self._payload)
        except ValueError:
            fields = {}
        told = {name: fields.get(name) for name in _REPEATED}
        return {name: _REPEATED[name] if told[name] is None else told[name] for name in told}

    @property
    def is_between_events(self) -> bool:
        """Whether an event may be put in now."""
        return not self._last or self._last.endswith(b"\n\n")

    def passed(self, chunk: bytes) -> bytes:
        """Return an engine's chunk as the caller is to have it."""
        self._last = chunk
        return chunk

    def keepalive(self, kind: Keepalive, comment: bytes, *, is_news: bool = False) -> bytes:
        """Return a sign of life.

        Args:
            kind: Its form.
            comment: What a comment says.
            is_news: Whether the comment says something, so that it goes before an event, too.
        """
        if kind is Keepalive.COMMENT:
            return comment
        event = self._event(kind)
        if kind is Keepalive.CHUNK or not is_news:
            return event or comment
        return comment + event

    def failure(self, error: JustitiaError) -> bytes:
        """Return the event that ends a stream that failed."""
        return self.refusal(status_of(error)[0], error_body(error)["error"])

    def refusal(self, status: int, error: dict[str, Any]) -> bytes:
        """Return the event that ends a stream whose call was answered with an error.

        Args:
            status: HTTP status of the answer.
            error: The error as OpenAI's API has it.
        """
        return b"data: " + json.dumps({"error": error}).encode() + b"\n\n"

    def _event(self, kind: Keepalive) -> bytes:
        return b""


_CHUNK_START = re.compile(
    rb'^data: \{"id": ?"([^"\\]*)", ?"object": ?"[^"]*", ?"created": ?(\d+)', re.M
)


class ChunkForm(StreamForm):
    """Chats and completions: events have no types, and a sign of life is a chunk without text."""

    def __init__(self, path: str, payload: bytes, clock: Callable[[], float] = time.time) -> None:
        super().__init__(path, payload, clock)
        self._start: tuple[bytes, bytes] | None = None
        """Id and time of the chunks that were put in before the engine's first."""

    def passed(self, chunk: bytes) -> bytes:
        """Return an engine's chunk, with the id and time that the caller knows."""
        if self._start is not None:
            chunk = _CHUNK_START.sub(self._as_begun, chunk)
        self._last = chunk
        return chunk

    def _as_begun(self, found: re.Match[bytes]) -> bytes:
        assert self._start is not None
        text, at = found[0], found.start()
        (name_from, name_to), (time_from, _) = found.span(1), found.span(2)
        name, created = self._start
        return text[: name_from - at] + name + text[name_to - at : time_from - at] + created

    def _event(self, kind: Keepalive) -> bytes:
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
            "model": self._asked["model"],
            "choices": [{"index": 0, **says, "logprobs": None, "finish_reason": None}],
        }
        return b"data: " + json.dumps(data).encode() + b"\n\n"


class MessageForm(StreamForm):
    """Messages: events named by their type; `ping` may come anywhere."""

    def refusal(self, status: int, error: dict[str, Any]) -> bytes:
        """Return the event `error`."""
        return _named(anthropic_error(status, error.get("message")))

    def _event(self, kind: Keepalive) -> bytes:
        return _named({"type": "ping"})


_SEQUENCE = re.compile(rb'"sequence_number": ?(\d+)')
_RESPONSE = re.compile(rb'"response": ?\{("id": ?"([^"\\]*)")')
_CREATED_AT = re.compile(rb'"created_at": ?(\d+)')
_CREATED = b"event: response.created\n"


class ResponseForm(StreamForm):
    """Responses: numbered events, the first of which brings the response.

    While an inference waits for its first lease there is no response of the engine's: one begins
    here, as `queued`, and the engine's goes on under its id.
    """

    def __init__(self, path: str, payload: bytes, clock: Callable[[], float] = time.time) -> None:
        super().__init__(path, payload, clock)
        self._name: bytes | None = None
        """The response's id as the caller knows it; None: it knows none."""
        self._created_at = 0
        self._replaces: tuple[tuple[bytes, bytes], ...] | None = None
        """Names of the engine, and those that the caller knows; None: they are not known yet."""
        self._began_here = False
        self._shift = 0
        """What is added to the engine's numbers."""
        self._number: int | None = None
        """Number of the next event; None: the one after the last chunk's."""

    def passed(self, chunk: bytes) -> bytes:
        """Return an engine's chunk as the caller is to have it."""
        if self._name is None:
            found, created = _RESPONSE.search(chunk), _CREATED_AT.search(chunk)
            if found is not None:
                self._name = found[2]
                self._created_at = 0 if created is None else int(created[1])
        if self._shift or self._began_here:
            chunk = self._numbered(chunk)
            if not chunk:
                return chunk
        self._number = None
        self._last = chunk
        return chunk

    def refusal(self, status: int, error: dict[str, Any]) -> bytes:
        """Return the event `response.failed`, behind the first one if the caller has none."""
        code = error.get("code")
        if not isinstance(code, str):
            fallback = "invalid_prompt" if 400 <= status < 500 else "server_error"
            code = "rate_limit_exceeded" if status == 429 else fallback
        told = {"code": code, "message": error.get("message")}
        begun = self._begin() if self._name is None else b""
        return begun + self._whole("response.failed", "failed", told)

    def _event(self, kind: Keepalive) -> bytes:
        if self._last:
            self._shift += 1
            return _named({"type": "keepalive", "sequence_number": self._next_number()})
        begun = self._begin() if self._name is None else b""
        self._shift += 1
        return begun + self._whole("response.queued", "queued")

    def _begin(self) -> bytes:
        self._name = b"resp_" + uuid.uuid4().hex.encode()
        self._created_at = int(self._clock())
        self._began_here = True
        self._shift += 1
        return self._whole("response.created", "queued")

    def _whole(self, kind: str, status: str, error: dict[str, Any] | None = None) -> bytes:
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
            **self._asked,
        }
        number = self._next_number()
        return _named({"type": kind, "sequence_number": number, "response": response})

    def _next_number(self) -> int:
        if self._number is None:
            numbers = [int(number) for number in _numbers(self._last)]
            self._number = max(numbers, default=-1) + 1
        self._number += 1
        return self._number - 1

    def _numbered(self, chunk: bytes) -> bytes:
        """Return the events of a chunk under the caller's numbers and names."""
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
            events.append(_shifted(event, self._shift))
        return b"\n\n".join(events)


def _shifted(event: bytes, shift: int) -> bytes:
    """Return an event with another number; texts are escaped, but fields may have the name, too."""
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


def _numbers(chunk: bytes) -> list[int]:
    """Return the numbers of a chunk's events; `[DONE]` and the like have none."""
    numbers = []
    for line in chunk.split(b"\n"):
        found = _SEQUENCE.search(line) if line.startswith(b"data:") else None
        if found is not None:
            with suppress(ValueError):
                numbers.append(json.loads(line[5:]).get("sequence_number", -1))
    return numbers


def _named(data: dict[str, Any]) -> bytes:
    told = json.dumps(data, separators=(",", ":"))
    return f"event: {data['type']}\ndata: {told}\n\n".encode()


def stream_form(path: str, payload: bytes, clock: Callable[[], float] = time.time) -> StreamForm:
    """Return the form of a stream on a path; `clock` gives seconds since 1970."""
    form = {MESSAGES: MessageForm, RESPONSES: ResponseForm}.get(path, ChunkForm)
    return form(path, payload, clock)
