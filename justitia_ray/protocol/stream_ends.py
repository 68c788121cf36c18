"""The end of a stream as its engine sends it: whole, failed in an event of its own, or cut."""

import re

from justitia_ray.errors import EngineFailed, StreamUnfinished
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS, MESSAGES, RESPONSES

_DONE = (re.compile(rb'^data: ?\{"error"', re.M), re.compile(rb"^data: ?\[DONE\]", re.M))
_ENDS = {
    # path: (an event that says that the stream failed, the event that ends a whole one).
    # In the text of an event line breaks are escaped: at the start of a line it is no text.
    CHAT: _DONE,
    COMPLETIONS: _DONE,
    MESSAGES: (re.compile(rb"^event: ?error", re.M), re.compile(rb"^event: ?message_stop", re.M)),
    RESPONSES: (
        re.compile(rb"^event: ?(?:error|response\.failed)", re.M),
        re.compile(rb"^event: ?response\.(?:completed|incomplete)", re.M),
    ),
}


_MARK = b'"error"'
"""In each event that says that a stream failed, and in few others: quickly looked for."""


class StreamEnd:
    """Watches a stream's events for its end."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._failed, self._whole = _ENDS[path]
        self._has_failed = False
        self._last = b""

    def note_chunk(self, chunk: bytes) -> None:
        """Note a chunk of whole events."""
        self._last = chunk
        if _MARK in chunk and self._failed.search(chunk) is not None:
            self._has_failed = True

    def check(self) -> None:
        """Check that the stream, which the engine has ended, is whole.

        Raises:
            EngineFailed: If one of its events says that it failed.
            StreamUnfinished: If the event is missing that ends a whole one.
        """
        if self._has_failed:
            raise EngineFailed(f"the engine ended its stream on {self._path} with an error")
        if self._whole.search(self._last) is None:
            raise StreamUnfinished("the engine ended this stream before the answer was whole")
