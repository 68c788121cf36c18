"""HTTP streams: bounded silence, and failures in the format of their API."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from itertools import pairwise
from typing import Any

import pytest

from justitia_ray.errors import ApplicationIsClosed, EngineError, EngineFailed, StreamRefused
from justitia_ray.protocol.generation_bodies import CHAT, MESSAGES, RESPONSES
from justitia_ray.protocol.stream_forms import Keepalive, stream_form
from justitia_ray.serve.asgi import Message
from justitia_ray.serve.ingress.http_streams import (
    KeepaliveTerms,
    Reply,
    ended_in_form,
    send_stream,
)
from justitia_ray.serve.ingress.replica_calls import StreamItem
from justitia_ray.serve.ingress.waiting_streams import KEEPALIVE, PlainWait
from justitia_ray.units import Seconds
from tests.harness.simulation.virtual_loop import VirtualLoop, run_virtually
from tests.unit.serve.ingress.engine_streams import BODIES, HEAD, PATHS, STREAMS, events_of

Plan = list[tuple[Seconds, StreamItem | Exception]]
"""Delay in seconds before each item of a stream: the head, chunks, or a failure."""
_KINDS = [Keepalive.EVENT, Keepalive.CHUNK, Keepalive.COMMENT]
_REFUSAL = json.dumps({"error": {"message": "m", "type": "BadRequestError", "code": 400}}).encode()


class Wire:
    """Connection to a caller in virtual time."""

    def __init__(self, slow_s: Seconds = 0.0) -> None:
        self.sent: list[tuple[Seconds, bytes]] = []
        """Time and content of each sent piece of the body."""
        self.head: Message = {}
        self.headed_at: Seconds | None = None
        self.is_whole = False
        self._slow_s = slow_s
        self._is_busy = False

    async def send(self, message: Message) -> None:
        """Accept one message at a time, as slowly as the caller reads."""
        now = asyncio.get_running_loop().time()
        assert not self._is_busy
        if message["type"] == "http.response.start":
            self.head, self.headed_at = message, now
            return
        assert not self.is_whole
        self._is_busy = True
        await asyncio.sleep(self._slow_s)
        self._is_busy = False
        if message["body"]:
            self.sent.append((now, message["body"]))
        self.is_whole = not message.get("more_body", False)

    @property
    def body(self) -> bytes:
        return b"".join(chunk for _, chunk in self.sent)


async def planned_items(plan: Plan) -> AsyncGenerator[StreamItem]:
    for after_s, item in plan:
        await asyncio.sleep(after_s)
        if isinstance(item, Exception):
            raise item
        yield item


async def answer_stream(
    reply: Reply,
    plan: Plan,
    terms: KeepaliveTerms,
    wait: PlainWait | None = None,
    since: Seconds = VirtualLoop.STARTS_AT,
    on_failure: Callable[[int], None] = lambda status: None,
) -> None:
    """Answer a call with a stream, as its endpoint does."""
    body = json.dumps(BODIES[reply.path]).encode()
    async with ended_in_form(reply):
        reply.on_failure = on_failure
        reply.keep_alive(stream_form(reply.path, body), terms, since)
        await send_stream(reply, planned_items(plan), wait)


def send_until_end(
    wire: Wire,
    plan: Plan,
    path: str = CHAT,
    interval_s: Seconds = 15.0,
    kind: Keepalive = Keepalive.EVENT,
    **options: Any,
) -> Seconds:
    """Send a stream in virtual time and return its end time."""
    loop = VirtualLoop()
    terms = KeepaliveTerms(interval_s, kind)
    run_virtually(answer_stream(Reply(path, wire.send), plan, terms, **options), loop)
    assert not loop.uncaught_errors
    return loop.time()


def slow_plan(path: str) -> Plan:
    """Return a stream that pauses in the queue, in its prefill, and after a cut."""
    first, second, *rest, last = STREAMS[path]
    return [
        (40.0, HEAD),  # in the queue
        (0.0, first),
        (70.0, second),  # in its prefill
        *((0.1, chunk) for chunk in rest),
        (0.0, b""),  # The stream was cut and waits for its next lease.
        (130.0, last),
        (20.0, b""),
    ]


@pytest.mark.parametrize("interval_s", [0.5, 2.0, 15.0, 60.0])
@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("path", PATHS)
def test_stream_is_never_silent_for_longer_than_the_interval(
    path: str, kind: Keepalive, interval_s: Seconds
) -> None:
    wire = Wire()
    ended_at = send_until_end(wire, slow_plan(path), path, interval_s, kind)

    times = [VirtualLoop.STARTS_AT, *(at for at, _ in wire.sent), ended_at]
    gaps = [later - at for at, later in pairwise(times)]
    assert max(gaps) <= interval_s
    assert len(wire.sent) <= len(STREAMS[path]) + 260 / (0.8 * interval_s)
    assert wire.is_whole


@pytest.mark.parametrize("path", PATHS)
def test_stream_with_keepalives_disabled_sends_no_keepalive(path: str) -> None:
    wire = Wire()
    send_until_end(wire, slow_plan(path), path, 2.0, Keepalive.NONE)

    assert STREAMS[path] == [chunk for _, chunk in wire.sent]


def test_active_stream_sends_no_keepalives() -> None:
    wire = Wire()
    chunk = STREAMS[CHAT][1]
    send_until_end(wire, [(0.0, HEAD), *((10.0, chunk) for _ in range(100))])

    assert [chunk] * 100 == [sent for _, sent in wire.sent]


@pytest.mark.parametrize("since_s", [0.0, 9.0, 30.0])
def test_keepalive_interval_begins_with_the_request(since_s: Seconds) -> None:
    """Silence counts from the request on, including lookups before the stream starts."""
    wire, since = Wire(), VirtualLoop.STARTS_AT - since_s
    send_until_end(wire, [(60.0, HEAD), (0.0, STREAMS[CHAT][-1])], since=since)

    assert wire.sent[0][0] - since <= max(15.0, since_s)


class SilentWait(PlainWait):
    """Queue-position lookup whose scheduler never answers, or answers with a fixed text."""

    def __init__(self, says: bytes | None = None) -> None:
        self.waits = 0
        self.asked = 0
        self._says = says

    def begin(self) -> None:
        self.waits += 1

    def end(self) -> None:
        self.waits -= 1

    async def comment(self) -> bytes:
        assert self.waits
        self.asked += 1
        if self._says is None:
            await asyncio.Event().wait()
        return self._says or b""


@pytest.mark.parametrize("interval_s", [0.5, 2.0, 15.0])
def test_keepalive_is_not_delayed_by_a_scheduler_that_does_not_answer(interval_s: Seconds) -> None:
    wire, wait = Wire(), SilentWait()
    send_until_end(wire, [(40.0, HEAD), (0.0, STREAMS[CHAT][-1])], interval_s=interval_s, wait=wait)

    times = [VirtualLoop.STARTS_AT, *(at for at, _ in wire.sent)]
    assert max(later - at for at, later in pairwise(times)) <= interval_s
    assert KEEPALIVE == wire.sent[0][1]
    assert 0 == wait.waits


@pytest.mark.parametrize(
    ("path", "kind", "asks"),
    [
        (CHAT, Keepalive.EVENT, True),
        (MESSAGES, Keepalive.EVENT, True),
        (MESSAGES, Keepalive.COMMENT, True),
        (MESSAGES, Keepalive.CHUNK, False),
        (RESPONSES, Keepalive.NONE, False),
    ],
)
def test_waiting_stream_sends_its_queue_position(path: str, kind: Keepalive, asks: bool) -> None:
    """During prefill, or without comments, the position is not requested."""
    wire, wait = Wire(), SilentWait(b": justitia position=7\n\n")
    first, second, *rest = STREAMS[path]
    plan: Plan = [(20.0, HEAD), (0.0, first), (20.0, second), (0.0, b"")]
    send_until_end(
        wire, [*plan, *((20.0, chunk) for chunk in rest[:1])], path, 15.0, kind, wait=wait
    )

    assert (2 * asks, 2 * asks) == (wait.asked, wire.body.count(b": justitia position=7"))


def test_slow_caller_gets_one_stream_message_at_a_time() -> None:
    wire = Wire(slow_s=50.0)
    send_until_end(wire, slow_plan(CHAT), interval_s=2.0)

    assert STREAMS[CHAT] == [c for _, c in wire.sent if c != KEEPALIVE]
    times = [at for at, _ in wire.sent]
    assert min(later - at for at, later in pairwise(times)) > 49.9


def test_keepalive_does_not_split_an_event() -> None:
    wire = Wire()
    whole = STREAMS[CHAT][1]
    send_until_end(wire, [(0.0, HEAD), (0.0, whole[:9]), (40.0, whole[9:]), (20.0, b"")])

    assert wire.body.startswith(whole)
    assert KEEPALIVE in wire.body


@pytest.mark.parametrize("after_s", [0.0, 40.0])
def test_stream_head_disables_proxy_buffering(after_s: Seconds) -> None:
    """Proxies buffer a stream whose head lacks `X-Accel-Buffering`."""
    wire = Wire()
    send_until_end(
        wire, [(after_s, (200, {**HEAD[1], "X-Justitia-Replica": "r"})), (0.0, b"a\n\n")]
    )

    head = dict(wire.head["headers"])
    assert b"no-cache" == head[b"cache-control"]
    assert b"no" == head[b"x-accel-buffering"]
    assert b"text/event-stream; charset=utf-8" == head[b"content-type"]
    assert (after_s == 0.0) == (b"x-justitia-replica" in head)


def test_stream_head_before_the_first_keepalive_names_the_application() -> None:
    """The application is known before the queue; the engine's headers are not."""
    wire = Wire()
    reply = Reply(CHAT, wire.send)
    reply.early_head = {"x-justitia-application": "a/1"}
    terms = KeepaliveTerms(15.0, Keepalive.EVENT)
    engines = (200, {**HEAD[1], "X-Justitia-Replica": "r"})
    run_virtually(answer_stream(reply, [(40.0, engines), (0.0, b"a\n\n")], terms), VirtualLoop())

    head = dict(wire.head["headers"])
    assert b"a/1" == head[b"x-justitia-application"]
    assert b"x-justitia-replica" not in head


def send_failing(plan: Plan, path: str, error: type[Exception]) -> tuple[Wire, list[int]]:
    """Send a stream that fails; return the connection and the counted statuses."""
    wire, counted = Wire(), list[int]()
    with pytest.raises(error):
        send_until_end(wire, plan, path, on_failure=counted.append)
    return wire, counted


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("begun_by", ["engine", "chunk", "sign of life"])
def test_stream_failure_after_the_head_is_sent_to_the_caller_and_raised(
    path: str, begun_by: str
) -> None:
    """Ray Serve counts the raised error; the caller has read it in its API's format."""
    error = ApplicationIsClosed("application 'a' was cancelled")
    plan: Plan = [(40.0, error)]
    if begun_by != "sign of life":
        plan = [(0.0, HEAD), *([(0.0, STREAMS[path][0])] * (begun_by == "chunk")), (1.0, error)]
    wire, counted = send_failing(plan, path, ApplicationIsClosed)

    name, _ = events_of(wire.body)[-1]
    expected = {MESSAGES: "error", RESPONSES: "response.failed"}.get(path)
    assert expected == name
    assert b"was cancelled" in wire.sent[-1][1]
    assert [409] == counted
    assert (200, True) == (wire.head["status"], wire.is_whole)
    assert b"[DONE]" not in wire.body


def test_stream_failure_before_the_head_is_a_plain_error_answer() -> None:
    wire, counted = send_failing([(1.0, EngineError("gave up"))], CHAT, EngineError)

    assert ({}, [], []) == (wire.head, wire.sent, counted)


@pytest.mark.parametrize("path", PATHS)
def test_engine_refusal_after_the_stream_head_has_the_format_of_the_api(path: str) -> None:
    """The engine's status comes too late; its text is sent to the caller and not logged."""
    refusal: Plan = [(40.0, (400, {})), (0.0, _REFUSAL)]
    wire, counted = Wire(), list[int]()
    with pytest.raises(StreamRefused) as refused:
        send_until_end(wire, refusal, path, on_failure=counted.append)

    _, last = events_of(wire.body)[-1]
    error = last["response"]["error"] if path == RESPONSES else last["error"]
    assert "m" == error["message"]
    assert ([400], True) == (counted, wire.is_whole)
    assert "'m'" not in str(refused.value)
    told = Wire()
    send_until_end(told, [(1.0, (400, {})), (0.0, _REFUSAL)], path)
    assert 400 == told.head["status"]


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"detail": "Not Found"}', b"", b"\xff"])
@pytest.mark.parametrize("path", PATHS)
def test_engines_refusal_of_any_form_becomes_an_error_event(path: str, body: bytes) -> None:
    wire, _ = send_failing([(40.0, (502, {})), (0.0, body)], path, StreamRefused)

    _, last = events_of(wire.body)[-1]
    assert (last["response"] if path == RESPONSES else last)["error"]["message"]


@pytest.mark.parametrize("path", PATHS)
def test_error_event_of_the_engine_is_not_repeated(path: str) -> None:
    chunk = STREAMS[path][0]
    wire, counted = send_failing(
        [(0.0, HEAD), (0.0, chunk), (0.0, EngineFailed("failed"))], path, EngineFailed
    )

    assert (chunk, [502], True) == (wire.body, counted, wire.is_whole)


def test_unexpected_stream_failure_is_sent_without_its_text() -> None:
    wire, counted = send_failing(
        [(0.0, HEAD), (0.0, ZeroDivisionError("secret"))], CHAT, ZeroDivisionError
    )

    assert b"its log says why" in wire.body
    assert b"secret" not in wire.body
    assert ([500], True) == (counted, wire.is_whole)


def test_each_stream_uses_one_timer() -> None:
    """A thousand streams of a minute cause a handful of timer turns per chunk."""
    chunk = STREAMS[CHAT][1]
    plan: Plan = [(0.0, HEAD), *((1.0, chunk) for _ in range(60))]

    async def answer_thousand_streams(terms: KeepaliveTerms) -> None:
        wires = [Wire() for _ in range(1_000)]
        await asyncio.gather(
            *(answer_stream(Reply(CHAT, wire.send), plan, terms) for wire in wires)
        )

    without, with_signs = VirtualLoop(), VirtualLoop()
    run_virtually(answer_thousand_streams(KeepaliveTerms(15.0, Keepalive.NONE)), without)
    run_virtually(answer_thousand_streams(KeepaliveTerms(15.0)), with_signs)

    assert 0 < with_signs.taken - without.taken <= 1_000 * (60 / 14 + 1)


class SlowWire(Wire):
    """Slow caller that records every message, including the head."""

    def __init__(self) -> None:
        super().__init__(slow_s=50.0)
        self.kinds: list[tuple[str, bool]] = []
        """Type of each message, and whether the previous one was still being sent."""
        self._sending = 0

    async def send(self, message: Message) -> None:
        self.kinds.append((message["type"].rpartition(".")[2], bool(self._sending)))
        self._sending += 1
        await asyncio.sleep(50.0)
        self._sending -= 1


@pytest.mark.parametrize(
    ("plan", "sent"),
    [
        pytest.param([(5.0, (400, {})), (0.0, _REFUSAL)], ["start", "body"], id="whole answer"),
        pytest.param([(5.0, HEAD)], ["start", "body"], id="head and end"),
        pytest.param(
            [(5.0, HEAD), (0.0, STREAMS[CHAT][1])], ["start", "body", "body"], id="chunk and end"
        ),
    ],
)
@pytest.mark.parametrize("interval_s", [7.0, 15.0, 40.0])
def test_keepalive_is_sent_only_between_stream_messages(
    plan: Plan, sent: list[str], interval_s: Seconds
) -> None:
    """A caller that reads slowly still has unread data, so no keepalive is due."""
    wire = SlowWire()
    send_until_end(wire, plan, interval_s=interval_s)

    assert [(kind, False) for kind in sent] == wire.kinds
