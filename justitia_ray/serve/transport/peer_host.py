"""What the kernel knows of the machine at the other end of a connection.

A process that is busy or stopped reads nothing and says nothing, but its machine acknowledges what
it is sent, and closes the connection when the process ends. So a silent peer whose machine
acknowledges is a process that lives. Two options of sockets do not tell that: TCP's keepalive is
not sent while data is on its way, and our pings are data; TCP_USER_TIMEOUT ends a connection whose
peer does not read, too.
"""

import socket
import struct
import sys
from typing import Any

from justitia_ray.units import Seconds

_SILENT_MS = 4_000
"""A machine that has acknowledged nothing for so long, though it was asked again, is silent."""
_COUNTS = struct.Struct("8B24I")
"""The beginning of Linux's `struct tcp_info`."""
_RETRANSMITS, _PROBES, _LAST_ACK_RECEIVED = 2, 3, 8 + 12


def host_answers(connection: Any) -> bool:
    """Return whether the machine at the other end acknowledges what is sent to it.

    False where that is not known: the system is not Linux, or there is no socket.

    Args:
        connection: A WebSocket, or what else has `get_extra_info` of a transport.
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
    """Return what a kernel tells of a connection with these counts, for sockets that are not its.

    Args:
        retransmits: Times that what is not acknowledged was sent again.
        probes: Times that a peer that takes nothing was asked whether it takes something now, and
            has not answered.
        last_ack_s: Time since anything was acknowledged.
    """
    counts = [0] * 32
    counts[_RETRANSMITS], counts[_PROBES] = retransmits, probes
    counts[_LAST_ACK_RECEIVED] = round(last_ack_s * 1_000)
    return _COUNTS.pack(*counts)
