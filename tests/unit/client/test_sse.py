"""The parser of server-sent events."""

import json
from collections.abc import AsyncIterator, Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.client.sse import ServerSentEvent, SseDecoder, json_events
from justitia_ray.errors import ResponseError

STREAM = (
    b": ping\r\n\r\nevent: delta\rdata: one\r\r"
    b'data: {"text": "caf\xc3\xa9 \xe2\x82\xac"}\n\nid: 7\nretry: 5\ndata:a\r\ndata: b\n\n'
    b"data: [DONE]\n\ndata: never finished"
)
EVENTS = [
    ServerSentEvent("delta", "one"),
    ServerSentEvent("message", '{"text": "café €"}'),
    ServerSentEvent("message", "a\nb"),
    ServerSentEvent("message", "[DONE]"),
]


def _decode(chunks: Iterable[bytes]) -> list[ServerSentEvent]:
    decoder = SseDecoder()
    return [event for chunk in chunks for event in decoder.feed(chunk)]


async def _collect(chunks: list[bytes]) -> list[dict[str, Any]]:
    async def arriving() -> AsyncIterator[bytes]:
        while chunks:
            yield chunks.pop(0)

    return [event async for event in json_events(arriving())]


def test_all_line_ends_comments_and_fields_are_understood() -> None:
    """Servers and proxies differ in all of these."""
    assert _decode([STREAM]) == EVENTS


@given(st.sets(st.integers(0, len(STREAM))))
def test_cuts_anywhere_change_nothing(cuts: set[int]) -> None:
    """The network cuts where it likes: inside a line end, a character, a field name."""
    bounds = [0, *sorted(cuts), len(STREAM)]
    chunks = [STREAM[a:b] for a, b in pairwise(bounds)]

    assert _decode(chunks) == EVENTS


def test_bytes_one_by_one_change_nothing() -> None:
    """Every cut at once, which no drawn example has to hit."""
    assert _decode(STREAM[i : i + 1] for i in range(len(STREAM))) == EVENTS


@given(st.lists(st.text(), min_size=1), st.data())
def test_any_text_survives(texts: list[str], data: st.DataObject) -> None:
    """Line separators and odd characters in a completion must not end an event."""
    raw = b"".join(f"data: {json.dumps(t, ensure_ascii=False)}\n\n".encode() for t in texts)
    cut = data.draw(st.integers(0, len(raw)))

    assert texts == [json.loads(event.data) for event in _decode([raw[:cut], raw[cut:]])]


async def test_done_ends_the_objects_but_not_the_reading() -> None:
    """A reader that left at [DONE] would look to the service like a caller that gave up."""
    chunks = [b'data: {"a": 1}\n\n', b"data: [DONE]\n\n", b'data: {"a": 2}\n\n', b": end\n\n"]

    assert await _collect(chunks) == [{"a": 1}]
    assert chunks == []


@pytest.mark.parametrize(
    ("event", "status", "message", "code"),
    [
        (b'event: error\ndata: {"message": "gone", "code": "cut"}', 500, "gone", "cut"),
        (b'data: {"error": {"message": "too long", "code": 400}}', 400, "too long", None),
        (b"event: error\ndata: no json", 500, "the stream ended with an error", None),
    ],
)
async def test_an_error_event_is_an_error(
    event: bytes, status: int, message: str, code: str | None
) -> None:
    """After a head of 200 this is the only way in which a service can say that it failed."""
    with pytest.raises(ResponseError) as caught:
        await _collect([b'data: {"a": 1}\n\n', event + b"\n\n", b"data: [DONE]\n\n"])

    assert (status, message, code) == (caught.value.status, caught.value.message, caught.value.code)


async def test_a_stream_without_done_has_broken_off() -> None:
    """Half an answer must not pass for a whole one."""
    with pytest.raises(ConnectionError, match=r"before \[DONE\]"):
        await _collect([b'data: {"a": 1}\n\n'])


async def test_an_event_that_is_no_object_is_an_error() -> None:
    """It is not the OpenAI protocol, and silence would hide that."""
    with pytest.raises(ResponseError, match="not a JSON object"):
        await _collect([b"data: 12\n\n", b"data: [DONE]\n\n"])
