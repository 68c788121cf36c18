"""The caller of an HTTP stream, and the source of its items, both controlled by the test."""

import asyncio
from collections.abc import AsyncGenerator

from justitia_ray.serve.asgi import Message
from justitia_ray.serve.ingress.replica_calls import StreamItem


class Caller:
    """ASGI caller that records the messages sent to it and disconnects on request."""

    def __init__(self, body: bytes = b"") -> None:
        self.headers: dict[str, str] = {}
        self.messages: list[Message] = []
        self.sent = asyncio.Event()
        """Event that is set at each message to the caller."""
        self.leaves = asyncio.Event()
        self._unread = [{"type": "http.request", "body": body}]

    async def receive(self) -> Message:
        if self._unread:
            return self._unread.pop()
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.messages.append(message)
        self.sent.set()

    async def wait_for_chunks(self, count: int) -> None:
        while len(self.chunks) < count:
            self.sent.clear()
            await self.sent.wait()

    @property
    def chunks(self) -> list[bytes]:
        return [m["body"] for m in self.messages if m["type"] == "http.response.body"]


class FedStream:
    """Stream whose items the test supplies; None ends the stream."""

    def __init__(self) -> None:
        self.items: asyncio.Queue[StreamItem | Exception | None] = asyncio.Queue()
        self.closed = False

    def feed(self, *items: StreamItem | Exception | None) -> None:
        for item in items:
            self.items.put_nowait(item)

    async def __aiter__(self) -> AsyncGenerator[StreamItem]:
        try:
            while (item := await self.items.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.closed = True
