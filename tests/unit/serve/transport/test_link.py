"""Calls and streams over a connection: order, flow control, cancellation, errors, loss."""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from aiohttp import WSMsgType

from justitia_ray.errors import (
    ConnectionLost,
    EngineError,
    JustitiaError,
    RemoteFailure,
    SchedulerSuperseded,
    UnknownLease,
)
from justitia_ray.serve.transport.connection import Connection
from justitia_ray.serve.transport.frames import (
    Answer,
    Cancel,
    End,
    Failure,
    Item,
    Message,
    Ping,
)
from justitia_ray.serve.transport.link import SocketLink
from justitia_ray.serve.transport.peer_host import tcp_counts
from tests.eventually import eventually
from tests.harness.simulation.virtual_loop import run_virtually
from tests.unit.serve.transport.ends import (
    HOST,
    KEY,
    METHODS,
    NAME,
    FakeSocket,
    Served,
    dialer_with,
    linked,
    listener_of,
)
from tests.unit.serve.transport.test_frames import raw_value, read_frames


@pytest.fixture
def served() -> Served:
    return Served()


@pytest.fixture
async def link(served: Served) -> AsyncIterator[SocketLink]:
    async with linked(served) as link:
        yield link


# --- calls and streams


async def test_concurrent_calls_on_a_connection_get_the_right_answers(link: SocketLink) -> None:
    calls = (link.call("echo", number) for number in range(500))

    assert [*range(500)] == await asyncio.gather(*calls)


async def test_large_bodies_are_sent_in_both_directions(link: SocketLink) -> None:
    body = bytes(range(256)) * 20_000

    assert body == await link.call("echo", body)


async def test_small_call_is_answered_while_a_large_body_is_being_sent(
    link: SocketLink, served: Served
) -> None:
    order: list[str] = []

    async def call_and_note(value: Any, name: str) -> None:
        await link.call("echo", value)
        order.append(name)

    async with asyncio.TaskGroup() as group:
        group.create_task(call_and_note(bytes(20_000_000), "large"))
        group.create_task(call_and_note(1, "small"))

    assert ["small", "large"] == order


async def test_stream_delivers_its_items_in_order_and_ends(link: SocketLink) -> None:
    """The stream is complete, however many items arrive at once."""
    batches = [items async for items in link.stream("count", "s", 1_000)]

    assert [*range(1, 1_001)] == [item for items in batches for item in items]
    assert [] == [items async for items in link.stream("count", "empty", 0)]


async def test_unread_stream_is_paused_while_other_streams_continue(
    link: SocketLink, served: Served
) -> None:
    """Neither side buffers unread items without limit."""
    async with aclosing(link.stream("count", "slow", 2_000)) as slow:
        seen = [*await anext(slow)]
        async for _ in link.stream("count", "fast", 2_000):
            held_back = served.counted["slow"]

        assert 64 <= held_back < 1_000
        assert held_back == served.counted["slow"]
        async for items in slow:
            assert len(items) < 1_000
            seen += items

    assert [*range(1, 2_001)] == seen


# --- cancellation


async def test_call_cancelled_before_sending_is_not_sent(link: SocketLink, served: Served) -> None:
    """The caller was cancelled in the loop turn of its call."""
    task = asyncio.create_task(link.call("work"))
    task.cancel()
    await asyncio.wait([task])
    await link.call("echo", 1)

    assert ["echo"] == served.begun


async def test_call_cancelled_immediately_after_sending_does_not_start(
    link: SocketLink, served: Served
) -> None:
    """Call and cancel arrive in one frame, so the task never starts."""
    task = asyncio.create_task(link.call("work"))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    await link.call("echo", 1)

    assert ["echo"] == served.begun


async def test_cancelling_a_call_cancels_the_remote_work(link: SocketLink, served: Served) -> None:
    """While the connection lasts, cancelled work is not repeated elsewhere."""
    task = asyncio.create_task(link.call("work"))
    await eventually(lambda: served.begun, "it works")
    task.cancel()

    await eventually(lambda: served.ended == ["work cancelled: lost=False"], "it ends there")


async def test_uncancellable_call_continues_without_its_caller(
    link: SocketLink, served: Served
) -> None:
    task = asyncio.create_task(link.call("finish"))
    await eventually(lambda: served.begun, "it has begun")
    task.cancel()
    await link.call("echo", 1)
    served.may_end.set()

    await eventually(lambda: served.ended == ["finish"], "it was done")


async def test_closing_a_stream_early_ends_the_remote_generator(
    link: SocketLink, served: Served
) -> None:
    for read_until in (1, 200):
        async with aclosing(link.stream("count", "s", -1)) as batches:
            async for items in batches:
                if items[-1] >= read_until:
                    break
        await eventually(lambda: served.ended == ["s: lost=False"], "it ends there")
        served.ended.clear()


async def test_abandoned_calls_fail_locally_and_are_cancelled_remotely(
    link: SocketLink, served: Served
) -> None:
    lost = EngineError("another lease")
    kept = aclosing(link.stream("count", "kept", -1))
    async with kept as others, aclosing(link.stream("count", "s", -1)) as batches:
        await anext(others)
        await anext(batches)
        link.abandon("s", lost)
        with pytest.raises(EngineError, match="another lease"):
            async for _ in batches:
                pass
        await eventually(lambda: served.ended == ["s: lost=False"], "it ends there")
        assert await anext(others)
    link.abandon("s", lost)

    assert 1 == await link.call("echo", 1)


@pytest.mark.parametrize(
    "in_flight",
    [
        [Item(1, raw_value(7))],
        [Item(1, raw_value(7)), End(1)],
        [End(1)],
        [Failure(1, "EngineError", ["dead"])],
    ],
)
async def test_abandoned_stream_drops_unread_items(in_flight: list[Message]) -> None:
    """Item 7 was in transit when the reader dropped items 5 and 6."""
    socket = FakeSocket()
    link = SocketLink(socket.as_socket, "peer", METHODS)
    stream = link.stream("count", "s", 7)
    first = asyncio.create_task(anext(stream))
    await eventually(lambda: socket.sent, "it is sent")
    socket.receive_messages(*(Item(1, raw_value(number)) for number in range(1, 5)))
    assert [1, 2, 3, 4] == await first
    socket.receive_messages(Item(1, raw_value(5)), Item(1, raw_value(6)))
    await eventually(socket.arriving.empty, "they wait to be read")
    link.abandon("s", UnknownLease("lease-1", "replica-1"))
    socket.receive_messages(*in_flight)
    await eventually(socket.arriving.empty, "the last messages came")

    with pytest.raises(UnknownLease):
        await anext(stream)

    await link.close()


async def test_abandoned_call_fails_although_its_answer_was_in_flight() -> None:
    socket = FakeSocket()
    link = SocketLink(socket.as_socket, "peer", METHODS)
    call = asyncio.create_task(link.call("echo", "s"))
    await eventually(lambda: socket.sent, "it is sent")
    link.abandon("s", UnknownLease("lease-1", "replica-1"))
    link._take_message(Answer(1, raw_value("late")))

    with pytest.raises(UnknownLease):
        await call

    await link.close()


async def test_ended_call_sends_no_cancel_message() -> None:
    """A cancel for each finished call would double the messages."""
    socket = FakeSocket()
    link = SocketLink(socket.as_socket, "peer", METHODS)
    calls = [asyncio.create_task(link.call("echo", number)) for number in range(3)]
    await eventually(lambda: socket.sent, "the calls are sent")
    socket.receive_messages(Answer(1, raw_value("a")), Failure(2, "EngineError", ["dead"]))
    await asyncio.wait(calls[:2])
    calls[2].cancel()
    await eventually(lambda: len(socket.sent) > 1, "a cancel is sent")
    await link.close()

    assert [Cancel(3)] == read_frames(*socket.sent[1:])


# --- errors


@pytest.mark.parametrize(
    "error",
    [
        UnknownLease("lease-1", "replica-1"),
        SchedulerSuperseded("another leads", 7.5),
        EngineError("dead"),
        ConnectionLost("to somebody else"),
        JustitiaError("of some kind", 1, None),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_remote_error_arrives_with_its_class_and_fields(
    link: SocketLink, served: Served, error: JustitiaError
) -> None:
    served.error = error
    with pytest.raises(type(error)) as raised:
        await link.call("fail")

    assert (error.args, vars(error)) == (raised.value.args, vars(raised.value))
    assert not link.is_lost


async def test_internal_error_is_logged_without_the_calls_arguments(
    link: SocketLink, served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller receives a generic error; prompts must not appear in a log."""
    served.error = ZeroDivisionError("division by zero")
    with pytest.raises(RemoteFailure, match="replica-1 failed to answer: ZeroDivisionError"):
        await link.call("fail")

    (record,) = [record for record in caplog.records if record.message == "call.failed"]
    assert "in fail\n    raise self.error" in caplog.text
    assert record.exc_info is not None
    assert 1 == await link.call("echo", 1)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (("count", "secret prompt", "x"), "ValidationError"),
        (("echo", "secret prompt"), "TypeError"),
    ],
)
async def test_undecodable_call_or_unencodable_answer_is_an_internal_error(
    link: SocketLink,
    served: Served,
    call: tuple[Any, ...],
    named: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The call's content is not logged, and the connection stays open."""
    monkeypatch.setattr(METHODS["echo"], "pack_answer", lambda answer: object())
    with pytest.raises(RemoteFailure, match=named):
        await link.call(*call)

    assert "call.failed" in caplog.text
    assert "secret prompt" not in caplog.text
    assert "finish" == await _call_finish(link, served)


async def test_unsendable_remote_error_becomes_a_failure_with_its_name(
    link: SocketLink, served: Served
) -> None:
    """An error whose class needs more than a text cannot be rebuilt by the caller.

    The connection stays open.
    """
    served.error = UnknownLease(object(), "replica-1")  # type: ignore[arg-type]
    with pytest.raises(RemoteFailure, match="UnknownLease"):
        await link.call("fail")
    served.error = EngineError(object())
    with pytest.raises(EngineError, match="object object at"):
        await link.call("fail")

    assert "finish" == await _call_finish(link, served)


async def test_call_cancelled_on_the_remote_side_is_answered(
    link: SocketLink, served: Served
) -> None:
    served.error = asyncio.CancelledError()
    with pytest.raises(RemoteFailure, match="CancelledError"):
        await link.call("fail")

    assert "finish" == await _call_finish(link, served)


async def test_call_of_an_unknown_remote_method_fails(
    link: SocketLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(link._methods, "later", METHODS["finish"])
    methods = {**METHODS}
    monkeypatch.delitem(METHODS, "later")
    link._methods = methods
    with pytest.raises(RemoteFailure, match="KeyError"):
        await link.call("later")


async def test_answer_of_a_wrong_type_fails_only_its_call() -> None:
    """A reading loop may only be prepared for the declared errors."""
    socket = FakeSocket()
    link = SocketLink(socket.as_socket, "peer", METHODS)
    call = asyncio.create_task(link.call("work"))
    await eventually(lambda: socket.sent, "it is sent")
    socket.receive_messages(Answer(1, raw_value(7)))
    with pytest.raises(RemoteFailure, match="the answer of peer to work cannot be read"):
        await call

    assert not link.is_lost
    await link.close()


async def test_call_with_unsendable_arguments_leaves_no_entry(link: SocketLink) -> None:
    """A call that was never sent must not wait for an answer."""
    for wrong in (object(), 2**70):
        with pytest.raises((TypeError, OverflowError)):
            await link.call("echo", wrong)
    with pytest.raises(ValueError, match="zip"):
        await link.call("echo")

    assert {} == link._pending


async def _call_finish(link: SocketLink, served: Served) -> Any:
    served.may_end.set()
    return await link.call("finish")


# --- loss


async def test_lost_connection_fails_every_call_and_cancels_remote_work(
    link: SocketLink, served: Served
) -> None:
    """Work for the lost caller may be repeated elsewhere; other connections' calls continue."""
    calls = [asyncio.create_task(link.call(method)) for method in ("work", "finish")]
    stream = link.stream("count", "s", -1)
    await anext(stream)
    await eventually(lambda: len(served.begun) == 2, "both are served")
    closing = asyncio.create_task(link.close())
    with pytest.raises(ConnectionLost, match="connection to replica-1 is lost: it is closed here"):
        async for _ in stream:
            pass
    done, _ = await asyncio.wait(calls)

    assert {ConnectionLost} == {type(call.exception()) for call in done}
    assert link.is_lost
    with pytest.raises(ConnectionLost):
        await link.call("echo", 1)
    await closing
    await eventually(lambda: len(served.ended) == 2, "what works ends")
    assert {"work cancelled: lost=True", "s: lost=True"} == {*served.ended}
    assert 1 == len(served.lost)
    served.may_end.set()
    await eventually(lambda: "finish" in served.ended, "the other goes on")


async def seconds_until_failure(lose: Any) -> float:
    """Return the seconds between the loss and the failure of the connection's calls."""
    socket, loop = FakeSocket(closing_s=0.3), asyncio.get_running_loop()
    link = SocketLink(socket.as_socket, "peer", METHODS)
    failed_at: list[float] = []

    async def call_until_lost() -> None:
        with pytest.raises(ConnectionLost):
            await link.call("work")
        failed_at.append(loop.time())

    calls = [asyncio.create_task(call_until_lost()) for _ in range(3)]
    await asyncio.sleep(1.5)
    lost_at = loop.time()
    lose(socket, link)
    await asyncio.wait(calls)
    await link.close()
    assert socket.is_closed
    assert 1 == len(set(failed_at))
    return failed_at[0] - lost_at


@pytest.mark.parametrize(
    "lose",
    [
        lambda socket, link: socket.arriving.put_nowait(None),
        lambda socket, link: socket.receive_messages(kind=WSMsgType.TEXT),
        lambda socket, link: socket.receive_messages(kind=WSMsgType.ERROR),
        lambda socket, link: link._connection.abort("here"),
    ],
    ids=["closed there", "a text", "an error", "closed here"],
)
def test_calls_fail_as_soon_as_their_connection_is_lost(lose: Any) -> None:
    """The closing handshake may take half a second, and calls must not wait for it."""
    assert 0.0 == run_virtually(seconds_until_failure(lose))


# --- keepalive


async def run_until_lost(socket: FakeSocket, standstill_s: float = 0.0) -> tuple[list[str], float]:
    """Run a connection until it is lost; return the reason and the seconds it took."""
    loop, reasons = asyncio.get_running_loop(), []
    began = loop.time()
    ended_at: list[float] = []

    def note_loss(reason: str) -> None:
        reasons.append(reason)
        ended_at.append(loop.time())

    await Connection(socket.as_socket, lambda message: None, note_loss, standstill_s).run()
    return reasons, ended_at[0] - began


def test_connection_to_a_silent_process_ends_after_five_pings() -> None:
    """One ping is sent per second, and the connection counts as lost at the sixth."""

    async def measure_silence() -> None:
        socket = FakeSocket()
        reasons, lived_s = await run_until_lost(socket)
        assert ["the other side was silent for 5 s"] == reasons
        assert 6.0 == lived_s
        assert [Ping()] * 5 == read_frames(*socket.sent)

    run_virtually(measure_silence())


def test_connection_to_a_silent_process_stays_while_its_machine_answers() -> None:
    """The process is busy or suspended, and its inferences would be lost with the connection."""

    async def measure_silence() -> None:
        socket = FakeSocket()
        socket.machine = tcp_counts(retransmits=0, probes=0, last_ack_s=0.5)
        reasons, lived_s = await run_until_lost(socket, standstill_s=30.0)
        assert ["the other side was silent for 30 s"] == reasons
        assert 31.0 == lived_s

    run_virtually(measure_silence())


def test_connection_to_a_silent_process_ends_when_its_machine_vanishes() -> None:
    async def measure_vanishing() -> None:
        socket = FakeSocket()
        socket.machine = tcp_counts(retransmits=0, probes=0, last_ack_s=0.5)
        silent = tcp_counts(retransmits=4, probes=0, last_ack_s=5.0)
        asyncio.get_running_loop().call_later(9.5, setattr, socket, "machine", silent)
        reasons, lived_s = await run_until_lost(socket, standstill_s=30.0)
        assert ["the other side was silent for 9 s"] == reasons
        assert 10.0 == lived_s

    run_virtually(measure_vanishing())


def test_connection_stays_open_while_the_peer_sends_any_message() -> None:
    async def measure_speaking() -> float:
        socket = FakeSocket()

        async def send_pings() -> None:
            for _ in range(20):
                await asyncio.sleep(5.0)
                socket.receive_messages(Ping())

        speaking = asyncio.create_task(send_pings())
        _, lived_s = await run_until_lost(socket)
        await speaking
        return lived_s

    assert 106.0 == run_virtually(measure_speaking())


def test_suspended_process_keeps_its_connections() -> None:
    """After a minute of suspension, the other side's pings wait unread in the buffers."""

    async def measure_suspension() -> float:
        socket, loop = FakeSocket(), asyncio.get_running_loop()

        async def suspend_process() -> None:
            await asyncio.sleep(2.5)
            loop._now += 60.0  # type: ignore[attr-defined]  # no other task runs
            socket.receive_messages(*[Ping()] * 60)

        standing = asyncio.create_task(suspend_process())
        _, lived_s = await run_until_lost(socket)
        await standing
        return lived_s

    assert run_virtually(measure_suspension()) > 60.0 + 5.0


# --- leaks


async def test_ended_calls_leave_no_state_in_the_connection(
    link: SocketLink, served: Served
) -> None:
    for _ in range(3):
        await link.call("echo", 1)
        async for items in link.stream("count", "s", 200):
            del items
        served.error = EngineError("dead")
        with pytest.raises(EngineError):
            await link.call("fail")
        task = asyncio.create_task(link.call("work"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    assert {} == link._pending
    assert 0 == link._connection._outgoing.size_bytes


def test_closing_the_event_loop_causes_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A process may end with open connections that have running calls."""

    async def main() -> None:
        listener = listener_of(Served())
        await listener.start(HOST)
        link = await dialer_with(KEY).dial(listener.address, NAME)
        await link.call("echo", 1)
        calls = [asyncio.create_task(link.call(method)) for method in ("work", "finish")]
        await asyncio.wait(calls, timeout=0)
        assert listener._server is not None
        listener._server.close()  # The listening port is closed; its connections stay open.

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
        gc.collect()

    assert [] == [record.getMessage() for record in caplog.records]


async def test_stream_items_that_arrive_after_the_end_are_dropped() -> None:
    socket = FakeSocket()
    link = SocketLink(socket.as_socket, "peer", METHODS)
    stream = link.stream("count", "s", 2)
    first = asyncio.create_task(anext(stream))
    await eventually(lambda: socket.sent, "it is sent")
    socket.receive_messages(Item(1, raw_value(1)))
    assert [1] == await first
    await stream.aclose()
    socket.receive_messages(Item(1, raw_value(2)), Item(77, raw_value(2)))
    await eventually(lambda: socket.arriving.empty(), "they came")

    assert {} == link._pending
    await link.close()
