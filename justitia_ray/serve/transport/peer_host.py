"""Find out from the kernel whether the machine at the other end of a connection answers.

A process that is busy or stopped does not read or send, but its machine acknowledges data, and
closes the connection when the process ends. So a silent peer whose machine acknowledges is alive.
Two socket options cannot show this: TCP's keepalive is not sent while data are unacknowledged, and
pings are data; TCP_USER_TIMEOUT also ends a connection whose peer does not read.
"""

import socket
import struct
import sys
from typing import Any

from justitia_ray.units import Seconds

_SILENT_MS = 4_000
"""Milliseconds without an acknowledgement, despite retransmissions, after which a machine counts as
silent.
"""
_COUNTS = struct.Struct("8B24I")
"""Layout of the first fields of Linux's `struct tcp_info`."""
_RETRANSMITS, _PROBES, _LAST_ACK_RECEIVED = 2, 3, 8 + 12


def host_answers(connection: Any) -> bool:
    """Return whether the machine at the other end of a connection acknowledges data.

    The result is False if the machine is unknown: not on Linux, or without a socket.

    Args:
        connection: A WebSocket, or another object with a transport's `get_extra_info`.
    """
    opened = connection.get_extra_info("socket")
    if opened is None or sys.platform != "linux":
        return False
    try:
        told = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTS.size)
    except OSError:
        return False
    if len(told) < _COUNTS.size:
        return False
    counts = _COUNTS.unpack(told)
    is_asked_again = bool(counts[_RETRANSMITS] or counts[_PROBES])
    return not (is_asked_again and counts[_LAST_ACK_RECEIVED] > _SILENT_MS)


def tcp_counts(*, retransmits: int, probes: int, last_ack_s: Seconds) -> bytes:
    """Return the bytes of a `tcp_info` with the given counts, for fake sockets in tests.

    Args:
        retransmits: Number of retransmissions of unacknowledged data.
        probes: Number of unanswered window probes to a peer that accepts no data.
        last_ack_s: Time since the last acknowledgement.
    """
    counts = [0] * 32
    counts[_RETRANSMITS], counts[_PROBES] = retransmits, probes
    counts[_LAST_ACK_RECEIVED] = round(last_ack_s * 1_000)
    return _COUNTS.pack(*counts)
