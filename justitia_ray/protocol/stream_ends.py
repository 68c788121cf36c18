"""Detect how an engine ended a stream: complete, with an error event, or cut off."""

import re

from justitia_ray.errors import EngineFailed, StreamUnfinished
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS, MESSAGES, RESPONSES

_DONE = (re.compile(rb'^data: ?\{"error"', re.M), re.compile(rb"^data: ?\[DONE\]", re.M))
_ENDS = {
    # path: (event of a failed stream, event that ends a complete one). Line breaks inside an
    # event's text are escaped, so a match at the start of a line is never text.
    CHAT: _DONE,
    COMPLETIONS: _DONE,
    MESSAGES: (re.compile(rb"^event: ?error", re.M), re.compile(rb"^event: ?message_stop", re.M)),
    RESPONSES: (
        re.compile(rb"^event: ?(?:error|response\.failed)", re.M),
        re.compile(rb"^event: ?response\.(?:completed|incomplete)", re.M),
    ),
}


_MARK = b'"error"'
"""Contained in each error event and in few others; a fast first check."""


class StreamEnd:
    """Detects from a stream's events whether it failed or is complete."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._failed, self._whole = _ENDS[path]
        self._has_failed = False
        self._last = b""

    def note_chunk(self, chunk: bytes) -> None:
        """Process a chunk of whole events."""
        self._last = chunk
        if _MARK in chunk and self._failed.search(chunk) is not None:
            self._has_failed = True

    def check(self) -> None:
        """Check that a stream that the engine has ended is complete.

        Raises:
            EngineFailed: If the stream contained an error event.
            StreamUnfinished: If the final event is missing.
        """
        if self._has_failed:
            raise EngineFailed(f"the engine ended its stream on {self._path} with an error")
        if self._whole.search(self._last) is None:
            raise StreamUnfinished("the engine ended this stream before the answer was whole")
