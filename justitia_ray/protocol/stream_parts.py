"""Continuation of an interrupted stream on another replica, without repeating sent chunks.

The ingress stores in a `Delivered` the outputs that came with the chunks, and the number of chunks
sent to the caller. The engine of the next attempt receives the outputs and produces the same chunks
again (see `Engine.call`); `without_delivered` drops the chunks that the caller has. Chunks are
counted as the serving layer sends them and never parsed. This module does not use Ray.
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
"""Id and time of a stream's event, which differ between attempts."""
_NAME = re.compile(rb'"(?:id|item_id|call_id|created_at)": ?("[^"\\]*"|\d+)')
"""Ids and times in a response, which differ between attempts. The pattern cannot match generated
text, because quotes in it are escaped.
"""


class Part(NamedTuple):
    """Part of a stream on its way from the engine to the ingress."""

    body: bytes
    chunks: int
    """Number of engine chunks in this part of the stream."""
    outputs: tuple[Output, ...]
    """Engine outputs sent with this part: for its chunks, and possibly for later chunks."""
    obstacle: str = ""
    """Reason why no other replica can continue the stream; see `Engine.obstacle`."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Position at which an interrupted stream continues on another engine."""

    outputs: tuple[Output, ...]
    """All known outputs of the engine that ran the interrupted stream."""
    chunks: int
    size_bytes: int
    """Total bytes of the chunks that the caller has received."""
    event_start: bytes
    """Id and time in the first event, which must not change."""
    names: tuple[bytes, ...] = ()
    """Ids in the response so far, in order of first appearance."""


class Delivered:
    """State of a stream at its caller, over all attempts.

    Args:
        names: Whether the stream's events contain ids of their items, as in a response.
    """

    def __init__(self, *, names: bool = False) -> None:
        self.status: int | None = None
        """HTTP status of the stream; None before its head."""
        self.obstacle = ""
        """Reason why no other replica can continue the stream; empty if one can."""
        # An array takes little memory per token, as thousands of streams may be open for long.
        self._tokens = array("I")
        self._lengths = array("I")
        self._last: Output | None = None
        self.chunks = 0
        """Number of engine chunks that the caller has received."""
        self._size_bytes = 0
        self._event_start = b""
        self._names: dict[bytes, None] | None = {} if names else None

    def add_part(self, part: Part) -> None:
        """Record a part that is sent to the caller."""
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
        """Whether another engine can start or continue the stream."""
        return not (self.chunks and self.obstacle)

    def resume(self) -> Resume | None:
        """Return the position to continue from; None if the caller has received no chunk.

        Raises:
            CannotContinue: If the rest might not continue what the caller has.
        """
        if not self.chunks:
            return None
        if self.obstacle:
            raise CannotContinue(self.obstacle)
        tokens = iter(self._tokens)
        outputs = [Output(tuple(islice(tokens, length))) for length in self._lengths]
        if self._last is not None:
            # Only the last output can have a finish reason, so `_last` is kept whole.
            outputs[-1] = self._last
        names = tuple(self._names or ())
        return Resume(tuple(outputs), self.chunks, self._size_bytes, self._event_start, names)


def joined(parts: Iterable[Part]) -> Part:
    """Join consecutive parts of a stream to one part."""
    bodies, counts, outputs, obstacles = zip(*parts, strict=True)
    body, together = b"".join(bodies), tuple(output for some in outputs for output in some)
    return Part(body, sum(counts), together, next(filter(None, obstacles), ""))


async def in_parts(
    items: AsyncGenerator[ResponseHead | bytes], engine: Engine, lease_id: LeaseId
) -> AsyncGenerator[ResponseHead | Part]:
    """Yield the head of a call, then each chunk with the outputs before it."""
    async with aclosing(items):
        async for item in items:
            if isinstance(item, ResponseHead):
                yield item
            else:
                outputs = engine.take_outputs(lease_id)
                yield Part(item, 1, outputs, engine.obstacle(lease_id))


async def without_delivered(
    items: AsyncGenerator[Head | Part], resume: Resume
) -> AsyncGenerator[Head | Part]:
    """Yield a repeated stream without the chunks that the caller has received.

    Args:
        items: The stream from its start, one chunk per item.
        resume: The position to continue from.

    Raises:
        CannotContinue: If the stream starts differently, e.g. because the replicas differ in
            version or configuration.
    """
    chunks = size_bytes = 0
    rename_all = _renaming(resume)
    async with aclosing(items):
        async for item in items:
            if not isinstance(item, Part):
                yield item
                continue
            body = rename_all(item.body)
            if chunks >= resume.chunks:
                yield item._replace(body=body)
                continue
            chunks += item.chunks
            size_bytes += len(body)
            if chunks == resume.chunks and size_bytes != resume.size_bytes:
                raise CannotContinue("the replica that was to go on answers differently")


def _renaming(resume: Resume) -> Callable[[bytes], bytes]:
    """Return a function that replaces a new attempt's ids and times by the ones already sent."""
    known: dict[bytes, bytes] = {}

    def rename_id(found: re.Match[bytes]) -> bytes:
        """Return the id that was sent at this position before; a new id stays unchanged."""
        new, place = found[1], len(known)
        if new not in known:
            known[new] = resume.names[place] if place < len(resume.names) else new
        return found[0][: -len(new)] + known[new]

    def rename_all(body: bytes) -> bytes:
        if resume.event_start:
            body = _EVENT_START.sub(lambda _: resume.event_start, body)
        return _NAME.sub(rename_id, body) if resume.names else body

    return rename_all
