"""Which application comes next: a heap over those with a waiting inference, in policy order."""

import heapq
from collections.abc import Callable

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.policies.base import Key
from justitia_ray.units import ApplicationId

_COMPACT_ABOVE = 64


class Queue:
    """Applications by key. Touching one whose key or head changed is O(log N), amortised."""

    def __init__(self, key: Callable[[Application, Inference], Key]) -> None:
        self._key = key
        self._heap: list[tuple[Key, ApplicationId]] = []
        self._current: dict[ApplicationId, tuple[Key, Application]] = {}

    def __len__(self) -> int:
        """Return the number of applications with a waiting inference."""
        return len(self._current)

    def __contains__(self, application_id: ApplicationId) -> bool:
        return application_id in self._current

    def touch(self, application: Application) -> None:
        """Put the application where its key says now, or out if nothing of it waits."""
        application_id = application.application_id
        if not application.waiting:
            self._current.pop(application_id, None)
            return
        key = self._key(application, application.waiting[0])
        known = self._current.get(application_id)
        if known is not None and known[0] == key:
            return
        self._current[application_id] = (key, application)
        heapq.heappush(self._heap, (key, application_id))
        if len(self._heap) > _COMPACT_ABOVE + 4 * len(self._current):
            self._heap = [(key, name) for name, (key, _) in self._current.items()]
            heapq.heapify(self._heap)

    def first(self) -> Application | None:
        """Return the application that comes first, or None if nothing waits."""
        while self._heap:
            key, application_id = self._heap[0]
            known = self._current.get(application_id)
            if known is not None and known[0] == key:
                return known[1]
            heapq.heappop(self._heap)
        return None

    def reorder(self, key: Callable[[Application, Inference], Key]) -> None:
        """Order by another key from now on."""
        applications = [application for _, application in self._current.values()]
        self._key = key
        self._heap.clear()
        self._current.clear()
        for application in applications:
            self.touch(application)
