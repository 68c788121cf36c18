"""The port of a process: accepted and refused connections, and bounds on what a peer can use."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import aiohttp
import msgspec
import pytest
import ray

from justitia_ray.config import TransportSection
from justitia_ray.errors import ConfigError, ConnectionLost
from justitia_ray.serve.transport import endpoint, listener
from justitia_ray.serve.transport.frames import (
    PIECE_BYTES,
    Call,
    Item,
    PauseStream,
    ResumeStream,
)
from justitia_ray.serve.transport.handshake import Key, Keyring
from justitia_ray.serve.transport.listener import PATH, Listener
from tests.eventually import eventually
from tests.harness.local_front import free_port
from tests.harness.simulation.virtual_loop import run_virtually
from tests.unit.serve.transport.ends import (
    CALLER,
    HOST,
    KEY,
    METHODS,
    NAME,
    FakeSocket,
    Served,
    dialer_with,
    frame_of,
    listener_of,
    listening,
)
from tests.unit.serve.transport.test_frames import raw_value, read_frames


@pytest.fixture
def served() -> Served:
    return Served()


@pytest.fixture
async def port(served: Served) -> AsyncIterator[Listener]:
    async with listening(served) as listener:
        yield listener


async def is_accepted(port: Listener, *keys: Key) -> bool:
    """Return whether a process with these keys is accepted."""
    link = await dialer_with(*(keys or (KEY,))).dial(port.address, NAME)
    answer = await link.call("echo", "here")
    await link.close()
    return bool(answer == "here")


def logged_refusals(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    lines = [record.getMessage() for record in caplog.records]
    return [
        json.loads(line.partition(" ")[2]) for line in lines if line.startswith("connection.ref")
    ]


# --- keys


async def test_caller_with_the_previous_key_is_served(served: Served) -> None:
    """The caller has not yet received the new scheduler's key."""
    old, current = Key.new(), Key.new()
    async with listening(served, old, current) as port:
        assert await is_accepted(port, old)
        assert await is_accepted(port, current)


async def test_caller_tries_the_previous_key_after_a_refusal(
    port: Listener,
) -> None:
    assert await is_accepted(port, KEY, Key.new())
    with pytest.raises(ConnectionLost, match="replica-1 does not know key"):
        await is_accepted(port, Key.new(), Key.new())


async def test_wrong_secret_is_refused_without_a_retry(
    port: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    """An unknown process may have taken the port, and gets no further proof."""
    wrong = Key(KEY.key_id, b"w" * 32)
    with pytest.raises(ConnectionLost, match="does not know the secret of key"):
        await is_accepted(port, KEY, wrong)

    await eventually(lambda: logged_refusals(caplog), "it is logged")
    assert repr(KEY.secret)[2:-1] not in caplog.text


async def test_caller_without_a_key_opens_no_connection() -> None:
    """The caller has not yet found the scheduler, which distributes the key."""
    with pytest.raises(ConnectionLost, match="no key is known yet"):
        await dialer_with().dial("127.0.0.1:1", NAME)


async def test_invalid_handshake_answer_counts_as_a_lost_connection() -> None:
    """The port is closed, or it accepts connections and sends nothing valid."""
    where = f"{HOST}:{free_port()}"
    with pytest.raises(ConnectionLost, match=f"no connection to replica-1 at {where}: .*onnect"):
        await dialer_with(KEY).dial(where, NAME)

    async def answer_as_mail_server(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(b"220 mail.example.org ESMTP\r\n")
        writer.close()

    server = await asyncio.start_server(answer_as_mail_server, HOST, 0)
    async with server:
        address = f"{HOST}:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ConnectionLost, match=f"at {address}: ."):
            await dialer_with(KEY).dial(address, NAME)


# --- strangers


async def test_repeated_connection_refusals_are_logged_less_and_less_often(
    port: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    """A process with another deployment's key retries forever."""
    for _ in range(9):
        with pytest.raises(ConnectionLost):
            await is_accepted(port, Key.new())

    assert [1, 2, 4, 8] == [line["refused_so_far"] for line in logged_refusals(caplog)]
    assert "replica-1 does not know key" in logged_refusals(caplog)[0]["reason"]


@pytest.mark.parametrize("send", [b"\xc1garbage", b"x" * 100_000, b"x" * 3_000_000, "a text"])
async def test_invalid_connection_is_closed_and_others_are_served(
    port: Listener, caplog: pytest.LogCaptureFixture, send: bytes | str
) -> None:
    url = f"http://{port.address}{PATH}"
    async with aiohttp.ClientSession() as session, session.ws_connect(url) as stranger:
        with suppress(aiohttp.ClientConnectionResetError):  # the connection may close meanwhile
            if isinstance(send, str):
                await stranger.send_str(send)
            else:
                await stranger.send_bytes(send)
        answer = await stranger.receive()

    assert answer.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
    assert await is_accepted(port)
    assert 1 == len(logged_refusals(caplog))


async def test_unauthenticated_caller_cannot_fill_the_memory(
    port: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of 256 connections could fill memory with a frame that is never complete."""
    host, _, number = port.address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(number))
    head = f"GET {PATH} HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    keys = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    writer.write((head + keys).encode())
    await reader.readuntil(b"\r\n\r\n")
    of_a_million = b"\x82\xff" + (10**6).to_bytes(8, "big") + bytes(4)
    writer.write(of_a_million + bytes(20_000))  # and no more
    async with asyncio.timeout(listener.HANDSHAKE_S / 2):
        with suppress(ConnectionResetError):
            assert b"" == await reader.read()
    writer.close()

    assert await is_accepted(port)
    assert ["more than 16384 bytes came without a proof"] == [
        line["reason"] for line in logged_refusals(caplog)
    ]


async def test_authenticated_process_may_send_longer_messages(port: Listener) -> None:
    link = await dialer_with(KEY).dial(port.address, NAME)
    for size in (10, 30_000, 3_000_000):
        assert bytes(size) == await link.call("echo", bytes(size))
    await link.close()


async def test_slow_unauthenticated_connection_times_out(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Tested: a silent WebSocket, a silent TCP connection, and a slow HTTP request."""
    monkeypatch.setattr(listener, "HANDSHAKE_S", 0.1)
    async with listening(served) as port, aiohttp.ClientSession() as session:
        host, _, number = port.address.partition(":")
        plain = [await asyncio.open_connection(host, int(number)) for _ in range(3)]
        plain[0][1].write(f"GET {PATH} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        plain[1][1].write(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        async with session.ws_connect(f"http://{port.address}{PATH}") as stranger:
            assert (await stranger.receive()).type is aiohttp.WSMsgType.CLOSE
        answers = [await reader.read() for reader, _ in plain]  # until the connection is closed

        assert [b"HTTP/1.1 400", b"HTTP/1.1 404", b""] == [answer[:12] for answer in answers]
        assert await is_accepted(port)
        for _, writer in plain:
            writer.close()
    assert ["no handshake within 0.1 s"] == [line["reason"] for line in logged_refusals(caplog)]


async def test_excess_unauthenticated_connections_are_closed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known processes do not count, because their number is limited."""
    monkeypatch.setattr(listener, "_MAX_STRANGERS", 3)
    monkeypatch.setattr(listener, "HANDSHAKE_S", 0.5)
    async with listening(served) as port, AsyncExitStack() as stack:
        for _ in range(5):
            link = await dialer_with(KEY).dial(port.address, NAME)
            stack.push_async_callback(link.close)
        host, _, number = port.address.partition(":")
        strangers = [await asyncio.open_connection(host, int(number)) for _ in range(3)]
        with pytest.raises(ConnectionLost):
            await is_accepted(port)
        for reader, writer in strangers:
            assert b"" == await reader.read()
            writer.close()
        assert await is_accepted(port)
        assert 1 == await link.call("echo", 1)


async def test_calls_before_the_handshake_are_not_served(port: Listener, served: Served) -> None:
    url = f"http://{port.address}{PATH}"
    frame = frame_of(Call(1, "echo", raw_value(["x"])))
    async with aiohttp.ClientSession() as session, session.ws_connect(url) as stranger:
        for _ in range(3):
            await stranger.send_bytes(frame)
        await stranger.receive()

    assert [] == served.begun


# --- limits of an admitted peer


def peer_with(*messages: Any) -> FakeSocket:
    fake = FakeSocket()
    fake.receive_messages(*messages)
    return fake


def test_memory_of_unread_streams_is_bounded(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred streams of large items go to an ingress that does not read."""

    async def flood_peer() -> None:
        made = 0

        async def flood_items(*_: Any) -> AsyncGenerator[Any]:
            nonlocal made
            while True:
                made += 1
                yield bytes(PIECE_BYTES - 100)

        monkeypatch.setattr(served, "count", flood_items)
        fake = peer_with(*(Call(n, "count", raw_value(["s", -1])) for n in range(100)))
        fake.takes.clear()
        serving = asyncio.create_task(listener_of(served).serve_calls(fake.as_socket, CALLER))
        await asyncio.sleep(3.0)
        bound = made
        assert 60 <= bound <= 100 + 4 * 2**20 // PIECE_BYTES + 20
        fake.takes.set()
        await asyncio.sleep(0)
        fake.takes.clear()
        await asyncio.sleep(1.0)
        assert bound < made < bound + 200
        fake.arriving.put_nowait(None)
        await serving

    run_virtually(flood_peer())


def test_paused_stream_generates_no_items_until_resumed(served: Served) -> None:
    async def pause_streams() -> None:
        fake = peer_with(
            PauseStream(7), Call(1, "count", raw_value(["s", -1])), PauseStream(1), ResumeStream(9)
        )
        serving = asyncio.create_task(listener_of(served).serve_calls(fake.as_socket, CALLER))
        await asyncio.sleep(0.5)
        assert 1 == served.counted["s"]
        fake.receive_messages(ResumeStream(1))
        await asyncio.sleep(0)
        fake.receive_messages(PauseStream(1))
        await asyncio.sleep(0.5)
        held = served.counted["s"]
        assert 1 < held < 20
        await asyncio.sleep(0.5)
        assert held == served.counted["s"]
        fake.arriving.put_nowait(None)  # The connection is lost while the stream is paused.
        await serving
        await asyncio.sleep(0)
        assert ["s: lost=True"] == served.ended
        arrived = [message for message in read_frames(*fake.sent) if isinstance(message, Item)]
        numbers = [msgspec.msgpack.decode(item.value) for item in arrived]
        assert [*range(1, held + 1)] == numbers

    run_virtually(pause_streams())


@pytest.mark.parametrize("frame", [b"\xc1", b"", b"\x91\x92\x63\x01", b"GET / HTTP/1.1"])
async def test_invalid_frame_closes_the_connection_and_cancels_its_calls(
    served: Served, frame: bytes
) -> None:
    """The bytes of a peer with an unknown protocol must not be decoded any further."""
    fake = peer_with(Call(1, "work", raw_value([])))
    serving = asyncio.create_task(listener_of(served).serve_calls(fake.as_socket, CALLER))
    await eventually(lambda: served.begun, "it works")
    fake.arriving.put_nowait(type("Frame", (), {"type": aiohttp.WSMsgType.BINARY, "data": frame}))
    fake.receive_messages(Call(2, "echo", raw_value([1])))
    await serving
    await asyncio.sleep(0)

    assert ["work"] == served.begun
    assert ["work cancelled: lost=True"] == served.ended
    assert [CALLER] == served.lost
    assert fake.is_closed


async def test_stopping_the_listener_closes_its_port_and_connections(served: Served) -> None:
    """Callers notice the shutdown at once and cannot reconnect."""
    async with listening(served) as port:
        link = await dialer_with(KEY).dial(port.address, NAME)
        call = asyncio.create_task(link.call("work"))
        await eventually(lambda: served.begun, "it works")
        await port.stop()
        with pytest.raises(ConnectionLost, match="the other side has closed it"):
            await call
        with pytest.raises(ConnectionLost):
            await is_accepted(port)
        await link.close()

    assert ["work cancelled: lost=True"] == served.ended


# --- ports


async def test_first_free_port_of_the_range_is_taken(served: Served) -> None:
    """Each process of a node takes the next port; the firewall opens the range."""
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        first = taken.getsockname()[1]
        free = free_port()
        async with listening(served, ports=[first, free]) as port:
            assert f"{HOST}:{free}" == port.address
            with pytest.raises(ConfigError, match=f"transport.ports: none .* on {HOST}: .*{free}"):
                await listener_of(served).start(HOST, [first, free])
            assert await is_accepted(port)


async def test_listener_has_the_nodes_address_and_a_configured_port(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: HOST)
    wanted = free_port()
    section = TransportSection(ports=(wanted, wanted))
    ring = Keyring()
    ring.add(KEY)
    opened = await endpoint.listen(section, NAME, ring, METHODS, {"echo": served.echo})
    try:
        assert f"{HOST}:{wanted}" == opened.address
        link = await endpoint.dialer(section, CALLER, ring, METHODS).dial(opened.address, NAME)
        assert 1 == await link.call("echo", 1)
        with pytest.raises(ConfigError, match=r"transport\.ports"):
            await endpoint.listen(section, NAME, ring, METHODS, {})
        await link.close()
    finally:
        await opened.stop()


async def test_ipv6_addresses_are_written_as_in_urls(served: Served) -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    port = listener_of(served)
    try:
        await port.start("::1")
    except ConfigError:
        pytest.skip("this machine has no IPv6")
    assert port.address.startswith("[::1]:")
    assert await is_accepted(port)
    await port.stop()


async def test_process_with_any_open_connection_counts_as_connected(
    port: Listener, served: Served
) -> None:
    """The process reconnects before the kernel has closed the previous connection."""
    assert CALLER.name not in port.peers
    first, second = [await dialer_with(KEY).dial(port.address, NAME) for _ in range(2)]
    await second.call("echo", "here")

    await first.close()
    await eventually(lambda: 1 == len(served.lost), "the first is lost")
    assert CALLER.name in port.peers

    await second.close()
    await eventually(lambda: 2 == len(served.lost), "the second is lost")
    assert CALLER.name not in port.peers
