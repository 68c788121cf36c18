"""Room for large request bodies, from their first byte to the count of their prompt tokens.

A body that is parsed and rendered takes up to ten times its bytes. So few are at once, in fair
turns between tenants, and the others wait as bytes. Those are bounded as well, and count as they
come and are decoded: a body may never end.
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
"""Shorter bodies are not counted here: they are read in less than a millisecond."""
_READ_ON_LOOP_BYTES = 256 * 2**10
"""Longest body that is parsed on the loop: some milliseconds."""
_RETURNED_BYTES = 256 * 2**10
"""Blocks of this size and above are returned to the system when they are freed."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Options of glibc's `mallopt`."""
_READ_BYTES = 24 * 2**20
"""Bytes of bodies that are parsed and counted at once; a longer one has its turn alone."""
_FREE_FACTOR = 4
"""Most that a tenant may hold, as a multiple of the free room: the same as in the queue."""

_Waiting = tuple[int, asyncio.Future[None]]
"""Bytes of a body, and the future that grants its turn."""


def give_memory_back() -> None:
    """Let the allocator of this process return the memory of each large body as it is freed.

    glibc raises its threshold for that with every large block that is freed, up to 32 MiB; from
    then on bodies come from a heap that they leave full of holes. Other allocators have no such
    option, and need none.
    """
    options = getattr(ctypes.CDLL(None), "mallopt", None)
    if options is not None:
        for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            options(option, _RETURNED_BYTES)


class BodyRoom:
    """The large bodies of an ingress process that are not counted yet."""

    def __init__(self, max_bytes: int, read_bytes: int = _READ_BYTES) -> None:
        """Begin empty.

        Args:
            max_bytes: Maximum bytes of bodies that come, wait or are read.
            read_bytes: Maximum bytes of those that are read.
        """
        self._max_bytes = max_bytes
        self._read_bytes = read_bytes
        self._held: Counter[str] = Counter()
        """Bytes of each tenant's bodies."""
        self._held_bytes = 0
        self._reading_bytes = 0
        self._turns: Turns[_Waiting] = Turns()

    @contextmanager
    def hold(self, tenant: str) -> Iterator["HeldBody"]:
        """Hold a place for a tenant's body, of which nothing has come, while the block runs."""
        held = HeldBody(self, tenant)
        try:
            yield held
        finally:
            held.release()

    def resize(self, tenant: str, before_bytes: int, after_bytes: int) -> None:
        """Count a body that has grown or shrunk.

        Raises:
            QueueFull: If it has grown, and there is no room for it.
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
        """Let a body wait for its turn, whose future is in its place."""
        granted = asyncio.get_running_loop().create_future()
        place = self._turns.join(tenant, (size_bytes, granted))
        self._grant_turns()
        return place

    def end_turn(self, place: Place[_Waiting]) -> None:
        """End a turn, or the wait for it."""
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
            if not granted.done():  # a cancelled one leaves by itself
                self._turns.charge(place, size_bytes)
                self._reading_bytes += size_bytes
                granted.set_result(None)


class HeldBody:
    """Request body that counts against the room while it arrives, waits and is parsed."""

    __slots__ = ("_held_bytes", "_reading", "_room", "_tenant")

    def __init__(self, room: BodyRoom, tenant: str) -> None:
        self._room = room
        self._tenant = tenant
        self._held_bytes = 0
        self._reading: asyncio.Future[Any] | None = None
        """Work of a thread on the body."""

    def note_size(self, size_bytes: int) -> None:
        """Count the bytes that the body takes now.

        Raises:
            QueueFull: If it has grown, and there is no room for it.
        """
        if size_bytes <= _SMALL_BYTES:
            size_bytes = 0
        if size_bytes != self._held_bytes:
            self._room.resize(self._tenant, self._held_bytes, size_bytes)
            self._held_bytes = size_bytes

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the tenant's turn to read a body that is whole, and hold it.

        The turn ends with the block, but not before a thread that still reads the body.
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
        """Return what a function makes of the body: in a thread if it is long.

        A thread cannot be stopped. If the caller is cancelled it goes on, and the body keeps its
        turn and its room until then.
        """
        if self._held_bytes <= _READ_ON_LOOP_BYTES:
            return read(*arguments)
        work = partial(read, *arguments)
        self._reading = reading = asyncio.get_running_loop().run_in_executor(None, work)
        result = await asyncio.shield(reading)
        self._reading = None  # what was made of the body is not kept here
        return result

    def release(self) -> None:
        """Give the room back; what was given back is not given again."""
        if self._held_bytes:
            self._after_reading(partial(self.note_size, 0))

    def _after_reading(self, end: Callable[[], None]) -> None:
        if self._reading is None or self._reading.done():
            end()
        else:
            self._reading.add_done_callback(lambda _: end())
