"""Messages of a connection, and the frames that contain them.

A frame is a MessagePack array of all messages of one turn of the event loop. A message longer than
a piece is sent in pieces, alternating with those of other calls, so that a large prompt does not
delay the streams beside it. Messages of one call keep their order.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from justitia_ray.errors import ConnectionLost

PIECE_BYTES = 64 * 2**10
FRAME_BYTES = 2**20
"""Target bytes of a frame; its last message may exceed the target by less than a piece."""


class Call(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Message that calls a method of another process."""

    id: int
    """Number of the call on its connection, which all messages of the call contain."""
    method: str
    arguments: msgspec.Raw


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Message that the caller no longer waits for the answer of a call."""

    id: int


class Answer(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Message that answers a call."""

    id: int
    value: msgspec.Raw


class Item(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Message with one item of the stream that answers a call."""

    id: int
    value: msgspec.Raw


class End(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Message that ends a stream, after its last item."""

    id: int


class Failure(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Message that a call has failed with an error of `justitia_ray.errors`."""

    id: int
    error: str
    """Name of the error's class."""
    arguments: list[Any]


class PauseStream(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Message that pauses a stream because its reader is slow, until `ResumeStream`."""

    id: int


class ResumeStream(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Message that continues a paused stream."""

    id: int


class Piece(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Message with one piece of a long message of a call."""

    id: int
    data: bytes
    last: bool


class Ping(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Message by which a process shows that it is alive."""

    id: int = 0


Message: TypeAlias = (
    Call | Cancel | Answer | Item | End | Failure | PauseStream | ResumeStream | Piece | Ping
)

_encoder = msgspec.msgpack.Encoder()
_decode_frame = msgspec.msgpack.Decoder(list[Message]).decode
_decode_message = msgspec.msgpack.Decoder(Message).decode


class Outgoing:
    """Messages queued for the next frames of a connection."""

    def __init__(self) -> None:
        self._small: deque[bytes] = deque()
        self._long: dict[int, deque[bytes | memoryview]] = {}
        """Queued messages by call, if the call's first one is long; long messages are memoryviews.
        """
        self.size_bytes = 0
        """Number of queued bytes; 0 if no message is queued."""

    def put(self, message: Message) -> None:
        data = _encoder.encode(message)
        self.size_bytes += len(data)
        if len(data) > PIECE_BYTES:
            self._long.setdefault(message.id, deque()).append(memoryview(data))
        elif message.id in self._long:
            self._long[message.id].append(data)
        else:
            self._small.append(data)

    def take_frame(self) -> bytes:
        """Remove and return the next frame: short messages first, then pieces of long messages."""
        parts: list[msgspec.Raw] = []
        size = 0
        while self._small and size < FRAME_BYTES:
            data = self._small.popleft()
            size += len(data)
            self.size_bytes -= len(data)
            parts.append(msgspec.Raw(data))
        for call_id in list(self._long):
            if size >= FRAME_BYTES:
                break
            data = self._take_piece(call_id)
            size += len(data)
            parts.append(msgspec.Raw(data))
        return _encoder.encode(parts)

    def _take_piece(self, call_id: int) -> bytes:
        """Return the next piece of a call's first queued message, or all of a short message."""
        waiting = self._long.pop(call_id)
        first = waiting.popleft()
        if isinstance(first, bytes):
            self.size_bytes -= len(first)
            data = first
        else:
            rest = first[PIECE_BYTES:]
            self.size_bytes -= len(first) - len(rest)
            data = _encoder.encode(Piece(call_id, bytes(first[:PIECE_BYTES]), not rest))
            if rest:
                waiting.appendleft(rest)
        if waiting:
            self._long[call_id] = waiting  # The call's next piece comes after those of other calls.
        return data


class Incoming:
    """Decodes received frames into messages, and joins the pieces of long messages.

    Args:
        max_message_bytes: Maximum length of a message in pieces.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes
        self._partial: dict[int, bytearray] = {}

    def read_frame(self, frame: bytes) -> Iterator[Message]:
        """Yield the messages that a received frame completes.

        Raises:
            ConnectionLost: If the frame is malformed, or a message is too long.
        """
        try:
            for message in _decode_frame(frame):
                if not isinstance(message, Piece):
                    yield message
                    continue
                data = self._partial.setdefault(message.id, bytearray())
                data += message.data
                if len(data) > self._max_message_bytes:
                    raise ConnectionLost(
                        f"a message is longer than {self._max_message_bytes} bytes"
                    )
                if message.last:
                    yield _decode_message(self._partial.pop(message.id))
        except msgspec.MsgspecError as error:
            raise ConnectionLost(f"a frame cannot be read: {error}") from None
