"""Chunks are joined on their way: first at once, nothing lost, nothing out of place."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from justitia_ray.protocol.engine import Output
from justitia_ray.protocol.stream_parts import Part
from justitia_ray.serve.replica.coalesce import coalesce

_NEVER_S = 60.0
"""Long enough that only the end of the source ends the wait."""


Item = str | Part


def part(text: str) -> Part:
    """Return the part of that text: a chunk and an output for each of its characters."""
    return Part(text.encode(), len(text), tuple(Output((ord(letter),)) for letter in text))


class Source:
    """A stream that a test feeds; None ends it."""

    def __init__(self, *steps: Item | Exception | None) -> None:
        self.steps: asyncio.Queue[Item | Exception | None] = asyncio.Queue()
        self.cancelled = False
        self.feed(*steps)

    def feed(self, *steps: Item | Exception | None) -> None:
        """Let these come next."""
        for step in steps:
            self.steps.put_nowait(step)

    async def items(self) -> AsyncGenerator[Item]:
        """Yield what is fed."""
        try:
            while (step := await self.steps.get()) is not None:
                if isinstance(step, Exception):
                    raise step
                yield step
        except asyncio.CancelledError:
            self.cancelled = True
            raise


async def test_what_comes_within_the_interval_is_joined() -> None:
    """Through Ray chunks cost, and bytes do not; the first comes at once, and begins the answer."""
    source = Source("head", part("a"))
    async with aclosing(coalesce(source.items(), _NEVER_S)) as items:
        begun = [await anext(items), await anext(items)]
        source.feed(part("b"), part("c"), part("d"), None)
        rest = [item async for item in items]

    assert ["head", part("a")] == begun
    assert [part("bcd")] == rest


async def test_without_an_interval_nothing_is_in_the_way() -> None:
    """Neither a task nor a generator: whoever sends and reads them joins what comes at once."""
    items = Source("head", part("a"), None).items()

    assert items is coalesce(items, 0.0)
    assert ["head", part("a")] == [item async for item in items]


async def test_error_comes_after_everything_before_it() -> None:
    """A stream that is cut has still brought what it had brought."""
    source = Source(part("a"), part("b"), ValueError("cut"))
    items = coalesce(source.items(), _NEVER_S)

    assert part("ab") == await anext(items)
    with pytest.raises(ValueError, match="cut"):
        await anext(items)


async def test_closing_early_cancels_the_source() -> None:
    """A reader that leaves must not leave an engine generating."""
    source = Source(part("a"))
    async with aclosing(coalesce(source.items(), _NEVER_S)) as items:
        assert part("a") == await anext(items)

    assert source.cancelled


async def test_source_that_ends_without_an_item_yields_nothing() -> None:
    """An empty answer is an answer."""
    source = Source(None)

    assert [] == [item async for item in coalesce(source.items(), _NEVER_S)]
