"""TCP state shows whether a peer's machine answers, even if its process does not."""

import socket
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from justitia_ray.serve.transport.peer_host import host_answers, tcp_counts
from tests.eventually import eventually


class _Connection:
    """Fake WebSocket that only provides its socket."""

    def __init__(self, opened: object) -> None:
        self._opened = opened

    def get_extra_info(self, name: str) -> object:
        assert "socket" == name
        return self._opened


class _Counts:
    """Fake socket with fixed TCP counters of the kernel."""

    def __init__(self, told: bytes) -> None:
        self._told = told

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        return self._told[:size]


def fill_buffers(opened: socket.socket) -> None:
    with suppress(BlockingIOError):
        while True:
            opened.send(bytes(2**16))


@pytest.fixture
def connected_sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Return both ends of a local connection whose second end is never read."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def test_machine_of_a_suspended_process_counts_as_alive(
    connected_sockets: tuple[socket.socket, socket.socket],
) -> None:
    """The process may be suspended, or its event loop busy."""
    ours, _ = connected_sockets
    ours.send(b"ping")

    assert host_answers(_Connection(ours))


async def test_machine_of_a_process_with_full_buffers_counts_as_alive(
    connected_sockets: tuple[socket.socket, socket.socket],
) -> None:
    """A large prompt fills the buffers, so unsent data does not show that the peer is dead."""
    ours, _ = connected_sockets
    fill_buffers(ours)

    assert host_answers(_Connection(ours))


async def test_machine_of_a_reset_connection_counts_as_lost(
    connected_sockets: tuple[socket.socket, socket.socket],
) -> None:
    ours, _ = connected_sockets
    ours.close()

    await eventually(lambda: not host_answers(_Connection(ours)), "it is closed")


@pytest.mark.parametrize(
    ("counts", "answers"),
    [
        (tcp_counts(retransmits=0, probes=0, last_ack_s=600.0), True),  # nothing was sent
        (tcp_counts(retransmits=4, probes=0, last_ack_s=5.0), False),
        (tcp_counts(retransmits=0, probes=2, last_ack_s=30.0), False),
        (tcp_counts(retransmits=1, probes=0, last_ack_s=0.3), True),  # a packet was lost
        (b"", False),
    ],
)
def test_tcp_probe_counts_show_whether_a_machine_answers(counts: bytes, answers: bool) -> None:
    assert answers == host_answers(_Connection(_Counts(counts)))


def test_connection_without_a_socket_counts_as_silent() -> None:
    assert not host_answers(_Connection(None))
