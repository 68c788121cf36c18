"""Both ends of a connection in one process: the methods served, and clients of them."""

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
    """Server of a listener's methods that records their calls."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        """Calls that ended, each with how it ended."""
        self.may_end = asyncio.Event()
        self.error: BaseException = JustitiaError("unset")
        self.counted: dict[str, int] = {}
        """Number of items that each stream has generated."""
        self.lost: list[Peer] = []

    async def echo(self, _: Caller, value: Any) -> Any:
        self.begun.append("echo")
        return value

    async def work(self, caller: Caller) -> str:
        return await self._wait_for_end("work", caller)

    async def finish(self, caller: Caller) -> str:
        return await self._wait_for_end("finish", caller)

    async def fail(self, _: Caller) -> None:
        raise self.error

    async def count(self, caller: Caller, name: str, items: int) -> AsyncGenerator[Any]:
        """Yield numbers; a negative `items` makes the stream endless."""
        self.counted[name] = 0
        try:
            while self.counted[name] != items:
                self.counted[name] += 1
                yield self.counted[name]
                await asyncio.sleep(0)
        finally:
            self.ended.append(f"{name}: lost={caller.is_lost}")

    async def _wait_for_end(self, name: str, caller: Caller) -> str:
        self.begun.append(name)
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.ended.append(f"{name} cancelled: lost={caller.is_lost}")
            raise
        self.ended.append(name)
        return name


def keyring_of(*keys: Key) -> Keyring:
    """Return a keyring with the current key last."""
    ring = Keyring()
    for key in keys:
        ring.add(key)
    return ring


KEY = Key.new()


def listener_of(served: Served, *keys: Key, **options: Any) -> Listener:
    serve = {name: getattr(served, name) for name in METHODS}
    ring = keyring_of(*(keys or (KEY,)))
    return Listener(NAME, ring, METHODS, serve, on_lost=served.lost.append, **options)


@asynccontextmanager
async def listening(
    served: Served, *keys: Key, ports: Iterable[int] = (0,), **options: Any
) -> AsyncIterator[Listener]:
    listener = listener_of(served, *keys, **options)
    await listener.start(HOST, ports)
    try:
        yield listener
    finally:
        await listener.stop()


def dialer_with(*keys: Key, **options: Any) -> Dialer:
    return Dialer(CALLER, keyring_of(*keys), METHODS, **options)


@asynccontextmanager
async def linked(served: Served) -> AsyncIterator[SocketLink]:
    """Connect to a new listener."""
    async with listening(served) as listener:
        link = await dialer_with(KEY).dial(listener.address, NAME)
        try:
            yield link
        finally:
            await link.close()


class FakeSocket:
    """WebSocket whose other end is the test."""

    def __init__(self, closing_s: float = 0.0) -> None:
        self._closing_s = closing_s
        self.arriving: asyncio.Queue[Any] = asyncio.Queue()
        self.sent: list[bytes] = []
        self.takes = asyncio.Event()
        self.takes.set()
        """Whether sent data reaches the other end."""
        self.is_closed = False
        self.machine = b""
        """TCP state that the kernel returns for the other end; empty without a connection."""

    def get_extra_info(self, name: str) -> "FakeSocket":
        return self

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        return self.machine

    @property
    def as_socket(self) -> web.WebSocketResponse:
        return cast("web.WebSocketResponse", self)

    def receive_messages(self, *messages: Message, kind: WSMsgType = WSMsgType.BINARY) -> None:
        self.arriving.put_nowait(SimpleNamespace(type=kind, data=frame_of(*messages)))

    async def send_bytes(self, data: bytes) -> None:
        await self.takes.wait()
        self.sent.append(data)

    def __aiter__(self) -> "FakeSocket":
        return self

    async def __anext__(self) -> Any:
        if (frame := await self.arriving.get()) is None:
            raise StopAsyncIteration
        return frame

    async def close(self) -> None:
        self.is_closed = True
        await asyncio.sleep(self._closing_s)


def frame_of(*messages: Message) -> bytes:
    """Return one frame with these messages."""
    outgoing = Outgoing()
    for message in messages:
        outgoing.put(message)
    frame = outgoing.take_frame()
    assert not outgoing.size_bytes
    return frame
