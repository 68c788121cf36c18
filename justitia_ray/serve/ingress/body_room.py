"""Room for large request bodies, from their last byte to the count of their prompt tokens.

A body that is parsed and rendered takes up to ten times its bytes. So few are at once, in fair
turns between tenants, and the others wait as the bytes that came. Those are bounded as well.
"""

import asyncio
import ctypes
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from justitia_ray.errors import QueueFull
from justitia_ray.serve.ingress.turns import Turns

_SMALL_BYTES = 64 * 2**10
"""Shorter bodies are not counted here: they are read in less than a millisecond."""
_RETURNED_BYTES = 256 * 2**10
"""Blocks of this size and above are returned to the system when they are freed."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Options of glibc's `mallopt`."""
_READ_BYTES = 24 * 2**20
"""Bytes of bodies that are parsed and counted at once; a longer one has its turn alone."""
_FREE_FACTOR = 4
"""One tenant may hold at most so many times what is left free, as in the scheduler's queue."""


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
            max_bytes: Maximum bytes of bodies that wait or are read.
            read_bytes: Maximum bytes of those that are read.
        """
        self._max_bytes = max_bytes
        self._read_bytes = read_bytes
        self._held: Counter[str] = Counter()
        """Bytes of each tenant's bodies."""
        self._held_bytes = 0
        self._reading_bytes = 0
        self._turns: Turns[tuple[int, asyncio.Future[None]]] = Turns()

    @asynccontextmanager
    async def turn(self, tenant: str, size_bytes: int) -> AsyncIterator[None]:
        """Wait for a tenant's turn to read a body, and hold it.

        Raises:
            QueueFull: If there is no room for the body to wait.
        """
        if size_bytes <= _SMALL_BYTES:
            yield
            return
        self._check_room(tenant, size_bytes)
        self._held[tenant] += size_bytes
        self._held_bytes += size_bytes
        granted = asyncio.get_running_loop().create_future()
        place = self._turns.join(tenant, (size_bytes, granted))
        try:
            self._grant_turns()
            await granted
            yield
        finally:
            if granted.done() and not granted.cancelled():
                self._reading_bytes -= size_bytes
            self._turns.leave(place)
            self._held_bytes -= size_bytes
            self._held[tenant] -= size_bytes
            if not self._held[tenant]:
                del self._held[tenant]
            self._grant_turns()

    def _check_room(self, tenant: str, size_bytes: int) -> None:
        free = self._max_bytes - self._held_bytes - size_bytes
        if free < 0 or (
            self._held[tenant] and self._held[tenant] + size_bytes > _FREE_FACTOR * free
        ):
            raise QueueFull(
                f"request bodies of {self._held_bytes} bytes wait to be read,"
                f" {self._held[tenant]} of them of this tenant; ingress.max_body_bytes_held is"
                f" {self._max_bytes}, and one tenant may hold {_FREE_FACTOR} times what is left"
                " free; try again later"
            )

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
