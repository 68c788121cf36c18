"""Both ends of a connection in one process: methods that tests call, and what serves them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

from aiohttp import WSMsgType, web

from justitia_ray.errors import JustitiaError
from justitia_ray.serve.transport.dialer import Dialer
from justitia_ray.serve.transport.frames import Message, Outgoing
from justitia_ray.serve.transport.handshake import Key, Keyring, Peer
from justitia_ray.serve.transport.link import SocketLink
from justitia_ray.serve.transport.listener import Caller, Listener
from justitia_ray.serve.transport.methods import Method

NAME = "replica-1"
CALLER = Peer("ingress", "ingress-1")
HOST = "127.0.0.1"
METHODS = {
    "echo": Method((Any,), Any),
    "work": Method((), str, runs=True),
    "finish": Method((), str),
    "fail": Method((), None),
    "count": Method((str, int), Any, streams=True, runs=True),
}


class Served:
    """What serves the methods, and what it saw."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        """Calls that ended, and how."""
        self.may_end = asyncio.Event()
        self.error: BaseException = JustitiaError("unset")
        self.counted: dict[str, int] = {}
        """Items of each stream that were made."""
        self.lost: list[Peer] = []

    async def echo(self, _: Caller, value: Any) -> Any:
        """Return the value."""
        self.begun.append("echo")
        return value

    async def work(self, caller: Caller) -> str:
        """Work until it may end."""
        return await self._until("work", caller)

    async def finish(self, caller: Caller) -> str:
        """Work likewise, whoever waits for it."""
        return await self._until("finish", caller)

    async def fail(self, _: Caller) -> None:
        """Raise what the test has laid out."""
        raise self.error

    async def count(self, caller: Caller, name: str, items: int) -> AsyncGenerator[Any]:
        """Yield numbers; a negative one of items has no end."""
        self.counted[name] = 0
        try:
            while self.counted[name] != items:
                self.counted[name] += 1
                yield self.counted[name]
                await asyncio.sleep(0)
        finally:
            self.ended.append(f"{name}: lost={caller.is_lost}")

    async def _until(self, name: str, caller: Caller) -> str:
        self.begun.append(name)
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.ended.append(f"{name} cancelled: lost={caller.is_lost}")
            raise
        self.ended.append(name)
        return name


def keyring(*keys: Key) -> Keyring:
    """Return a ring of keys, the current one last."""
    ring = Keyring()
    for key in keys:
        ring.add(key)
    return ring


KEY = Key.new()


def listener_of(served: Served, *keys: Key, **options: Any) -> Listener:
    """Return a listener that has not started."""
    serve = {name: getattr(served, name) for name in METHODS}
    ring = keyring(*(keys or (KEY,)))
    return Listener(NAME, ring, METHODS, serve, on_lost=served.lost.append, **options)


@asynccontextmanager
async def listening(
    served: Served, *keys: Key, ports: Iterable[int] = (0,), **options: Any
) -> AsyncIterator[Listener]:
    """Listen on a free port of this machine."""
    listener = listener_of(served, *keys, **options)
    await listener.start(HOST, ports)
    try:
        yield listener
    finally:
        await listener.stop()


def dialer_with(*keys: Key, **options: Any) -> Dialer:
    """Return what opens connections with these keys."""
    return Dialer(CALLER, keyring(*keys), METHODS, **options)


@asynccontextmanager
async def linked(served: Served) -> AsyncIterator[SocketLink]:
    """Connect to a listener of its own."""
    async with listening(served) as listener:
        link = await dialer_with(KEY).dial(listener.address, NAME)
        try:
            yield link
        finally:
            await link.close()


class FakeSocket:
    """A WebSocket whose other end is the test."""

    def __init__(self, closing_s: float = 0.0) -> None:
        self._closing_s = closing_s
        self.arriving: asyncio.Queue[Any] = asyncio.Queue()
        self.sent: list[bytes] = []
        self.takes = asyncio.Event()
        self.takes.set()
        """Whether what is sent goes through."""
        self.is_closed = False
        self.machine = b""
        """What the kernel says of the other end; empty: nothing."""

    def get_extra_info(self, name: str) -> "FakeSocket":
        """Return the socket, which is this."""
        return self

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        """Return what the kernel says of the other end."""
        return self.machine

    @property
    def as_socket(self) -> web.WebSocketResponse:
        """The socket, as it is typed."""
        return cast("web.WebSocketResponse", self)

    def bring(self, *messages: Message, kind: WSMsgType = WSMsgType.BINARY) -> None:
        """Let a frame with these messages arrive."""
        self.arriving.put_nowait(SimpleNamespace(type=kind, data=frame_of(*messages)))

    async def send_bytes(self, data: bytes) -> None:
        """Send, once the other end takes it."""
        await self.takes.wait()
        self.sent.append(data)

    def __aiter__(self) -> "FakeSocket":
        return self

    async def __anext__(self) -> Any:
        if (frame := await self.arriving.get()) is None:
            raise StopAsyncIteration
        return frame

    async def close(self) -> None:
        """Close it; the peer takes its time."""
        self.is_closed = True
        await asyncio.sleep(self._closing_s)


def frame_of(*messages: Message) -> bytes:
    """Return a frame with these messages, which have to fit one."""
    outgoing = Outgoing()
    for message in messages:
        outgoing.put(message)
    frame = outgoing.take_frame()
    assert not outgoing
    return frame
