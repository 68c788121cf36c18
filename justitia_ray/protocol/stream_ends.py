"""Detect how an engine ended a stream: complete, with an error event, or cut off."""

import re

from justitia_ray.errors import EngineFailed, StreamUnfinished
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS, MESSAGES, RESPONSES

_DONE = (re.compile(rb'^data: ?\{"error"', re.M), re.compile(rb"^data: ?\[DONE\]", re.M))
_ENDS = {
    # Patterns by path: the event of a failed stream, and the event of a complete stream.
    CHAT: _DONE,
    COMPLETIONS: _DONE,
    MESSAGES: (re.compile(rb"^event: ?error", re.M), re.compile(rb"^event: ?message_stop", re.M)),
    RESPONSES: (
        re.compile(rb"^event: ?(?:error|response\.failed)", re.M),
        re.compile(rb"^event: ?response\.(?:completed|incomplete)", re.M),
    ),
}


_MARK = b'"error"'
"""Text in every error event and in few others, which speeds up the search for errors."""


class StreamEnd:
    """Detects from the events of a stream whether it failed or is complete."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._failed, self._whole = _ENDS[path]
        self._has_failed = False
        self._last = b""

    def note_chunk(self, chunk: bytes) -> None:
        """Note a chunk of the stream, which contains whole events."""
        self._last = chunk
        if _MARK in chunk and self._failed.search(chunk) is not None:
            self._has_failed = True

    def check(self) -> None:
        """Check that the stream is complete; called when the engine has ended it.

        Raises:
            EngineFailed: If the stream contained an error event.
            StreamUnfinished: If the final event is missing.
        """
        if self._has_failed:
            raise EngineFailed(f"the engine ended its stream on {self._path} with an error")
        if self._whole.search(self._last) is None:
            raise StreamUnfinished("the engine ended this stream before the answer was whole")
