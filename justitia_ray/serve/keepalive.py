"""Comments in a stream that has nothing to say, so that proxies and clients do not time out."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TypeVar

from justitia_ray.units import Seconds

Item = TypeVar("Item")

KEEPALIVE = b": waiting\n\n"
"""A comment of a stream of events: clients drop it."""


async def kept_alive(
    items: AsyncGenerator[Item], interval_s: Seconds
) -> AsyncGenerator[Item | bytes]:
    """Yield the items, and a comment whenever none has come for so long.

    Each item costs a task: for streams that are known to wait. Closing it closes the items.
    """
    following: asyncio.Future[Item] | None = None
    try:
        while True:
            following = asyncio.ensure_future(anext(items))
            await asyncio.wait([following], timeout=interval_s)
            while not following.done():
                yield KEEPALIVE
                await asyncio.wait([following], timeout=interval_s)
            try:
                item = following.result()
            except StopAsyncIteration:
                return
            yield item
    finally:
        if following is not None:
            following.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await following
        await items.aclose()
