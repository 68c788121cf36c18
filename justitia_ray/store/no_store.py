"""The scheduler's store where nothing is stored: `durability: none`."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from justitia_ray.store.scheduler_store import StoredState
from justitia_ray.units import ApplicationId, Epoch, ReplicaId, Seconds


class NoStore:
    """Keeps nothing; its epochs are the wall clock's milliseconds.

    They rise over restarts as long as the wall clocks of the nodes on which the scheduler is
    started agree to within the time that a restart takes. Where one was set back, the callers know
    a higher epoch, and the scheduler takes one above it as soon as one of them calls. What is not
    there is the fence: of two schedulers of one name neither learns of the other here.
    """

    def __init__(self, wall: Callable[[], Seconds] = time.time) -> None:
        self._wall = wall

    async def take_office(self, above: Epoch = 0) -> Epoch:
        """Return a new epoch."""
        return max(int(1000 * self._wall()), above + 1)

    async def load(self) -> StoredState:
        """Return nothing."""
        return StoredState(clock=None, applications={}, settings=None, replicas={})

    async def save(
        self,
        epoch: Epoch,
        clock: Mapping[str, Any] | None,
        changed: Mapping[ApplicationId, Mapping[str, Any]],
        removed: Iterable[ApplicationId],
        settings: Mapping[str, Any] | None = None,
        replicas: Mapping[ReplicaId, Mapping[str, Any]] | None = None,
    ) -> bool:
        """Do nothing."""
        return True

    async def aclose(self) -> None:
        """There is nothing to close."""
