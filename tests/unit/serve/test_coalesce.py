"""Chunks are joined on their way: first at once, nothing lost, nothing out of place."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from justitia_ray.serve.coalesce import coalesce
from justitia_ray.serve.continuation import Part, joined
from justitia_ray.serve.engine import Output

_NEVER_S = 60.0
"""Long enough that only the end of the source ends the wait."""


Item = str | Part


def part(text: str) -> Part:
    """Return the part of that text: a chunk and an output for each of its characters."""
    return Part(text.encode(), len(text), tuple(Output((ord(letter),)) for letter in text))


class Source:
    """A stream that a test feeds; None ends it."""

    def __init__(self) -> None:
        self.steps: asyncio.Queue[Item | Exception | None] = asyncio.Queue()
        self.cancelled = False

    def feed(self, *steps: Item | Exception | None) -> None:
        """Let these come next."""
        for step in steps:
            self.steps.put_nowait(step)

    async def __aiter__(self) -> AsyncIterator[Item]:
        """Yield what is fed."""
        try:
            while (step := await self.steps.get()) is not None:
                if isinstance(step, Exception):
                    raise step
                yield step
        except asyncio.CancelledError:
            self.cancelled = True
            raise


async def test_first_chunk_comes_at_once() -> None:
    """It is the time to first token."""
    source = Source()
    source.feed("head", part("a"))
    async with aclosing(coalesce(aiter(source), _NEVER_S)) as items:
        assert "head" == await anext(items)
        assert part("a") == await anext(items)


async def test_what_comes_within_the_interval_is_joined() -> None:
    """Through Ray chunks cost, and bytes do not."""
    source = Source()
    source.feed("head", part("a"))
    async with aclosing(coalesce(aiter(source), _NEVER_S)) as items:
        begun = [await anext(items), await anext(items)]
        source.feed(part("b"), part("c"), part("d"), None)
        rest = [item async for item in items]

    assert ["head", part("a")] == begun
    assert [part("bcd")] == rest


async def test_without_an_interval_nothing_waits() -> None:
    """Zero turns it off."""
    source = Source()
    source.feed("head", part("a"), part("b"), None)

    items = [item async for item in coalesce(aiter(source), 0.0)]
    assert ("head", part("ab")) == (items[0], joined(i for i in items if isinstance(i, Part)))


async def test_head_keeps_its_place_between_bytes() -> None:
    """Joining must not pull bytes over an item that is not."""
    source = Source()
    source.feed(part("a"), "head", part("b"), None)

    assert [part("a"), "head", part("b")] == [item async for item in coalesce(aiter(source), 0.0)]


async def test_error_comes_after_everything_before_it() -> None:
    """A stream that is cut has still brought what it had brought."""
    source = Source()
    source.feed(part("a"), part("b"), ValueError("cut"))
    items = coalesce(aiter(source), _NEVER_S)

    assert part("ab") == await anext(items)
    with pytest.raises(ValueError, match="cut"):
        await anext(items)


async def test_closing_early_cancels_the_source() -> None:
    """A reader that leaves must not leave an engine generating."""
    source = Source()
    source.feed(part("a"))
    async with aclosing(coalesce(aiter(source), 0.0)) as items:
        assert part("a") == await anext(items)

    assert source.cancelled


async def test_source_that_ends_without_an_item_yields_nothing() -> None:
    """An empty answer is an answer."""
    source = Source()
    source.feed(None)

    assert [] == [item async for item in coalesce(aiter(source), _NEVER_S)]
