"""Join the parts of a stream that arrive within a short time, to send fewer and larger ones."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import TypeVar

from justitia_ray.protocol.stream_parts import Part, joined
from justitia_ray.units import Seconds

Head = TypeVar("Head")


def coalesce(
    items: AsyncGenerator[Head | Part], interval_s: Seconds
) -> AsyncGenerator[Head | Part]:
    """Yield a stream's first part at once, then every `interval_s` the new parts joined.

    The head, which comes before all parts, is yielded unchanged. Errors of the source are raised
    after everything that came before them. Closing this generator closes the source.

    Args:
        items: A head, then parts.
        interval_s: 0 returns the items unchanged; parts of one turn of the event loop are sent in
            one frame in any case, and the ingress joins them.
    """
    return _joined_within(items, interval_s) if interval_s else items


async def _joined_within(
    items: AsyncGenerator[Head | Part], interval_s: Seconds
) -> AsyncGenerator[Head | Part]:
    ready: list[Head | Part] = []
    news = asyncio.Event()

    async def collect_parts() -> None:
        try:
            async with aclosing(items):
                async for item in items:
                    ready.append(item)
                    news.set()
        finally:
            news.set()

    source = asyncio.create_task(collect_parts())
    try:
        while True:
            await news.wait()
            news.clear()
            came = ready.copy()
            ready.clear()
            for item in came:
                if not isinstance(item, Part):
                    yield item
            if parts := [item for item in came if isinstance(item, Part)]:
                yield joined(parts)
            if source.done() and not ready:
                source.result()
                return
            if parts:
                await asyncio.wait([source], timeout=interval_s)
            if ready or source.done():
                news.set()
    finally:
        source.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await source
