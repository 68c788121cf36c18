"""Events that the service adds to streams in each API's format and numbering."""

import json
from typing import Any

import pytest

from justitia_ray.errors import (
    ApplicationIsClosed,
    ContextLengthExceeded,
    EngineError,
    JustitiaError,
    QueueFull,
)
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from justitia_ray.protocol.stream_forms import Keepalive, StreamForm, stream_form
from tests.unit.serve.ingress.engine_streams import (
    BODIES,
    PATHS,
    STREAMS,
    events_of,
    named_event,
)

_COMMENT = b": justitia position=7\n\n"
_NOW = 1_700_000_000.5


def form_of(path: str, **fields: Any) -> StreamForm:
    return stream_form(path, json.dumps(BODIES[path] | fields).encode(), lambda: _NOW)


def stream_with_keepalives(path: str, kind: Keepalive, *places: int, joined: bool = False) -> bytes:
    """Return a stream with a keepalive before each chunk and at the end."""
    form = form_of(path)
    chunks = [b"".join(STREAMS[path])] if joined else STREAMS[path]
    body = b""
    for place, chunk in enumerate([*chunks, b""]):
        for _ in range(places.count(place)):
            assert form.is_between_events
            body += form.keepalive(kind, _COMMENT)
        body += form.passed(chunk) if chunk else b""
    return body


@pytest.mark.parametrize("kind", [Keepalive.EVENT, Keepalive.COMMENT])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_keepalive_of_a_chat_is_a_comment(path: str, kind: Keepalive) -> None:
    body = stream_with_keepalives(path, kind, 0, 1, len(STREAMS[path]))

    assert 3 == body.count(_COMMENT)
    assert b"".join(STREAMS[path]) == body.replace(_COMMENT, b"")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_empty_chat_chunk_looks_like_the_chunks_around_it(path: str) -> None:
    """Clients read the first choice of each chunk and expect one id per stream."""
    last = len(STREAMS[path]) - 1
    body = stream_with_keepalives(path, Keepalive.CHUNK, 0, 0, 1, last)

    assert all(line.startswith("data: ") for line in body.decode().split("\n") if line)
    *chunks, (_, done) = events_of(body)
    assert "[DONE]" == done
    assert 1 == len({(data["id"], data["created"], data["object"]) for _, data in chunks})
    assert "engine-1" != chunks[0][1]["id"]
    for place in (0, 1, 3):
        [choice] = chunks[place][1]["choices"]
        assert (0, None) == (choice["index"], choice["finish_reason"])
        assert {} == choice["delta"] if path == CHAT else "" == choice["text"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_empty_keepalive_chunk_repeats_the_engines_id(path: str) -> None:
    body = stream_with_keepalives(path, Keepalive.CHUNK, 1)

    assert STREAMS[path][0] in body
    assert {"engine-1"} == {data["id"] for _, data in events_of(body)[:-1]}


@pytest.mark.parametrize("kind", [Keepalive.EVENT, Keepalive.CHUNK])
def test_keepalive_of_a_message_is_a_ping_at_any_position(kind: Keepalive) -> None:
    ping = b'event: ping\ndata: {"type":"ping"}\n\n'
    body = stream_with_keepalives(MESSAGES, kind, *range(len(STREAMS[MESSAGES])))

    assert len(STREAMS[MESSAGES]) == body.count(ping)
    assert b"".join(STREAMS[MESSAGES]) == body.replace(ping, b"")


def test_queue_position_comment_precedes_the_keepalive_event() -> None:
    """A client may ask for empty chunks instead of comments."""
    ping = form_of(MESSAGES).keepalive(Keepalive.EVENT, _COMMENT)
    told = [
        form_of(path).keepalive(kind, _COMMENT, is_news=True)
        for path, kind in (
            (MESSAGES, Keepalive.EVENT),
            (MESSAGES, Keepalive.CHUNK),
            (MESSAGES, Keepalive.COMMENT),
            (CHAT, Keepalive.EVENT),
        )
    ]

    assert [_COMMENT + ping, ping, _COMMENT, _COMMENT] == told


@pytest.mark.parametrize("kind", [Keepalive.EVENT, Keepalive.CHUNK])
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize(
    "places", [(), (0,), (0, 0, 0), (1,), (0, 1), (2,), (0, 0, 3, 3, 5), (4, 8), (0, 9)]
)
def test_sequence_numbers_of_a_response_with_keepalives_are_consecutive(
    kind: Keepalive, places: tuple[int, ...], joined: bool
) -> None:
    """Keepalive events come before the engine's events, whose numbers must continue."""
    body = stream_with_keepalives(RESPONSES, kind, *places, joined=joined)

    events = events_of(body)
    assert list(range(len(events))) == [data["sequence_number"] for _, data in events]
    assert all(name == data["type"] for name, data in events)
    kinds = [data["type"] for _, data in events]
    assert ("response.created", 1) == (kinds[0], kinds.count("response.created"))
    ids = {data["response"]["id"] for _, data in events if "response" in data}
    times = {data["response"]["created_at"] for _, data in events if "response" in data}
    assert (1, 1) == (len(ids), len(times))
    assert ({"resp_engine"} == ids) == (0 not in places)
    own = ("response.created", "response.queued", "keepalive")
    said = [data | {"sequence_number": 0} for _, data in events if data["type"] not in own]
    engines = [data | {"sequence_number": 0} for _, data in events_of(b"".join(STREAMS[RESPONSES]))]
    for data in (*said, *engines):
        data.get("response", {}).update(id="", created_at=0)
    assert engines[1:] == said


def test_queued_response_has_the_requested_fields() -> None:
    """Clients read the response object from the stream's first event."""
    tool = {"type": "function", "name": "f", "parameters": {}}
    form = form_of(RESPONSES, instructions="be kind", tools=[tool], temperature=0.5)
    [(_, created), (_, queued)] = events_of(form.keepalive(Keepalive.EVENT, _COMMENT))

    assert ["response.created", "response.queued"] == [created["type"], queued["type"]]
    response = created["response"]
    assert response == queued["response"]
    assert ("queued", "m", [], None) == tuple(
        response[name] for name in ("status", "model", "output", "error")
    )
    assert ("be kind", [tool], 0.5, int(_NOW)) == tuple(
        response[name] for name in ("instructions", "tools", "temperature", "created_at")
    )


def test_keepalive_never_splits_an_event() -> None:
    form = form_of(CHAT)
    form.passed(b'data: {"id"')

    assert not form.is_between_events


_FAILURES = [
    # error, Anthropic's type, code in a response
    (EngineError("cut"), "api_error", "engine_error"),
    (ApplicationIsClosed("cut"), "api_error", "application_closed"),
    (ContextLengthExceeded("cut"), "invalid_request_error", "context_length_exceeded"),
    (QueueFull("cut"), "rate_limit_error", "queue_full"),
    (JustitiaError("cut"), "api_error", "server_error"),
]


@pytest.mark.parametrize(("error", "kind", "code"), _FAILURES)
def test_failed_stream_ends_in_the_error_format_of_its_api(
    error: JustitiaError, kind: str, code: str
) -> None:
    [(name, message)] = events_of(form_of(MESSAGES).failure(error))
    assert ("error", {"type": kind, "message": "cut"}) == (name, message["error"])
    for path in (CHAT, COMPLETIONS):
        [(name, chat)] = events_of(form_of(path).failure(error))
        assert (None, "cut") == (name, chat["error"]["message"])
    *_, (name, failed) = events_of(form_of(RESPONSES).failure(error))
    assert "response.failed" == name == failed["type"]
    assert {"code": code, "message": "cut"} == failed["response"]["error"]


@pytest.mark.parametrize("before", range(1, len(STREAMS[RESPONSES])))
@pytest.mark.parametrize("signs", [0, 1, 2])
def test_failure_event_of_a_response_has_the_streams_id_and_next_number(
    before: int, signs: int
) -> None:
    form = form_of(RESPONSES)
    body = b"".join(map(form.passed, STREAMS[RESPONSES][:before]))
    for _ in range(signs):
        body += form.keepalive(Keepalive.EVENT, _COMMENT)
    *events, (_, failed) = events_of(body + form.failure(EngineError("cut")))

    assert len(events) == failed["sequence_number"]
    assert ("resp_engine", 7, "failed") == tuple(
        failed["response"][name] for name in ("id", "created_at", "status")
    )


@pytest.mark.parametrize("signs", [0, 1, 3])
def test_failed_response_begins_with_its_creation_event(signs: int) -> None:
    """Clients ignore events of a response that was not created."""
    form = form_of(RESPONSES)
    body = b"".join(form.keepalive(Keepalive.EVENT, _COMMENT) for _ in range(signs))
    events = events_of(body + form.failure(EngineError("cut")))

    assert "response.created" == events[0][0]
    assert list(range(len(events))) == [data["sequence_number"] for _, data in events]
    assert 1 == len({data["response"]["id"] for _, data in events})


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "invalid_prompt"), (429, "rate_limit_exceeded"), (500, "server_error")],
)
def test_engine_refusal_has_an_error_code_that_clients_know(status: int, code: str) -> None:
    error = {"message": "m", "type": "BadRequestError", "code": status}
    *_, (_, failed) = events_of(form_of(RESPONSES).refusal(status, error))

    assert {"code": code, "message": "m"} == failed["response"]["error"]


def test_request_field_named_sequence_number_keeps_its_value() -> None:
    """A response repeats the metadata and tools of its request."""
    form = form_of(RESPONSES)
    body = form.keepalive(Keepalive.EVENT, _COMMENT) + form.passed(b"".join(STREAMS[RESPONSES][:2]))
    *_, (_, data) = events_of(body)

    [tool] = data["response"]["tools"]
    assert (2, {"sequence_number": 3}) == (data["sequence_number"], tool["parameters"])


def test_stream_event_without_a_sequence_number_is_not_counted() -> None:
    form = form_of(RESPONSES)
    form.passed(b"".join(STREAMS[RESPONSES][:2]) + b"data: [DONE]\n\n")
    [(_, failed)] = events_of(form.failure(EngineError("cut")))

    assert 2 == failed["sequence_number"]


@pytest.mark.parametrize("path", PATHS)
def test_unreadable_event_payload_does_not_fail_the_stream(path: str) -> None:
    form = stream_form(path, b'{"model": 7, "tools": ')

    assert form.keepalive(Keepalive.CHUNK, _COMMENT)
    assert form.failure(EngineError("cut"))
    assert named_event("x") == form.passed(named_event("x"))
