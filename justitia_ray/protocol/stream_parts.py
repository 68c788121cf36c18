"""The continuation of a cut stream elsewhere: what its caller has, and how to leave that out.

The ingress keeps, in a `Delivered`, the outputs that came beside the bytes, and the number of
chunks that its caller has. The engine of the next attempt is given the outputs and makes all chunks
again, the same ones (see `Engine.call`); `left_out` drops those that the caller has. Chunks are
counted as the serving layer sends them, never parsed. Without Ray.
"""

import re
from array import array
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeVar

from justitia_ray.errors import CannotContinue
from justitia_ray.protocol.engine import Engine, Output, ResponseHead
from justitia_ray.units import LeaseId

Head = TypeVar("Head")

_EVENT_START = re.compile(rb'^data: \{"id": ?"[^"]*", ?"object": ?"[^"]*", ?"created": ?\d+', re.M)
"""The part of an event that an engine makes anew in each attempt: id and time."""
_NAME = re.compile(rb'"(?:id|item_id|call_id|created_at)": ?("[^"\\]*"|\d+)')
"""Parts of a response that an engine makes anew: its id and time, and the ids of its items, each of
which comes in many events. In a text the quotes would be escaped."""


class Part(NamedTuple):
    """A piece of a stream's body on its way from the engine to the ingress."""

    body: bytes
    chunks: int
    """Number of the engine's chunks joined in this part."""
    outputs: tuple[Output, ...]
    """The engine's outputs that came with the chunks: all that are behind them, or more."""
    obstacle: str = ""
    """Why the stream could not go on elsewhere, see `Engine.obstacle`."""


@dataclass(frozen=True, slots=True)
class Resume:
    """The place where a stream is to go on."""

    outputs: tuple[Output, ...]
    """All known outputs of the engine for this stream."""
    chunks: int
    """Number of the engine's chunks that the caller has."""
    size_bytes: int
    """Length of those chunks together."""
    event_start: bytes
    """The start of the first event: id and time stay the same in all of a stream."""
    names: tuple[bytes, ...] = ()
    """The names in a response so far, in the order of their first appearance."""


class Delivered:
    """The part of a stream that has reached its caller, over all attempts.

    Args:
        names: Whether the stream's events name their parts, as those of a response do.
    """

    def __init__(self, *, names: bool = False) -> None:
        self.status: int | None = None
        """HTTP status of the stream's head; None before that."""
        self.obstacle = ""
        """Why the stream could not go on elsewhere."""
        # Eight bytes a token: thousands of streams may be open for long.
        self._tokens = array("I")
        self._lengths = array("I")
        self._last: Output | None = None
        self.chunks = 0
        """Number of the engine's chunks that the caller has."""
        self.is_whole = False
        """Whether the caller has all of the stream."""
        self._size_bytes = 0
        self._event_start = b""
        self._names: dict[bytes, None] | None = {} if names else None

    def add_part(self, part: Part) -> None:
        """Record a part that is passed on to the caller."""
        if not self._event_start:
            found = _EVENT_START.match(part.body)
            self._event_start = b"" if found is None else found[0]
        if self._names is not None:
            self._names |= dict.fromkeys(_NAME.findall(part.body))
        for output in part.outputs:
            self._tokens.extend(output.tokens)
            self._lengths.append(len(output.tokens))
            self._last = output
        self.chunks += part.chunks
        self._size_bytes += len(part.body)
        self.obstacle = self.obstacle or part.obstacle

    @property
    def can_move(self) -> bool:
        """Whether another engine could begin the stream, or go on with it."""
        return not (self.chunks and self.obstacle)

    def resume(self) -> Resume | None:
        """Return the place to go on; None if the caller has nothing of the body.

        Raises:
            CannotContinue: If the rest would not fit the part that the caller has.
        """
        if not self.chunks:
            return None
        if self.obstacle:
            raise CannotContinue(self.obstacle)
        tokens = iter(self._tokens)
        outputs = [Output(tuple(islice(tokens, length))) for length in self._lengths]
        if self._last is not None:
            outputs[-1] = self._last  # the only one that may have an end
        names = tuple(self._names or ())
        return Resume(tuple(outputs), self.chunks, self._size_bytes, self._event_start, names)


def joined(parts: Iterable[Part]) -> Part:
    """Return consecutive parts as one."""
    bodies, counts, outputs, obstacles = zip(*parts, strict=True)
    body, together = b"".join(bodies), tuple(output for some in outputs for output in some)
    return Part(body, sum(counts), together, next(filter(None, obstacles), ""))


async def in_parts(
    items: AsyncGenerator[ResponseHead | bytes], engine: Engine, lease_id: LeaseId
) -> AsyncGenerator[ResponseHead | Part]:
    """Yield the head of a call, then each chunk with the outputs that came before it."""
    async with aclosing(items):
        async for item in items:
            if isinstance(item, ResponseHead):
                yield item
            else:
                outputs = engine.take_outputs(lease_id)
                yield Part(item, 1, outputs, engine.obstacle(lease_id))


async def left_out(
    items: AsyncGenerator[Head | Part], resume: Resume
) -> AsyncGenerator[Head | Part]:
    """Yield the items of a stream made again, without the part that its caller has.

    Args:
        items: The stream from its start, a chunk an item.
        resume: The place where it is to go on.

    Raises:
        CannotContinue: If the stream does not begin as the caller knows it, e.g. because the
            replicas differ in version or configuration.
    """
    chunks = size_bytes = 0
    renamed = _renaming(resume)
    async with aclosing(items):
        async for item in items:
            if not isinstance(item, Part):
                yield item
                continue
            body = renamed(item.body)
            if chunks >= resume.chunks:
                yield item._replace(body=body)
                continue
            chunks += item.chunks
            size_bytes += len(body)
            if chunks == resume.chunks and size_bytes != resume.size_bytes:
                raise CannotContinue("the replica that was to go on answers differently")


def _renaming(resume: Resume) -> Callable[[bytes], bytes]:
    """Return a function that gives ids and times of a new attempt the values the caller knows."""
    known: dict[bytes, bytes] = {}

    def rename(found: re.Match[bytes]) -> bytes:
        """Return the name that came in this place before; a new one keeps its own."""
        new, place = found[1], len(known)
        if new not in known:
            known[new] = resume.names[place] if place < len(resume.names) else new
        return found[0][: -len(new)] + known[new]

    def renamed(body: bytes) -> bytes:
        if resume.event_start:
            body = _EVENT_START.sub(lambda _: resume.event_start, body)
        return _NAME.sub(rename, body) if resume.names else body

    return renamed
