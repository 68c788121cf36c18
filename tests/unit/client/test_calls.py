"""Parsing of the service's answers by the client."""

import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from justitia_ray.client.calls import (
    Completion,
    ServerSentEvent,
    SseDecoder,
    completion,
    json_events,
    json_object,
    response_error,
)
from justitia_ray.client.transport import Response
from justitia_ray.core.limits import LimitStanding
from justitia_ray.errors import ResponseError
from justitia_ray.protocol.rate_limits import limit_headers

USAGE = {"prompt_tokens": 3, "completion_tokens": 5}


def test_client_orders_choices_by_index() -> None:
    """The service may return the choices in the order in which they ended."""
    answer = completion(
        {
            "choices": [
                {"index": 1, "text": "second", "finish_reason": "length"},
                {"index": 0, "text": "first", "finish_reason": "stop"},
            ],
            "usage": USAGE,
        }
    )

    assert replace(answer, raw={}) == Completion("first", ("first", "second"), 3, 5, "stop", {})


def test_tool_call_has_empty_text() -> None:
    choice = {"index": 0, "message": {"content": None, "tool_calls": []}}

    assert completion({"choices": [choice], "usage": USAGE}).text == ""


@pytest.mark.parametrize("answer", [{}, {"choices": [], "usage": USAGE}, {"choices": 1}])
def test_invalid_completion_is_a_response_error(answer: dict[str, object]) -> None:
    """An agent catches one error class for every invalid answer."""
    with pytest.raises(ResponseError, match="not a completion"):
        completion(answer)


def test_openai_error_keeps_its_fields() -> None:
    """Callers decide by the error code and the retry time."""
    body = json.dumps({"error": {"message": "full", "code": "queue_full"}}).encode()

    error = response_error(429, {"retry-after": "2.5"}, body)

    assert error.args[:4] == (429, "full", "queue_full", 2.5)
    assert error.args[4:] == (None, None, None)


def test_client_error_has_the_refusals_reason_limit_and_retry_time() -> None:
    """An agent reads the reason, the limit and the retry time in milliseconds."""
    standing = LimitStanding("acme", "inferences", 60.0, 0.0, 42.0, 60.0)
    now = datetime(2026, 11, 30, tzinfo=UTC)
    said = {
        "retry-after": "42",
        "retry-after-ms": "41250",
        "x-justitia-dropped-reason": "quota",
        "x-should-retry": "false",
    }

    error = response_error(429, said | limit_headers((standing,), now, is_anthropic=False), b"{}")

    assert (41.25, "quota", False) == (
        error.retry_after_s,
        error.dropped_reason,
        error.should_retry,
    )
    assert error.limit == asdict(standing)


@pytest.mark.parametrize("value", ["", "soon", "nan", "inf", "-1", "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_invalid_retry_after_header_is_ignored(value: str) -> None:
    """An invalid header must neither raise nor make the client wait forever."""
    assert response_error(503, {"retry-after": value}, b"").retry_after_s is None


def test_error_page_of_a_proxy_is_quoted_in_part() -> None:
    """A proxy's error page names the proxy, but all of it would flood a log."""
    error = response_error(502, {}, b"<html>" + b"x" * 1000)

    assert error.message == "<html>" + "x" * 194


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        *((200, body, "not a JSON object") for body in (b"", b"[]", b"{", b"\xff")),
        pytest.param(302, b"{}", "302", id="a redirect is not followed"),
    ],
)
def test_answer_that_is_no_json_object_is_a_response_error(
    status: int, body: bytes, said: str
) -> None:
    with pytest.raises(ResponseError, match=said):
        json_object(Response(status, {}, body))


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


def _decode_events(chunks: Iterable[bytes]) -> list[ServerSentEvent]:
    decoder = SseDecoder()
    return [event for chunk in chunks for event in decoder.feed(chunk)]


async def _read_stream(chunks: list[bytes]) -> list[dict[str, Any]]:
    async def pop_chunks() -> AsyncIterator[bytes]:
        while chunks:
            yield chunks.pop(0)

    return [event async for event in json_events(pop_chunks())]


@pytest.mark.slow
@given(st.sets(st.integers(0, len(STREAM))))
@example(set())
@example(set(range(len(STREAM))))
def test_chunk_boundaries_do_not_change_parsed_stream_events(cuts: set[int]) -> None:
    """Network chunks may end inside a line end, a character or a field name.

    Servers and proxies differ in line ends, comments and fields, all of which are parsed.
    """
    bounds = [0, *sorted(cuts), len(STREAM)]
    chunks = [STREAM[a:b] for a, b in pairwise(bounds)]

    assert _decode_events(chunks) == EVENTS


@pytest.mark.slow
@given(st.lists(st.text(), min_size=1), st.data())
def test_streamed_text_is_decoded_unchanged(texts: list[str], data: st.DataObject) -> None:
    """Line separators in a completion must not end an event."""
    raw = b"".join(f"data: {json.dumps(t, ensure_ascii=False)}\n\n".encode() for t in texts)
    cut = data.draw(st.integers(0, len(raw)))

    assert texts == [json.loads(event.data) for event in _decode_events([raw[:cut], raw[cut:]])]


async def test_client_reads_a_stream_to_its_end_after_done() -> None:
    """A reader that left at [DONE] would look like a disconnect to the service."""
    chunks = [b'data: {"a": 1}\n\n', b"data: [DONE]\n\n", b'data: {"a": 2}\n\n', b": end\n\n"]

    assert await _read_stream(chunks) == [{"a": 1}]
    assert chunks == []


@pytest.mark.parametrize(
    ("event", "status", "message", "code"),
    [
        (b'event: error\ndata: {"message": "gone", "code": "cut"}', 500, "gone", "cut"),
        (b'data: {"error": {"message": "too long", "code": 400}}', 400, "too long", None),
        (b"event: error\ndata: no json", 500, "the stream ended with an error", None),
    ],
)
async def test_error_event_raises_an_error(
    event: bytes, status: int, message: str, code: str | None
) -> None:
    """After a status of 200 an error event is the only way to report a failure."""
    with pytest.raises(ResponseError) as caught:
        await _read_stream([b'data: {"a": 1}\n\n', event + b"\n\n", b"data: [DONE]\n\n"])

    assert (status, message, code) == (caught.value.status, caught.value.message, caught.value.code)


@pytest.mark.parametrize(
    ("stream", "error", "said"),
    [
        pytest.param(
            b'data: {"a": 1}\n\n', ConnectionError, r"before \[DONE\]", id="half an answer"
        ),
        pytest.param(
            b"data: 12\n\ndata: [DONE]\n\n", ResponseError, "not a JSON object", id="no object"
        ),
    ],
)
async def test_incomplete_stream_is_an_error(
    stream: bytes, error: type[Exception], said: str
) -> None:
    """An incomplete stream must not look like a complete one."""
    with pytest.raises(error, match=said):
        await _read_stream([stream])
