"""Join the chunks of a stream over a short time: through Ray, chunks cost and bytes do not."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import TypeVar

from justitia_ray.units import Seconds

Head = TypeVar("Head")


async def coalesce(
    items: AsyncIterator[Head | bytes], interval_s: Seconds
) -> AsyncGenerator[Head | bytes]:
    """Yield the first chunk at once, then every `interval_s` what has come, joined.

    Items that are not bytes, a head, are yielded as they are and in their place. What the source
    raises is raised after everything that came before it. The source runs in a task of its own,
    which is cancelled when this generator is closed early.
    """
    ready: list[Head | bytes] = []
    news = asyncio.Event()

    async def pump() -> None:
        try:
            async for item in items:
                if ready and isinstance(item, bytes) and isinstance(ready[-1], bytes):
                    ready[-1] += item
                else:
                    ready.append(item)
                news.set()
        finally:
            news.set()

    source = asyncio.create_task(pump())
    try:
        while True:
            await news.wait()
            news.clear()
            chunks_before = ready.copy()
            ready.clear()
            for item in chunks_before:
                yield item
            if source.done() and not ready:
                source.result()
                return
            if interval_s and any(isinstance(item, bytes) for item in chunks_before):
                await asyncio.wait([source], timeout=interval_s)
            if ready or source.done():
                news.set()
    finally:
        source.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await source
