"""Calls under way between processes of a history, as their callers see them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any

from justitia_ray.units import Seconds


class Response:
    """A call under way: await it for its answer."""

    def __init__(self, answer: "asyncio.Future[Any]", cancel: Callable[[], None]) -> None:
        self._answer = answer
        self._cancel = cancel

    def __await__(self) -> Generator[Any, None, Any]:
        return self._answer.__await__()

    def cancel(self) -> None:
        """Ask the other side to stop; nobody waits for the answer any more."""
        self._cancel()


class Stream:
    """A streamed call under way."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._items: deque[Any] = deque()
        self._news = asyncio.Event()
        self._cancel = cancel
        self.arrives_at: Seconds = 0.0
        """No later item arrives before this instant."""

    def put(self, item: Any) -> None:
        """Let an item arrive; an exception ends the stream, None too."""
        self._items.append(item)
        self._news.set()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        while not self._items:
            self._news.clear()
            await self._news.wait()
        item = self._items.popleft()
        if item is None:
            raise StopAsyncIteration
        if isinstance(item, BaseException):
            raise item
        return item

    def cancel(self) -> None:
        """Ask the other side to stop."""
        self._cancel()
