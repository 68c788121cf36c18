"""Join the parts of a stream over a short time: through Ray, parts cost and bytes do not."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from itertools import groupby
from typing import TypeVar

from justitia_ray.serve.continuation import Part, joined
from justitia_ray.units import Seconds

Head = TypeVar("Head")


async def coalesce(
    items: AsyncIterator[Head | Part], interval_s: Seconds
) -> AsyncGenerator[Head | Part]:
    """Yield the first part at once, then every `interval_s` what has come, joined.

    Items that are no parts, a head, are yielded as they are and in their place. What the source
    raises is raised after everything that came before it. The source runs in a task of its own,
    which is cancelled when this generator is closed early.
    """
    ready: list[Head | Part] = []
    news = asyncio.Event()

    async def pump() -> None:
        try:
            async for item in items:
                ready.append(item)
                news.set()
        finally:
            news.set()

    source = asyncio.create_task(pump())
    try:
        while True:
            await news.wait()
            news.clear()
            came = ready.copy()
            ready.clear()
            for item in _joined(came):
                yield item
            if source.done() and not ready:
                source.result()
                return
            if interval_s and any(isinstance(item, Part) for item in came):
                await asyncio.wait([source], timeout=interval_s)
            if ready or source.done():
                news.set()
    finally:
        source.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await source


def _joined(items: list[Head | Part]) -> list[Head | Part]:
    """Return the items with what is between two heads as one part."""
    if len(items) == 1:
        return items
    together: list[Head | Part] = []
    for is_part, run in groupby(items, lambda item: isinstance(item, Part)):
        if is_part:
            together.append(joined(part for part in run if isinstance(part, Part)))
        else:
            together.extend(run)
    return together
