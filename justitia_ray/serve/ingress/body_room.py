"""Memory bound of large request bodies, from their first byte to the count of their tokens.

A body that is parsed and rendered takes up to ten times its bytes. So few bodies are parsed at
once, in fair turns between tenants; the others wait as bytes. The waiting bytes are bounded as
well, and count from their arrival on, because a body may never end.
"""

import asyncio
import ctypes
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeVar

from justitia_ray.errors import QueueFull
from justitia_ray.serve.ingress.turns import Place, Turns

T = TypeVar("T")

_SMALL_BYTES = 64 * 2**10
"""Largest request body in bytes without a limit; reading it takes less than a millisecond."""
_READ_ON_LOOP_BYTES = 256 * 2**10
"""Largest request body in bytes that is parsed on the event loop, within some milliseconds."""
_RETURNED_BYTES = 256 * 2**10
"""Smallest memory block in bytes that returns to the operating system when it is freed."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Numbers of two options of glibc's function `mallopt`."""
_READ_BYTES = 24 * 2**20
"""Maximum bytes of request bodies that are parsed at once; a larger body is parsed alone."""
_FREE_FACTOR = 4
"""Maximum bytes of one tenant's request bodies, as a multiple of the memory that is free for
bodies.
"""

_Waiting = tuple[int, asyncio.Future[None]]
"""A request body's bytes, and the future that is done when the body may be parsed."""


def give_memory_back() -> None:
    """Make this process return the memory of each large request body to the system after use.

    When glibc frees a large block, it raises the size from which blocks are returned, up to 32 MiB;
    later bodies are then taken from a heap, which they leave fragmented. Other allocators have no
    such option, and need none.
    """
    options = getattr(ctypes.CDLL(None), "mallopt", None)
    if options is not None:
        for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            options(option, _RETURNED_BYTES)


class BodyRoom:
    """Limits the memory of the large request bodies that an ingress process receives and parses.

    Args:
        max_bytes: Maximum bytes of bodies that arrive, wait or are parsed.
        read_bytes: Maximum bytes of bodies that are parsed.
    """

    def __init__(self, max_bytes: int, read_bytes: int = _READ_BYTES) -> None:
        self._max_bytes = max_bytes
        self._read_bytes = read_bytes
        self._held: Counter[str] = Counter()
        """Bytes of request bodies by tenant."""
        self._held_bytes = 0
        self._reading_bytes = 0
        self._turns: Turns[_Waiting] = Turns()

    @contextmanager
    def hold(self, tenant: str) -> Iterator["HeldBody"]:
        """Count a tenant's request body towards the limit while the `with` block runs."""
        held = HeldBody(self, tenant)
        try:
            yield held
        finally:
            held.release()

    def resize(self, tenant: str, before_bytes: int, after_bytes: int) -> None:
        """Update the size of a request body that has grown or shrunk.

        Raises:
            QueueFull: If the body has grown beyond the limit.
        """
        grown_bytes = after_bytes - before_bytes
        if grown_bytes > 0:
            self._check_room(tenant, before_bytes, after_bytes)
        self._held_bytes += grown_bytes
        self._held[tenant] += grown_bytes
        if not self._held[tenant]:
            del self._held[tenant]

    def _check_room(self, tenant: str, before_bytes: int, after_bytes: int) -> None:
        free = self._max_bytes - self._held_bytes - (after_bytes - before_bytes)
        others_bytes = self._held[tenant] - before_bytes
        if free < 0 or (others_bytes and others_bytes + after_bytes > _FREE_FACTOR * free):
            raise QueueFull(
                f"request bodies of {self._held_bytes} bytes come or wait to be read,"
                f" {self._held[tenant]} of them of this tenant; ingress.max_body_bytes_held is"
                f" {self._max_bytes}, and one tenant may hold {_FREE_FACTOR} times what is left"
                " free; try again later"
            )

    def line_up(self, tenant: str, size_bytes: int) -> Place[_Waiting]:
        """Queue a request body to be parsed; return its place in the queue."""
        granted = asyncio.get_running_loop().create_future()
        place = self._turns.join(tenant, (size_bytes, granted))
        self._grant_turns()
        return place

    def end_turn(self, place: Place[_Waiting]) -> None:
        """End the parsing of a request body, or its wait to be parsed."""
        assert place.item is not None
        size_bytes, granted = place.item
        if granted.done() and not granted.cancelled():
            self._reading_bytes -= size_bytes
        self._turns.leave(place)
        self._grant_turns()

    def _grant_turns(self) -> None:
        while (place := self._turns.first()) is not None:
            assert place.item is not None
            size_bytes, granted = place.item
            if self._reading_bytes and self._reading_bytes + size_bytes > self._read_bytes:
                return
            self._turns.take(place)
            if not granted.done():  # A cancelled request removes its body itself.
                self._turns.charge(place, size_bytes)
                self._reading_bytes += size_bytes
                granted.set_result(None)


class HeldBody:
    """Request body that counts towards the memory limit while it arrives, waits and is parsed."""

    __slots__ = ("_held_bytes", "_reading", "_room", "_tenant")

    def __init__(self, room: BodyRoom, tenant: str) -> None:
        self._room = room
        self._tenant = tenant
        self._held_bytes = 0
        self._reading: asyncio.Future[Any] | None = None
        """Future of the thread that parses the body; None: no thread parses it."""

    def note_size(self, size_bytes: int) -> None:
        """Update the number of bytes that the request body takes.

        Raises:
            QueueFull: If the body has grown beyond the limit.
        """
        if size_bytes <= _SMALL_BYTES:
            size_bytes = 0
        if size_bytes != self._held_bytes:
            self._room.resize(self._tenant, self._held_bytes, size_bytes)
            self._held_bytes = size_bytes

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until the tenant's request body may be parsed; others wait until the block ends.

        The turn ends with the block, or later if a thread still reads the body.
        """
        if not self._held_bytes:
            yield
            return
        place = self._room.line_up(self._tenant, self._held_bytes)
        assert place.item is not None
        _, granted = place.item
        try:
            await granted
            yield
        finally:
            self._after_reading(partial(self._room.end_turn, place))

    async def read(self, read: Callable[..., T], *arguments: Any) -> T:
        """Call a function on the request body and return its result, in a thread if it is long.

        A thread cannot be stopped. If the caller is cancelled, the thread continues, and the body
        keeps its turn and its memory until the thread ends.
        """
        if self._held_bytes <= _READ_ON_LOOP_BYTES:
            return read(*arguments)
        work = partial(read, *arguments)
        self._reading = reading = asyncio.get_running_loop().run_in_executor(None, work)
        result = await asyncio.shield(reading)
        self._reading = None  # do not keep the result alive
        return result

    def release(self) -> None:
        """Stop counting the body's memory; a second call has no effect."""
        if self._held_bytes:
            self._after_reading(partial(self.note_size, 0))

    def _after_reading(self, end: Callable[[], None]) -> None:
        if self._reading is None or self._reading.done():
            end()
        else:
            self._reading.add_done_callback(lambda _: end())
