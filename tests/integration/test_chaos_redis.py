"""The Redis server of a chaos run does what the faults' names say."""

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
    """Server that holds one value."""
    server = ChaosRedis(tmp_path / "data", free_port())
    server.start()
    told(server, "SET kept 1")
    yield server
    server.resume()
    server.kill()


def told(server: ChaosRedis, command: str, within_s: float = 5.0) -> bytes:
    """Send a command and return the answer."""
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), timeout=within_s) as connection:
        connection.sendall(command.encode() + b"\r\n")
        return connection.recv(64)


def test_killed_server_comes_back_with_its_data_unless_it_is_emptied(server: ChaosRedis) -> None:
    before = server.pid
    server.kill()
    with pytest.raises(OSError):  # noqa: PT011  # which one is the kernel's to choose
        told(server, "PING")
    server.start()

    assert b"$1\r\n1\r\n" == told(server, "GET kept")
    assert before != server.pid
    server.kill()
    server.empty()
    server.start()
    assert b"$-1\r\n" == told(server, "GET kept")


def test_suspended_server_answers_nothing_until_it_goes_on(server: ChaosRedis) -> None:
    """A suspended server accepts connections, so a caller only notices by a timeout."""
    server.suspend()
    with pytest.raises(TimeoutError):
        told(server, "GET kept", _PATIENCE_S)
    server.resume()

    assert b"$1\r\n1\r\n" == told(server, "GET kept")


def test_demoted_server_refuses_writes_until_it_is_promoted(server: ChaosRedis) -> None:
    """A demoted server answers reads over existing connections, like a master after a failover."""
    server.demote()
    read, written = told(server, "GET kept"), told(server, "SET kept 2")
    server.promote()

    assert b"$1\r\n1\r\n" == read
    assert written.startswith(b"-READONLY")
    assert b"+OK\r\n" == told(server, "SET kept 2")
