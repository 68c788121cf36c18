"""Connections of an ingress to replicas: opened at the first grant, and reopened after a pause."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from justitia_ray.errors import ConnectionLost
from justitia_ray.serve.transport.link import Link
from justitia_ray.units import ReplicaId, Seconds

_PAUSE_S: Seconds = 0.1
LONGEST_PAUSE_S: Seconds = 5.0
"""Longest pause in seconds before a lost connection to a replica is opened again."""
_MOST_KNOWN = 4096
"""Maximum number of replica addresses kept, as replicas start and stop."""


@dataclass(slots=True)
class _Known:
    """Address and connection of a replica, and the time until which no connection is tried."""

    address: str
    link: Link | None = None
    """Connection to the replica, which may be lost; None: no connection is open."""
    opening: asyncio.Task[Link] | None = None
    """Task that is opening the connection to the replica."""
    pause_s: Seconds = _PAUSE_S
    """Seconds to pause after the next failed connection."""
    not_before: Seconds = 0.0
    """Time until which no connection is tried, in seconds of the loop's clock."""

    def pause(self) -> None:
        """Start a pause after a failed connection; the next pause is twice as long."""
        self.not_before = asyncio.get_running_loop().time() + self.pause_s
        self.pause_s = min(LONGEST_PAUSE_S, 2 * self.pause_s)


class ReplicaLinks:
    """Connections to replicas; a lost connection does not mean a lost replica.

    Args:
        dial: Opens a connection to an address, at which the process with the given name
            listens.
    """

    def __init__(self, dial: Callable[[str, str], Awaitable[Link]]) -> None:
        self._dial = dial
        self._known: dict[ReplicaId, _Known] = {}

    def note_addresses(self, addresses: Mapping[ReplicaId, str]) -> None:
        for replica_id, address in addresses.items():
            known = self._known.get(replica_id)
            if known is None or known.address != address:
                self._known[replica_id] = _Known(address)
        while len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]

    async def link_to(self, replica_id: ReplicaId) -> Link:
        """Return an open connection to a replica.

        Raises:
            ConnectionLost: If no connection can be opened, or the last one was lost just now:
                another replica can run the inference meanwhile.
        """
        known = self._known.get(replica_id)
        if known is None:
            raise ConnectionLost(f"no address of replica {replica_id} is known")
        if known.link is not None:
            if not known.link.is_lost:
                return known.link
            known.link = None
            known.pause()
        if known.opening is None:
            if asyncio.get_running_loop().time() < known.not_before:
                raise ConnectionLost(f"the connection to replica {replica_id} was lost just now")
            known.opening = asyncio.create_task(self._open_link(replica_id, known))
        return await asyncio.shield(known.opening)

    def abandon(self, replica_id: ReplicaId, first: object, error: Exception) -> None:
        """End calls to a replica early; see `Link.abandon`."""
        known = self._known.get(replica_id)
        if known is not None and known.link is not None and not known.link.is_lost:
            known.link.abandon(first, error)

    async def close(self) -> None:
        closing = list(self._known.values())
        self._known.clear()
        for known in closing:
            if known.opening is not None:
                known.opening.cancel()
            if known.link is not None and not known.link.is_lost:
                await known.link.close()

    async def _open_link(self, replica_id: ReplicaId, known: _Known) -> Link:
        try:
            link = await self._dial(known.address, replica_id)
        except ConnectionLost:
            known.pause()
            raise
        finally:
            known.opening = None
        known.pause_s, known.link = _PAUSE_S, link
        return link
