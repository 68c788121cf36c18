"""A machine that acknowledges is told from one that does not, whatever its process does."""

import socket
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from justitia_ray.serve.transport.peer_host import host_answers, tcp_counts
from tests.eventually import eventually


class _Connection:
    """A WebSocket, as far as it is asked for its socket."""

    def __init__(self, opened: object) -> None:
        self._opened = opened

    def get_extra_info(self, name: str) -> object:
        assert "socket" == name
        return self._opened


class _Counts:
    """A socket whose kernel says this."""

    def __init__(self, told: bytes) -> None:
        self._told = told

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        return self._told[:size]


def fill(opened: socket.socket) -> None:
    """Send until neither machine takes more."""
    with suppress(BlockingIOError):
        while True:
            opened.send(bytes(2**16))


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection of this machine; nobody reads at the second."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def test_process_that_reads_nothing_is_answered_for_by_its_machine(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """As one whose event loop is busy, or that is stopped."""
    ours, _ = pair
    ours.send(b"ping")

    assert host_answers(_Connection(ours))


async def test_process_that_takes_nothing_more_is_answered_for(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """A large prompt fills its buffers: what waits is no sign of its end."""
    ours, _ = pair
    fill(ours)

    assert host_answers(_Connection(ours))


async def test_connection_that_is_reset_answers_no_more(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """It has no socket any more."""
    ours, _ = pair
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
def test_machine_that_is_asked_again_and_says_nothing_is_silent(
    counts: bytes, answers: bool
) -> None:
    """It has vanished, or the way to it is cut."""
    assert answers == host_answers(_Connection(_Counts(counts)))


def test_socket_that_is_none_is_not_answered_for() -> None:
    """A transport that has gone has none."""
    assert not host_answers(_Connection(None))
