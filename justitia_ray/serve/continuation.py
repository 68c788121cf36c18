"""A stream that was cut goes on elsewhere: what its caller has of it, and how to leave that out.

The ingress keeps, in a `Delivered`, the outputs that came beside the bytes, and how many chunks
its caller has. The engine of the next attempt is given the outputs and makes all chunks again, the
same ones (see `Engine.call`); `left_out` drops those that the caller has. Chunks are counted as the
serving layer sends them, never parsed. Without Ray.
"""

import re
from array import array
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from justitia_ray.errors import CannotContinue
from justitia_ray.serve.engine import Engine, Output, ResponseHead
from justitia_ray.units import LeaseId

Head = TypeVar("Head")

_EVENT_START = re.compile(rb'^data: \{"id": ?"[^"]*", ?"object": ?"[^"]*", ?"created": ?\d+', re.M)
"""What of an event an engine makes anew in each attempt: its id and its time."""
_NAME = re.compile(rb'"(?:id|item_id|call_id|created_at)": ?("[^"\\]*"|\d+)')
"""What of a response an engine makes anew: its id and time, and the ids of its items, each of which
comes in many events. In a text the quotes would be escaped."""


class Part(NamedTuple):
    """A piece of a stream's body on its way from the engine to the ingress."""

    body: bytes
    chunks: int
    """How many of the engine's chunks were joined in it."""
    outputs: tuple[Output, ...]
    """What came of the engine with them; all that is behind the chunks, or more."""
    obstacle: str = ""
    """Why the stream could not go on elsewhere, see `Engine.obstacle`."""


PackedPart = tuple[bytes, int, tuple[tuple[Any, ...], ...], str]
"""A part in plain tuples: a named one takes pickle ten times as long."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a stream is to go on."""

    outputs: tuple[Output, ...]
    """All that is known of what the engine has made of it."""
    chunks: int
    """The caller has so many of the engine's chunks."""
    size_bytes: int
    """Length of those chunks together."""
    event_start: bytes
    """How its first event began: id and time stay the same in all of a stream."""
    names: tuple[bytes, ...] = ()
    """The names in a response so far, in the order of their first appearance."""


class Delivered:
    """What of one stream has reached its caller, over all attempts.

    Args:
        names: Whether its events name their parts, as those of a response do.
    """

    def __init__(self, *, names: bool = False) -> None:
        self.status: int | None = None
        """Of its head; None before that."""
        self.obstacle = ""
        """Why it could not go on elsewhere."""
        # Eight bytes a token: thousands of streams may be open for long.
        self._tokens = array("I")
        self._lengths = array("I")
        self._last: Output | None = None
        self.chunks = 0
        """How many of the engine's chunks the caller has."""
        self._size_bytes = 0
        self._event_start = b""
        self._names: dict[bytes, None] | None = {} if names else None

    def add(self, part: Part) -> None:
        """Note what is passed on to the caller."""
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

    def resume(self) -> Resume | None:
        """Return where to go on; None if the caller has nothing of the body.

        Raises:
            CannotContinue: If what follows would not fit what the caller has.
        """
        if not self.chunks:
            return None
        if self.obstacle:
            raise CannotContinue(self.obstacle)
        names = tuple(self._names or ())
        return Resume(self._outputs(), self.chunks, self._size_bytes, self._event_start, names)

    def _outputs(self) -> tuple[Output, ...]:
        tokens = iter(self._tokens)
        outputs = [Output(tuple(islice(tokens, length))) for length in self._lengths]
        if self._last is not None:
            outputs[-1] = self._last  # the only one that may have an end
        return tuple(outputs)


def packed(part: Part) -> PackedPart:
    """Return a part for the way to another process."""
    return part.body, part.chunks, tuple(map(tuple, part.outputs)), part.obstacle


def unpacked(part: PackedPart) -> Part:
    """Return the part that was packed."""
    body, chunks, outputs, obstacle = part
    return Part(body, chunks, tuple(map(Output._make, outputs)), obstacle)


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
    """Yield the items of a stream made again, without what its caller has.

    Args:
        items: The stream from its start, a chunk an item.
        resume: Where it is to go on.

    Raises:
        CannotContinue: If it does not begin with what the caller has, e.g. because the replicas
            differ in version or configuration.
    """
    chunks = size_bytes = 0
    renamed = _Renaming(resume)
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


class _Renaming:
    """Gives what an engine has made anew the names that the caller knows."""

    def __init__(self, resume: Resume) -> None:
        self._event_start = resume.event_start
        self._names = resume.names
        self._known: dict[bytes, bytes] = {}

    def __call__(self, body: bytes) -> bytes:
        if self._event_start:
            body = _EVENT_START.sub(lambda _: self._event_start, body)
        return _NAME.sub(self._rename, body) if self._names else body

    def _rename(self, found: re.Match[bytes]) -> bytes:
        """Return the name that came in this place before; of what is new, its own."""
        new, place = found[1], len(self._known)
        if new not in self._known:
            self._known[new] = self._names[place] if place < len(self._names) else new
        return found[0][: -len(new)] + self._known[new]
