"""The listener's end of connections: a port of this process, and the methods served on it."""

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, cast

import msgspec
from aiohttp import WSMsgType, hdrs, web

from justitia_ray.errors import ConfigError, ConnectionLost, JustitiaError
from justitia_ray.observability.log_events import is_logged, log_event
from justitia_ray.serve.transport.connection import (
    CLOSE_S,
    MAX_FRAME_BYTES,
    Connection,
    Socket,
)
from justitia_ray.serve.transport.crash_notice import (
    CRASH_PATH,
    MAX_NOTICE_BYTES,
    read_crash_notice,
)
from justitia_ray.serve.transport.frames import (
    Answer,
    Call,
    Cancel,
    End,
    Failure,
    Item,
    Message,
    PauseStream,
    ResumeStream,
)
from justitia_ray.serve.transport.handshake import Keyring, Peer, admit
from justitia_ray.serve.transport.methods import Method
from justitia_ray.units import Seconds

logger = logging.getLogger(__name__)

PATH = "/connect"
HANDSHAKE_S: Seconds = 5.0
"""Seconds within which a new connection must authenticate, or be closed."""
_MAX_STRANGERS = 256
"""Maximum number of unauthenticated connections; further connections are closed at once."""
_STRANGER_BYTES = 2**14
"""Maximum bytes that an unauthenticated connection may send: the head of its request, and its
handshake or crash notice.
"""

_OVER_LIMIT = ConnectionLost(f"more than {_STRANGER_BYTES} bytes came without a proof")

Serve = Callable[..., Awaitable[Any]] | Callable[..., AsyncGenerator[Any]]


class Caller:
    """A connected process, passed to the methods that it calls."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.is_lost = False
        """Whether the connection is lost; the caller's running calls are then being cancelled."""


class Listener:
    """Accepts connections of processes that have the key, and serves their calls.

    Args:
        name: Name of this process, which callers have to send.
        keyring: Accepted keys.
        methods: The methods that can be called.
        serve: Function of each method: called with the `Caller` and the arguments, it returns the
            answer, or yields the items.
        on_lost: Called for every lost connection.
        on_crashed: Called for every process that has crashed; None: crash notices are ignored.
        tls: TLS context; None: connections are not encrypted.
        log: The log of this process.
        standstill_s: Longest silence of a caller while its machine answers.
    """

    def __init__(
        self,
        name: str,
        keyring: Keyring,
        methods: Mapping[str, Method],
        serve: Mapping[str, Serve],
        *,
        on_lost: Callable[[Peer], None] = lambda peer: None,
        on_crashed: Callable[[Peer], Awaitable[None]] | None = None,
        tls: ssl.SSLContext | None = None,
        log: logging.Logger = logger,
        standstill_s: Seconds = 0.0,
    ) -> None:
        self._log = log
        self._standstill_s = standstill_s
        self.peers: Counter[str] = Counter()
        """Number of connections of each connected process, by its name."""
        self._name = name
        self._keyring = keyring
        self._methods = methods
        self._serve = serve
        self._on_lost = on_lost
        self._on_crashed = on_crashed
        self._tls = tls
        self._refused = 0
        self._strangers: dict[web.RequestHandler, _Stranger] = {}
        """Connections that have not authenticated yet, by aiohttp's protocol object."""
        self._served: list[_Served] = []
        self._http: web.Server | None = None
        self._server: asyncio.Server | None = None
        self.address = ""
        """Host and port of the listener, in the form of URLs; empty before `start`."""

    async def start(self, host: str, ports: Iterable[int] = (0,)) -> None:
        """Open the first free port of the given ports.

        Args:
            host: IP address to bind.
            ports: Ports to try; 0 means any free port.

        Raises:
            ConfigError: If none of the ports can be opened.
        """
        # auto_decompress is off, so that data of unauthenticated callers are never decompressed.
        self._http = web.Server(self._accept_connection, access_log=None, auto_decompress=False)
        loop = asyncio.get_running_loop()
        handshake_s, close_s = (None, None) if self._tls is None else (HANDSHAKE_S, CLOSE_S)
        tried: OSError | None = None
        for port in ports:
            try:
                self._server = await loop.create_server(
                    self._next_protocol,
                    host,
                    port,
                    ssl=self._tls,
                    ssl_handshake_timeout=handshake_s,
                    ssl_shutdown_timeout=close_s,
                )
            except OSError as error:
                tried = error
                continue
            port = self._server.sockets[0].getsockname()[1]
            self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            return
        raise ConfigError(f"transport.ports: none can be opened on {host}: {tried}")

    async def stop(self) -> None:
        """Close the listening port and all connections."""
        for served in tuple(self._served):
            served.connection.abort("it is closed there")
        if self._server is not None and self._http is not None:
            self._server.close()
            await self._http.shutdown(CLOSE_S)

    def _next_protocol(self) -> asyncio.Protocol:
        """Return the protocol for a new connection, which must soon authenticate."""
        if self._http is None or self._is_full():
            return _RefusedConnection()
        handler = self._http()
        stranger = self._strangers[handler] = _Stranger(handler)
        # The handshake's own timeout comes first, so that a slow caller still receives an error.
        within_s = HANDSHAKE_S + CLOSE_S
        asyncio.get_running_loop().call_later(within_s, self._close_stranger, handler)
        return stranger

    def _is_full(self) -> bool:
        """Return whether there are too many unauthenticated connections."""
        if len(self._strangers) < _MAX_STRANGERS:
            return False
        return sum(one.transport is not None for one in self._strangers) >= _MAX_STRANGERS

    def _close_stranger(self, handler: web.RequestHandler) -> None:
        if self._strangers.pop(handler, None) is not None:
            handler.force_close()

    async def _accept_connection(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == CRASH_PATH and self._on_crashed is not None:
            return await self._take_notice(request, self._on_crashed)
        if request.path != PATH:
            return web.Response(status=404)
        socket = web.WebSocketResponse(
            max_msg_size=MAX_FRAME_BYTES, compress=False, timeout=CLOSE_S
        )
        # aiohttp's `prepare` uses only attributes that a BaseRequest has
        opening = socket.prepare(cast("web.Request", request))
        stranger = self._strangers.get(request.protocol)
        peer = await self.shake_hands(socket, opening, stranger)
        self._strangers.pop(request.protocol, None)  # only WebSocket requests get here
        if peer is not None:
            if stranger is not None:
                stranger.lift_limit()
            await self.serve_calls(socket, peer)
        return socket

    async def _take_notice(
        self, request: web.BaseRequest, on_crashed: Callable[[Peer], Awaitable[None]]
    ) -> web.Response:
        if (request.content_length or MAX_NOTICE_BYTES + 1) > MAX_NOTICE_BYTES:
            return web.Response(status=413)
        if hdrs.CONTENT_ENCODING in request.headers:
            self._note_refused(ConnectionLost("a notice of a crash is not compressed"))
            return web.Response(status=415)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                body = await request.read()
            await on_crashed(read_crash_notice(body, self._name, self._keyring))
        except (ConnectionLost, TimeoutError, OSError, web.RequestPayloadError) as error:
            self._note_refused(error)
            return web.Response(status=403)
        except JustitiaError as error:
            return web.Response(status=503, text=str(error))
        return web.Response(status=204)

    async def shake_hands(
        self,
        socket: web.WebSocketResponse,
        opening: Awaitable[object],
        stranger: "_Stranger | None" = None,
    ) -> Peer | None:
        """Do the handshake of a socket; return the calling process, or None if it is refused."""
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await opening
                return await admit(
                    socket.send_bytes, lambda: receive(socket), self._name, self._keyring
                )
        except (ConnectionLost, TimeoutError, OSError) as error:
            is_over_limit = stranger is not None and stranger.is_over_limit
            self._note_refused(_OVER_LIMIT if is_over_limit else error)
            with suppress(Exception):  # The socket is not used any more.
                await socket.close()
            return None

    async def serve_calls(self, socket: web.WebSocketResponse, peer: Peer) -> None:
        """Serve the calls of an admitted process until its connection is lost."""
        connection = partial(Connection, socket, standstill_s=self._standstill_s)
        served = _Served(connection, peer, self._methods, self._serve, self._log)
        self._served.append(served)
        self.peers[peer.name] += 1
        try:
            await served.connection.run()
        finally:
            self._served.remove(served)
            self.peers -= Counter([peer.name])
            self._on_lost(peer)

    def _note_refused(self, error: Exception) -> None:
        """Log a refused connection, but only the 1st, 2nd, 4th, 8th refusal and so on."""
        self._refused += 1
        if is_logged(self._refused):
            reason = str(error) or f"no handshake within {HANDSHAKE_S:g} s"
            log_event(
                self._log,
                logging.WARNING,
                "connection.refused",
                reason=reason,
                refused_so_far=self._refused,
            )


async def receive(socket: Socket) -> bytes:
    """Return the next message of a handshake.

    Raises:
        ConnectionLost: If the other side closes, or sends another kind of frame.
    """
    frame = await socket.receive()
    if frame.type is not WSMsgType.BINARY:
        raise ConnectionLost("the other side ended the handshake")
    data: bytes = frame.data
    return data


class _RefusedConnection(asyncio.Protocol):
    """Closes a new connection at once, because there are too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).abort()


class _Stranger(asyncio.Protocol):
    """Connection that may send only few bytes until it has authenticated.

    aiohttp's own limit is that of one message, and holds for the whole life of a connection.

    Args:
        handler: aiohttp's protocol of the connection.
    """

    def __init__(self, handler: web.RequestHandler) -> None:
        self._handler = handler
        self._left_bytes = _STRANGER_BYTES
        self._transport: asyncio.Transport | None = None

    @property
    def is_over_limit(self) -> bool:
        """Whether the connection was closed because too many bytes came."""
        return self._left_bytes < 0

    def lift_limit(self) -> None:
        """Let the connection send any number of bytes, because it has authenticated."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.set_protocol(self._handler)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._left_bytes -= len(data)
        if not self.is_over_limit:
            self._handler.data_received(data)
        elif self._transport is not None:
            self._transport.abort()

    def eof_received(self) -> None:
        self._handler.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._handler.connection_lost(exc)

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()


class _Served:
    """Authenticated connection with its running calls, which are cancelled when it is lost."""

    def __init__(
        self,
        connect: Callable[[Callable[[Message], None], Callable[[str], None]], Connection],
        peer: Peer,
        methods: Mapping[str, Method],
        serve: Mapping[str, Serve],
        log: logging.Logger,
    ) -> None:
        self._log = log
        self.connection = connect(self._take_message, self._cancel_calls)
        self._caller = Caller(peer)
        self._methods = methods
        self._serve = serve
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._working: set[int] = set()
        """Numbers of the running calls that are cancelled when their caller no longer waits."""
        self._paused: dict[int, asyncio.Event] = {}

    def _take_message(self, message: Message) -> None:
        if isinstance(message, Call):
            method = self._methods.get(message.method)
            if method is not None and method.runs:
                self._working.add(message.id)
            task = asyncio.get_running_loop().create_task(self._answer_call(message))
            self._calls[message.id] = task
            task.add_done_callback(partial(self._forget_call, message.id))
        elif isinstance(message, Cancel):
            if message.id in self._working:
                self._calls[message.id].cancel()
        elif isinstance(message, PauseStream):
            if message.id in self._calls:
                self._paused.setdefault(message.id, asyncio.Event())
        elif isinstance(message, ResumeStream):
            resumed = self._paused.pop(message.id, None)
            if resumed is not None:
                resumed.set()

    async def _answer_call(self, call: Call) -> None:
        number, send = call.id, self.connection.send
        try:
            method, serve = self._methods[call.method], self._serve[call.method]
            arguments = method.read_arguments(call.arguments)
            if not method.streams:
                answer: Any = await serve(self._caller, *arguments)  # type: ignore[misc]
                send(Answer(number, method.pack_answer(answer)))
                return
            items: Any = serve(self._caller, *arguments)
            async with aclosing(items):
                async for item in items:
                    send(Item(number, method.pack_answer(item)))
                    if (paused := self._paused.get(number)) is not None:
                        await paused.wait()
                    await self.connection.until_writable()
            send(End(number))
        except JustitiaError as error:
            send(failure(number, error))
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # The call was cancelled, because its caller is lost or does not wait.
            # The caller receives only the class of an unexpected error, and this log the traceback.
            self._log.exception("call.failed")
            send(Failure(number, type(error).__name__, []))

    def _forget_call(self, number: int, task: asyncio.Task[None]) -> None:
        del self._calls[number]
        self._working.discard(number)
        self._paused.pop(number, None)

    def _cancel_calls(self, _: str) -> None:
        self._caller.is_lost = True
        for number in self._working:
            self._calls[number].cancel()
        for paused in self._paused.values():
            paused.set()


def failure(number: int, error: JustitiaError) -> Failure:
    """Return the message that a call has failed with this error.

    It contains the name of the error's class, and its arguments if MessagePack can encode them.
    """
    try:
        msgspec.msgpack.encode(error.args)
    except (TypeError, msgspec.MsgspecError):
        return Failure(number, type(error).__name__, [str(error)])
    return Failure(number, type(error).__name__, list(error.args))
