"""Simulated connections: sockets between two processes, below the real transport.

Frames of one direction keep their order, arrive late, and are never lost alone: a connection is
lost as a whole. Either it breaks, which both ends notice soon; or it falls silent in one or both
directions, which its ends have to detect. A dying process closes its sockets. Handshake, calls,
streams, flow control and pings are those of the service; HTTP and TLS are left out.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from aiohttp import (
    ClientConnectionResetError,
    ClientWebSocketResponse,
    WSMessage,
    WSMsgType,
)
from aiohttp.web import WebSocketResponse

from justitia_ray.serve.transport.dialer import Dialer
from justitia_ray.serve.transport.handshake import Keyring, Peer
from justitia_ray.serve.transport.listener import Listener
from justitia_ray.serve.transport.methods import Method
from justitia_ray.serve.transport.peer_host import tcp_counts
from justitia_ray.units import Seconds
from tests.harness.simulation.network import GAP_S, NOTICED_S, CutKind, Network
from tests.harness.simulation.virtual_loop import Process

_CLOSED = WSMessage(WSMsgType.CLOSED, None, None)


class SimulatedSocket:
    """End of a simulated connection, with the WebSocket methods that the product uses."""

    def __init__(self, process: Process, connections: "Connections") -> None:
        self.process = process
        self.peer: SimulatedSocket = self
        """Other end of the connection."""
        self.is_over = False
        """Whether this end has noticed that the connection is lost."""
        self.is_mute = False
        """Whether frames sent from this end are lost."""
        self.arrives_at: Seconds = 0.0
        """Earliest arrival time of the next frame at the other end."""
        self._connections = connections
        self._frames: deque[bytes] = deque()
        self._news = asyncio.Event()

    async def send_bytes(self, data: bytes) -> None:
        if self.is_over:
            raise ClientConnectionResetError("the connection is closed")
        self._connections.send_frame(self, data)

    async def receive(self) -> WSMessage:
        """Return the next frame, or a frame of type CLOSED at the end."""
        while not self._frames:
            if self.is_over:
                return _CLOSED
            self._news.clear()
            await self._news.wait()
        return WSMessage(WSMsgType.BINARY, self._frames.popleft(), None)

    def __aiter__(self) -> "SimulatedSocket":
        return self

    async def __anext__(self) -> WSMessage:
        frame = await self.receive()
        if frame is _CLOSED:
            raise StopAsyncIteration
        return frame

    def get_extra_info(self, name: str) -> "SimulatedSocket":
        """Return this end as its own socket."""
        return self

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        """Return TCP counters of this end's machine, which outlives the process."""
        answers = self._connections.machine_answers(self)
        return tcp_counts(retransmits=0 if answers else 4, probes=0, last_ack_s=5.0)

    async def close(self) -> None:
        """Close the connection; the other end notices after all frames sent before."""
        self._connections.close(self)

    def put(self, data: bytes) -> None:
        """Deliver a frame."""
        self._frames.append(data)
        self._news.set()

    def end(self) -> None:
        """Make this end notice that the connection is lost."""
        self.is_over = True
        self._news.set()


@dataclass(frozen=True, slots=True)
class Block:
    """Port that one process cannot reach until a given time."""

    until: Seconds
    answers: bool
    """Whether connections are refused at once; otherwise the connecting process gets no answer."""


class Connections:
    """All connections of a simulation, and the ports at which they are opened."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._loop = asyncio.get_running_loop()
        self._ports: dict[str, tuple[Process, Listener]] = {}
        self._blocks: dict[tuple[str, str], Block] = {}
        self._sockets: list[SimulatedSocket] = []

    # --- ports

    def listen(self, address: str, process: Process, listener: Listener) -> None:
        """Open a port in place of an earlier process's port."""
        self._ports[address] = (process, listener)

    async def connect(self, source: Process, address: str) -> SimulatedSocket:
        """Return this end of a new connection; raise OSError if the connection is refused."""
        await asyncio.sleep(self._network.delay())
        target, listener = self._ports[address]
        block = self._blocks.get((source.name, target.name))
        if block is not None and block.until > self._loop.time():
            await self._refuse_connection(answers=block.answers)
        cut = self._network.cut_between(source.name, target.name)
        if cut is not None and cut.kind is CutKind.LATE:
            await asyncio.sleep(cut.until - self._loop.time())
        elif cut is not None:
            await self._refuse_connection(answers=cut.kind is CutKind.RESET)
        if not target.alive or self._network.draw_disturbance("lost"):
            await self._refuse_connection(answers=True)
        ours, theirs = SimulatedSocket(source, self), SimulatedSocket(target, self)
        ours.peer, theirs.peer = theirs, ours
        self._sockets += (ours, theirs)
        target.start(_serve_connection(listener, theirs))
        try:
            await asyncio.sleep(self._network.delay())
        except asyncio.CancelledError:
            await ours.close()
            raise
        return ours

    def may_connect(self, source: Process, target: Process) -> bool:
        block = self._blocks.get((source.name, target.name))
        is_blocked = block is not None and block.until > self._loop.time()
        is_cut = self._network.cut_between(source.name, target.name) is not None
        is_there = target.alive and not target.paused
        return is_there and self._network.conditions.loses_no_message and not (is_blocked or is_cut)

    async def _refuse_connection(self, *, answers: bool) -> None:
        if not answers:
            await asyncio.Event().wait()  # The connecting process times out.
        raise ConnectionRefusedError("nobody listens there")

    # --- frames

    def send_frame(self, end: SimulatedSocket, data: bytes) -> None:
        """Deliver a frame to the other end, or break the connection."""
        if not end.process.alive:
            return
        breaks = self._network.draw_disturbance("broken")
        if not breaks or self._network.rng.random() < 0.5:
            at = self._arrival_time(end)
            if at is not None:
                self._network.at(at, self._deliver_frame, end.peer, data)
        if breaks:
            self._break_connection(end)

    def close(self, end: SimulatedSocket) -> None:
        """Close an end of a connection; the other end notices after all frames sent before."""
        if end.is_over:
            return
        end.end()
        at = self._arrival_time(end)
        if at is not None:
            self._network.at(at, self._end_connection, end.peer)
        self._forget_lost()

    def _deliver_frame(self, end: SimulatedSocket, data: bytes) -> None:
        if not end.is_over:
            end.put(data)
        elif not end.peer.is_over and (at := self._arrival_time(end)) is not None:
            # No reader is left, so the sender is notified.
            self._network.at(at, self._end_connection, end.peer)

    def _arrival_time(self, end: SimulatedSocket) -> Seconds | None:
        """Return the arrival time of a frame sent now; None if the frame is lost."""
        at = self._loop.time() + self._network.delay()
        cut = self._network.cut_between(end.process.name, end.peer.process.name)
        if cut is not None and cut.kind is CutKind.LATE:
            at += cut.until - self._loop.time()
        elif cut is not None:
            end.is_mute = True
        if end.is_mute:
            return None
        end.arrives_at = max(end.arrives_at + GAP_S, at)
        return end.arrives_at

    # --- losses

    def cut(self, one: str, other: str, kind: CutKind) -> None:
        """Cut the link between two processes, with its connections."""
        for end in self._sockets_between(one, other):
            if kind is CutKind.RESET:
                self._break_connection(end)
            elif kind is CutKind.SILENT:
                end.is_mute = True

    def silence_connections(self, one: str, other: str, *, both: bool) -> bool:
        """Make open connections silent in one or both directions; return whether there were any."""
        ends = self._sockets_between(one, other)
        for end in ends:
            end.is_mute = end.is_mute or both or end.process.name == one
        return bool(ends)

    def block(self, source: str, target: str, block: Block) -> None:
        """Block one process from the port of another, and break their connections."""
        self._blocks[source, target] = block
        for end in self._sockets_between(source, target):
            self._break_connection(end)

    def process_ended(self, process: Process) -> None:
        """Close all sockets of a dying process, as its machine does."""
        for end in [end for end in self._sockets if end.process is process]:
            self.close(end)

    def joins(self, one: Process, other: Process) -> bool:
        """Return whether two processes have a connection that works in both directions."""
        return any(
            end.process is one and end.peer.process is other and not _has_broken(end)
            for end in self._sockets
        )

    def machine_answers(self, end: SimulatedSocket) -> bool:
        """Return whether the other end's machine acknowledges frames, even of a paused process."""
        one, other = end.process.name, end.peer.process.name
        is_cut = self._network.cut_between(one, other) is not None
        return not (is_cut or end.is_mute or end.peer.is_mute)

    def _break_connection(self, end: SimulatedSocket) -> None:
        """Lose all later frames of a connection, and let both ends notice soon."""
        for one in (end, end.peer):
            one.is_mute = True
            at = self._loop.time() + self._network.rng.uniform(*NOTICED_S)
            self._network.at(at, self._end_connection, one)

    def _end_connection(self, end: SimulatedSocket) -> None:
        end.end()
        self._forget_lost()

    def _forget_lost(self) -> None:
        self._sockets = [one for one in self._sockets if not (one.is_over and one.peer.is_over)]

    def _sockets_between(self, one: str, other: str) -> list[SimulatedSocket]:
        names = {one, other}
        return [e for e in self._sockets if {e.process.name, e.peer.process.name} == names]


def _has_broken(end: SimulatedSocket) -> bool:
    return end.is_over or end.is_mute or end.peer.is_over or end.peer.is_mute


async def _serve_connection(listener: Listener, socket: SimulatedSocket) -> None:
    ours = cast(WebSocketResponse, socket)
    peer = await listener.shake_hands(ours, asyncio.sleep(0.0))
    if peer is not None:
        await listener.serve_calls(ours, peer)


class SimulatedDialer(Dialer):
    """Opens simulated connections for one process."""

    def __init__(
        self,
        connections: Connections,
        process: Process,
        me: Peer,
        keyring: Keyring,
        methods: Mapping[str, Method],
        standstill_s: Seconds,
    ) -> None:
        super().__init__(me, keyring, methods, standstill_s=standstill_s)
        self._connections = connections
        self._process = process

    async def _open_socket(self, address: str) -> ClientWebSocketResponse:
        socket: Any = await self._connections.connect(self._process, address)
        return cast(ClientWebSocketResponse, socket)
