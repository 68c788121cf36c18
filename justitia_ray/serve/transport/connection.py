"""An open WebSocket between two processes of the service: frames, messages, and pings."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from aiohttp import ClientError, ClientWebSocketResponse, WSMsgType
from aiohttp.web import WebSocketResponse

from justitia_ray.errors import ConnectionLost
from justitia_ray.serve.transport.frames import FRAME_BYTES, Incoming, Message, Outgoing, Ping
from justitia_ray.serve.transport.peer_host import host_answers
from justitia_ray.units import Seconds

Socket: TypeAlias = WebSocketResponse | ClientWebSocketResponse

MAX_FRAME_BYTES = 2 * FRAME_BYTES
"""Maximum bytes of a received frame. aiohttp closes a connection with a longer frame, and every
call on it fails.
"""
_MAX_MESSAGE_BYTES = 2**30
_PING_S: Seconds = 1.0
_SILENT_PINGS = 5
"""Number of unanswered pings, one second apart, after which a silent process is given up unless its
machine answers. Pings are counted, not timed, because a blocked event loop sends no pings.
"""
CLOSE_S: Seconds = 0.5
"""Timeout in seconds of a WebSocket's closing handshake; the other process may have exited."""
_WRITABLE_BYTES = 4 * 2**20
"""Number of queued bytes above which streams pause because the other process reads too slowly."""


class Connection:
    """Sends and receives messages until one side closes or is silent for too long.

    Args:
        socket: The WebSocket, after its handshake.
        take: Called with each received message.
        lose: Called with the reason as soon as the connection is lost.
        standstill_s: Longest silence of the peer while its machine answers, e.g. because the
            process is busy or stopped. 0: treated like any other silence.
    """

    def __init__(
        self,
        socket: Socket,
        take: Callable[[Message], None],
        lose: Callable[[str], None],
        standstill_s: Seconds = 0.0,
    ) -> None:
        self._socket = socket
        self._take = take
        self._lose = lose
        self._outgoing = Outgoing()
        self._incoming = Incoming(_MAX_MESSAGE_BYTES)
        self._has_outgoing = asyncio.Event()
        self._is_writable = asyncio.Event()
        self._is_writable.set()
        self._silent_pings = 0
        self._standstill_s = standstill_s
        self._aborted: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.is_lost = False
        """Whether messages can no longer be sent or received."""

    def send(self, message: Message) -> None:
        """Queue a message for the next frame; do nothing if the connection is lost."""
        if self.is_lost:
            return
        self._outgoing.put(message)
        self._has_outgoing.set()
        if self._outgoing.size_bytes > _WRITABLE_BYTES:
            self._is_writable.clear()

    async def until_writable(self) -> None:
        """Wait while the other process reads too slowly."""
        if not self._is_writable.is_set():
            await self._is_writable.wait()

    async def run(self) -> None:
        """Read and write messages until the connection is lost, then close it."""
        loop = asyncio.get_running_loop()
        work = (self._read_frames(), self._write_frames(), self._keep_pinging())
        tasks = [loop.create_task(part) for part in work]
        reason = "this process ends"
        try:
            await asyncio.wait([*tasks, self._aborted], return_when=asyncio.FIRST_COMPLETED)
            ended = [part for part in (self._aborted, *tasks) if part.done()]
            reason = ended[0].result()
        finally:
            self.is_lost = True
            self._is_writable.set()
            # The loss is reported before the closing handshake, which may take long.
            self._lose(reason)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(Exception):  # The connection is closed in any case.
                await asyncio.wait_for(self._socket.close(), CLOSE_S)

    def abort(self, reason: str) -> None:
        """End the connection for the given reason and drop queued messages."""
        self.is_lost = True
        if not self._aborted.done():
            self._aborted.set_result(reason)

    async def _read_frames(self) -> str:
        try:
            async for frame in self._socket:
                self._silent_pings = 0
                if frame.type is WSMsgType.ERROR:
                    return f"reading failed: {frame.data}"
                if frame.type is not WSMsgType.BINARY:
                    return f"a frame of type {frame.type.name} came; this protocol's are BINARY"
                for message in self._incoming.read_frame(frame.data):
                    if not isinstance(message, Ping):
                        self._take(message)
        except (ConnectionLost, ClientError, OSError) as error:
            return str(error)
        return "the other side has closed it"

    async def _write_frames(self) -> str:
        try:
            while True:
                await self._has_outgoing.wait()
                self._has_outgoing.clear()
                while self._outgoing.size_bytes:
                    await self._socket.send_bytes(self._outgoing.take_frame())
                    if self._outgoing.size_bytes <= _WRITABLE_BYTES:
                        self._is_writable.set()
        except (ClientError, OSError) as error:
            return f"writing failed: {error}"

    async def _keep_pinging(self) -> str:
        while True:
            await asyncio.sleep(_PING_S)
            self._silent_pings += 1
            if self._silent_pings > _SILENT_PINGS:
                silent_s = (self._silent_pings - 1) * _PING_S
                if silent_s >= self._standstill_s or not host_answers(self._socket):
                    return f"the other side was silent for {silent_s:g} s"
            self.send(Ping())
