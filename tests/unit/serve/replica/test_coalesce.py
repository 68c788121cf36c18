"""Stream chunks are joined on their way: the first at once, none lost or reordered."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from justitia_ray.protocol.engine import Output
from justitia_ray.protocol.stream_parts import Part
from justitia_ray.serve.replica.coalesce import coalesce

_NEVER_S = 60.0
"""Interval in seconds that never passes in a test."""


Item = str | Part


def part_of(text: str) -> Part:
    """Return a part of a stream with one chunk and one output for each character."""
    return Part(text.encode(), len(text), tuple(Output((ord(letter),)) for letter in text))


class FedSource:
    """Stream whose items the test supplies; None ends it."""

    def __init__(self, *steps: Item | Exception | None) -> None:
        self.steps: asyncio.Queue[Item | Exception | None] = asyncio.Queue()
        self.cancelled = False
        self.feed(*steps)

    def feed(self, *steps: Item | Exception | None) -> None:
        for step in steps:
            self.steps.put_nowait(step)

    async def items(self) -> AsyncGenerator[Item]:
        try:
            while (step := await self.steps.get()) is not None:
                if isinstance(step, Exception):
                    raise step
                yield step
        except asyncio.CancelledError:
            self.cancelled = True
            raise


async def test_stream_chunks_within_the_interval_are_joined() -> None:
    """Sending a chunk through Ray costs time, while its bytes cost little.

    The first chunk is not delayed.
    """
    source = FedSource("head", part_of("a"))
    async with aclosing(coalesce(source.items(), _NEVER_S)) as items:
        begun = [await anext(items), await anext(items)]
        source.feed(part_of("b"), part_of("c"), part_of("d"), None)
        rest = [item async for item in items]

    assert ["head", part_of("a")] == begun
    assert [part_of("bcd")] == rest


async def test_stream_without_a_joining_interval_is_unchanged() -> None:
    items = FedSource("head", part_of("a"), None).items()

    assert items is coalesce(items, 0.0)
    assert ["head", part_of("a")] == [item async for item in items]


async def test_stream_error_follows_all_earlier_chunks() -> None:
    """A cut stream still delivers the items before the cut."""
    source = FedSource(part_of("a"), part_of("b"), ValueError("cut"))
    items = coalesce(source.items(), _NEVER_S)

    assert part_of("ab") == await anext(items)
    with pytest.raises(ValueError, match="cut"):
        await anext(items)


async def test_closing_a_joined_stream_cancels_its_source() -> None:
    """A reader that disconnects must not leave an engine generating."""
    source = FedSource(part_of("a"))
    async with aclosing(coalesce(source.items(), _NEVER_S)) as items:
        assert part_of("a") == await anext(items)

    assert source.cancelled


async def test_empty_stream_yields_no_chunk() -> None:
    source = FedSource(None)

    assert [] == [item async for item in coalesce(source.items(), _NEVER_S)]
