"""Crash notices: which senders are accepted, and which requests are refused."""

from collections.abc import AsyncIterator

import aiohttp
import msgspec
import pytest

from justitia_ray.serve.transport.crash_notice import CRASH_PATH, MAX_NOTICE_BYTES, crash_notice
from justitia_ray.serve.transport.handshake import Key, Offer, Peer
from justitia_ray.serve.transport.listener import Listener
from tests.unit.serve.transport.ends import KEY, NAME, Served, listening

_REPLICA = Peer("replica", "r0")


@pytest.fixture
def crashed_peers() -> list[Peer]:
    return []


@pytest.fixture
async def crash_port(crashed_peers: list[Peer]) -> AsyncIterator[Listener]:
    async def note_crash(peer: Peer) -> None:
        crashed_peers.append(peer)

    async with listening(Served(), on_crashed=note_crash) as listener:
        yield listener


async def post_notice(crash_port: Listener, body: bytes) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://{crash_port.address}{CRASH_PATH}", data=body) as answer,
    ):
        return answer.status


def notice_body(peer: Peer, target: str = NAME, key: Key = KEY) -> bytes:
    return crash_notice(Offer("127.0.0.1:1", target, key), peer).partition(b"\r\n\r\n")[2]


async def test_crash_notice_names_the_crashed_process(
    crash_port: Listener, crashed_peers: list[Peer]
) -> None:
    assert 204 == await post_notice(crash_port, notice_body(_REPLICA))
    assert [_REPLICA] == crashed_peers


async def test_crash_notice_with_a_wrong_target_or_key_is_refused(
    crash_port: Listener, crashed_peers: list[Peer]
) -> None:
    """Otherwise an attacker could have every replica's leases revoked."""
    signed = msgspec.msgpack.decode(notice_body(_REPLICA))
    signed[2] = "r1"
    stranger = Key(KEY.key_id, b"another secret")
    for body in (
        notice_body(_REPLICA, target="another scheduler"),
        notice_body(_REPLICA, key=Key.new()),
        notice_body(_REPLICA, key=stranger),
        msgspec.msgpack.encode(signed),
        b"\xc1",
        b"x",
    ):
        assert 403 == await post_notice(crash_port, body)
    assert 413 == await post_notice(crash_port, bytes(MAX_NOTICE_BYTES + 1))
    assert not crashed_peers


async def test_compressed_crash_notice_is_refused_unread(
    crash_port: Listener, crashed_peers: list[Peer], caplog: pytest.LogCaptureFixture
) -> None:
    """Decompressing invalid data would log two tracebacks per request."""
    url, headers = f"http://{crash_port.address}{CRASH_PATH}", {"Content-Encoding": "gzip"}
    statuses = []
    for _ in range(3):
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, data=b"no gzip", headers=headers) as answer,
        ):
            statuses.append(answer.status)

    assert [415] * 3 == statuses
    assert not [record for record in caplog.records if record.exc_info]
    refused = [one for one in caplog.records if one.getMessage().startswith("connection.refused")]
    assert 2 == len(refused)
    assert not crashed_peers


async def test_listener_without_crash_notices_does_not_accept_them() -> None:
    async with listening(Served()) as crash_port:
        assert 404 == await post_notice(crash_port, notice_body(_REPLICA))
