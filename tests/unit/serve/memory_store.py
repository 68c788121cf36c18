"""A store without Redis, for tests of the scheduler's service."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from justitia_ray.errors import StoreError
from justitia_ray.store.scheduler_store import StaleEpoch, StoredState

Records = dict[str, dict[str, Any]]


class MemoryStore:
    """What `SchedulerStore` is to its caller; `away` makes every call fail."""

    def __init__(self) -> None:
        self.epoch = 0
        self.clock: dict[str, Any] | None = None
        self.applications: Records = {}
        self.settings: dict[str, Any] | None = None
        self.replicas: Records = {}
        self.away = False
        self.saves = 0

    async def take_office(self, above: int = 0) -> int:
        """Raise the epoch, as Redis does while its clock is behind it."""
        self._answer()
        self.epoch = max(self.epoch, above) + 1
        return self.epoch

    async def load(self) -> StoredState:
        """Return what was saved."""
        self._answer()
        return deepcopy(StoredState(self.clock, self.applications, self.settings, self.replicas))

    async def save(
        self,
        epoch: int,
        clock: Mapping[str, Any] | None,
        changed: Mapping[str, Mapping[str, Any]],
        removed: Iterable[str],
        settings: Mapping[str, Any] | None = None,
        replicas: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> bool:
        """Keep what changed."""
        self._answer()
        if self.epoch > epoch:
            raise StaleEpoch(epoch, self.epoch)
        if self.epoch < epoch:  # it was emptied: as in Redis, a part of the state is not kept
            self.epoch, self.clock, self.applications, self.replicas = epoch, None, {}, {}
            return False
        self.saves += 1
        self.clock = dict(clock) if clock is not None else self.clock
        self.applications |= {name: dict(record) for name, record in changed.items()}
        for name in removed:
            self.applications.pop(name, None)
        self.settings = dict(settings) if settings is not None else self.settings
        if replicas is not None:
            self.replicas = {name: dict(record) for name, record in replicas.items()}
        return True

    async def aclose(self) -> None:
        """Keep everything for the next one."""

    def _answer(self) -> None:
        if self.away:
            raise StoreError("Redis at memory: away")
