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
def crashed() -> list[Peer]:
    return []


@pytest.fixture
async def port(crashed: list[Peer]) -> AsyncIterator[Listener]:
    async def note(peer: Peer) -> None:
        crashed.append(peer)

    async with listening(Served(), on_crashed=note) as listener:
        yield listener


async def status_of(port: Listener, body: bytes) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://{port.address}{CRASH_PATH}", data=body) as answer,
    ):
        return answer.status


def body_of(peer: Peer, target: str = NAME, key: Key = KEY) -> bytes:
    return crash_notice(Offer("127.0.0.1:1", target, key), peer).partition(b"\r\n\r\n")[2]


async def test_notice_says_who_has_crashed(port: Listener, crashed: list[Peer]) -> None:
    assert 204 == await status_of(port, body_of(_REPLICA))
    assert [_REPLICA] == crashed


async def test_notice_for_another_target_or_with_a_wrong_key_is_refused(
    port: Listener, crashed: list[Peer]
) -> None:
    """A stranger could otherwise have every replica's leases revoked."""
    signed = msgspec.msgpack.decode(body_of(_REPLICA))
    signed[2] = "r1"
    stranger = Key(KEY.key_id, b"another secret")
    for body in (
        body_of(_REPLICA, target="another scheduler"),
        body_of(_REPLICA, key=Key.new()),
        body_of(_REPLICA, key=stranger),
        msgspec.msgpack.encode(signed),
        b"\xc1",
        b"x",
    ):
        assert 403 == await status_of(port, body)
    assert 413 == await status_of(port, bytes(MAX_NOTICE_BYTES + 1))
    assert not crashed


async def test_notice_that_is_compressed_is_refused_unread(
    port: Listener, crashed: list[Peer], caplog: pytest.LogCaptureFixture
) -> None:
    """Invalid gzip used to cause a 500 and two tracebacks per request."""
    url, headers = f"http://{port.address}{CRASH_PATH}", {"Content-Encoding": "gzip"}
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
    assert not crashed


async def test_process_that_takes_no_notices_does_not_know_their_path() -> None:
    async with listening(Served()) as port:
        assert 404 == await status_of(port, body_of(_REPLICA))
