"""Messages of one loop turn share a frame, and long messages are split into several."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from justitia_ray.errors import ConnectionLost
from justitia_ray.serve.transport.connection import MAX_FRAME_BYTES
from justitia_ray.serve.transport.frames import (
    FRAME_BYTES,
    PIECE_BYTES,
    Answer,
    Call,
    Cancel,
    End,
    Failure,
    Incoming,
    Item,
    Message,
    Outgoing,
    PauseStream,
    Piece,
    Ping,
    ResumeStream,
)

_SMALL_LIMIT = 4 * PIECE_BYTES


def raw_value(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(value))


def frames_of(*messages: Message) -> list[bytes]:
    """Return the frames of messages that are sent in one turn of the event loop."""
    outgoing = Outgoing()
    for message in messages:
        outgoing.put(message)
    frames = []
    while outgoing.size_bytes:
        frames.append(outgoing.take_frame())
    assert 0 == outgoing.size_bytes
    return frames


def read_frames(*frames: bytes, limit: int = 2**30) -> list[Message]:
    incoming = Incoming(limit)
    return [message for frame in frames for message in incoming.read_frame(frame)]


@pytest.mark.parametrize(
    "message",
    [
        Call(1, "unary", raw_value(["lease", b"body"])),
        Cancel(2),
        Answer(3, raw_value({"a": 1})),
        Item(4, raw_value(b"part")),
        End(5),
        Failure(6, "UnknownLease", ["lease", 7, None, 2.5, b"x"]),
        PauseStream(7),
        ResumeStream(8),
        Ping(),
    ],
    ids=lambda message: type(message).__name__,
)
def test_message_of_each_kind_survives_framing(message: Message) -> None:
    assert [message] == read_frames(*frames_of(message))


def test_messages_of_one_loop_turn_share_a_frame_in_order() -> None:
    """A frame costs a system call, and a message almost nothing."""
    messages = [Item(number % 7, raw_value(number)) for number in range(500)]
    frames = frames_of(*messages)

    assert 1 == len(frames)
    assert messages == read_frames(*frames)


def test_short_message_arrives_before_a_large_body_is_complete() -> None:
    """One large prompt must not block the streams of the connection."""
    large, short = Call(1, "unary", raw_value(b"x" * 20 * PIECE_BYTES)), Item(2, raw_value(b"part"))
    frames = frames_of(large, short)

    assert len(frames) > 20
    assert [short] == read_frames(frames[0])
    assert [short, large] == read_frames(*frames)


def test_large_message_bodies_take_turns_on_a_connection() -> None:
    """The second body starts in the first frame, not after the first body."""
    first, second = (Call(n, "unary", raw_value(b"x" * n * 5 * PIECE_BYTES)) for n in (3, 1))
    frames = frames_of(first, second)

    assert [second, first] == read_frames(*frames)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3 * PIECE_BYTES)), max_size=12))
def test_messages_of_one_call_keep_their_order_at_any_size(
    sizes: list[tuple[int, int]],
) -> None:
    """An end may not overtake the last item, nor a cancel its call."""
    messages = [
        Item(call, raw_value((place, bytes(size)))) for place, (call, size) in enumerate(sizes)
    ]
    frames = frames_of(*messages)
    arrived = read_frames(*frames)

    for call in range(4):
        assert [m for m in messages if m.id == call] == [m for m in arrived if m.id == call]
    assert len(messages) == len(arrived)
    assert all(len(frame) <= MAX_FRAME_BYTES for frame in frames)


def test_message_frames_stay_below_the_maximum_length() -> None:
    """The messages are just below the size at which they are split, and far above it."""
    messages: list[Message] = [Item(n, raw_value(bytes(PIECE_BYTES - 20))) for n in range(100)]
    messages += [Item(1000 + n, raw_value(bytes(PIECE_BYTES + 1))) for n in range(100)]
    frames = frames_of(*messages)

    assert max(map(len, frames)) <= FRAME_BYTES + PIECE_BYTES + 1000 < MAX_FRAME_BYTES
    assert 200 == len(read_frames(*frames))


def test_connection_counts_its_unsent_bytes() -> None:
    outgoing = Outgoing()
    outgoing.put(Item(1, raw_value(bytes(1000))))
    outgoing.put(Item(2, raw_value(bytes(10 * PIECE_BYTES))))
    before = outgoing.size_bytes
    outgoing.take_frame()

    assert 1000 + 10 * PIECE_BYTES < before < 1100 + 10 * PIECE_BYTES
    assert before - 1100 - PIECE_BYTES < outgoing.size_bytes < before - 1000 - PIECE_BYTES + 1


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"GET / HTTP/1.1",
        msgspec.msgpack.encode("text"),
        msgspec.msgpack.encode([[99, 1]]),
        msgspec.msgpack.encode([["call", 1]]),
        msgspec.msgpack.encode([[0, 1]]),
        msgspec.msgpack.encode([[0, "one", "unary", []]]),
        msgspec.msgpack.encode([Piece(1, b"\xc1", last=True)]),
        msgspec.msgpack.encode([Cancel(1)]) + b"more",
    ],
)
def test_undecodable_frame_closes_the_connection(frame: bytes) -> None:
    """A frame of an unknown protocol is not interpreted further."""
    with pytest.raises(ConnectionLost, match="a frame cannot be read"):
        read_frames(frame)


def test_overlong_message_closes_the_connection_before_its_end() -> None:
    frames = frames_of(Item(1, raw_value(bytes(2 * _SMALL_LIMIT))))
    with pytest.raises(ConnectionLost, match=f"longer than {_SMALL_LIMIT} bytes"):
        read_frames(*frames[:-2], limit=_SMALL_LIMIT)
