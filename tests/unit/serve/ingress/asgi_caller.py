"""The two ends of a stream, as a test holds them: its caller, and the source of its items."""

import asyncio
from collections.abc import AsyncGenerator

from justitia_ray.serve.asgi import Message
from justitia_ray.serve.ingress.replica_calls import StreamItem


class Caller:
    """The other end of a call: takes what is sent, and leaves when the test says so."""

    def __init__(self, body: bytes = b"") -> None:
        self.headers: dict[str, str] = {}
        self.messages: list[Message] = []
        self.sent = asyncio.Event()
        """Set with each message."""
        self.leaves = asyncio.Event()
        self._unread = [{"type": "http.request", "body": body}]

    async def receive(self) -> Message:
        """Return the body, then that the caller has left."""
        if self._unread:
            return self._unread.pop()
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Take a message."""
        self.messages.append(message)
        self.sent.set()

    async def until_chunks(self, count: int) -> None:
        """Wait until so many chunks have come."""
        while len(self.chunks) < count:
            self.sent.clear()
            await self.sent.wait()

    @property
    def chunks(self) -> list[bytes]:
        """What has come of the body."""
        return [m["body"] for m in self.messages if m["type"] == "http.response.body"]


class Source:
    """Items of a stream that a test feeds; None ends it."""

    def __init__(self) -> None:
        self.items: asyncio.Queue[StreamItem | Exception | None] = asyncio.Queue()
        self.closed = False

    def feed(self, *items: StreamItem | Exception | None) -> None:
        """Let these come next."""
        for item in items:
            self.items.put_nowait(item)

    async def __aiter__(self) -> AsyncGenerator[StreamItem]:
        """Yield what is fed."""
        try:
            while (item := await self.items.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.closed = True
