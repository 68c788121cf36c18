"""Messages of a connection, and the frames that carry them.

A frame is a MessagePack array of all messages of one turn of the event loop. A message that is
longer than a piece goes in pieces, in turns with those of other calls: one large prompt does not
hold up the streams beside it. Messages of one call keep their order.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from justitia_ray.errors import ConnectionLost

PIECE_BYTES = 64 * 2**10
FRAME_BYTES = 2**20
"""Length that a frame is filled up to; with the last message it is less than a piece longer."""


class Call(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A call of a method."""

    id: int
    """Number of the call on its connection; every message about it has the same one."""
    method: str
    arguments: msgspec.Raw


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Nobody waits for the answer any more."""

    id: int


class Answer(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The answer to a call."""

    id: int
    value: msgspec.Raw


class Item(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """An item of the stream that answers a call."""

    id: int
    value: msgspec.Raw


class End(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The stream has had its last item."""

    id: int


class Failure(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The call has failed, with an error of `justitia_ray.errors`."""

    id: int
    error: str
    """Name of the error's class."""
    arguments: list[Any]


class Pause(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The reader of a stream is slow: no further items until it resumes."""

    id: int


class Resume(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The reader of a stream takes items again."""

    id: int


class Piece(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """A piece of a long message about a call."""

    id: int
    data: bytes
    last: bool


class Ping(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """The sender is there."""

    id: int = 0


Message: TypeAlias = Call | Cancel | Answer | Item | End | Failure | Pause | Resume | Piece | Ping

_encoder = msgspec.msgpack.Encoder()
_decode_frame = msgspec.msgpack.Decoder(list[Message]).decode
_decode_message = msgspec.msgpack.Decoder(Message).decode


class Outgoing:
    """Messages that wait for the next frame."""

    def __init__(self) -> None:
        self._small: deque[bytes] = deque()
        self._long: dict[int, deque[bytes | memoryview]] = {}
        """Messages of calls with a long one before them, by call; long ones are views."""
        self.size_bytes = 0
        """Bytes that wait."""

    def __bool__(self) -> bool:
        """Return whether anything waits."""
        return bool(self._small or self._long)

    def put(self, message: Message) -> None:
        """Add a message."""
        data = _encoder.encode(message)
        self.size_bytes += len(data)
        if len(data) > PIECE_BYTES:
            self._long.setdefault(message.id, deque()).append(memoryview(data))
        elif message.id in self._long:
            self._long[message.id].append(data)
        else:
            self._small.append(data)

    def take_frame(self) -> bytes:
        """Return the next frame, and drop what is in it: first short messages, then pieces."""
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
        """Return a piece of a call's first message, or that message if it is short."""
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
            self._long[call_id] = waiting  # behind the others
        return data


class Incoming:
    """Messages of the frames that arrive; long ones are put together again."""

    def __init__(self, max_message_bytes: int) -> None:
        """Begin with nothing.

        Args:
            max_message_bytes: Longest message in pieces.
        """
        self._max_message_bytes = max_message_bytes
        self._partial: dict[int, bytearray] = {}

    def read_frame(self, frame: bytes) -> Iterator[Message]:
        """Yield the messages that are whole.

        Raises:
            ConnectionLost: If the frame is no frame, or a message is too long.
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
