"""The Redis server of the chaos runs really does what each fault's name says."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.chaos.cluster import ChaosRedis
from tests.harness.local_front import free_port

pytestmark = pytest.mark.redis

_PATIENCE_S = 0.2


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ChaosRedis]:
    server = ChaosRedis(tmp_path / "data", free_port())
    server.start()
    reply_to(server, "SET kept 1")
    yield server
    server.resume()
    server.kill()


def reply_to(server: ChaosRedis, command: str, within_s: float = 5.0) -> bytes:
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), timeout=within_s) as connection:
        connection.sendall(command.encode() + b"\r\n")
        return connection.recv(64)


def test_restarted_redis_has_its_data_unless_the_test_deletes_them(server: ChaosRedis) -> None:
    before = server.pid
    server.kill()
    with pytest.raises(OSError):  # noqa: PT011
        reply_to(server, "PING")
    server.start()

    assert b"$1\r\n1\r\n" == reply_to(server, "GET kept")
    assert before != server.pid
    server.kill()
    server.delete_data()
    server.start()
    assert b"$-1\r\n" == reply_to(server, "GET kept")


def test_suspended_redis_answers_no_request_until_it_resumes(server: ChaosRedis) -> None:
    """A suspended server accepts connections, so a caller only notices by a timeout."""
    server.suspend()
    with pytest.raises(TimeoutError):
        reply_to(server, "GET kept", _PATIENCE_S)
    server.resume()

    assert b"$1\r\n1\r\n" == reply_to(server, "GET kept")


def test_demoted_redis_refuses_writes_until_its_promotion(server: ChaosRedis) -> None:
    """A demoted server answers reads over open connections, like a master after a failover."""
    server.demote()
    read, written = reply_to(server, "GET kept"), reply_to(server, "SET kept 2")
    server.promote()

    assert b"$1\r\n1\r\n" == read
    assert written.startswith(b"-READONLY")
    assert b"+OK\r\n" == reply_to(server, "SET kept 2")
