"""Store of a simulation: one model's data in Redis, and a client that can be cut off.

Values are encoded as for Redis, so that unserialisable values are found here too. The rules of
`store.scheduler_store` hold: one atomic step for each call, and epochs that only rise.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from justitia_ray.errors import StoreError
from justitia_ray.store.leader import StaleEpoch
from justitia_ray.store.scheduler_store import StoredState
from justitia_ray.store.schema import decode_object, encode
from justitia_ray.units import Seconds, VirtualTime

T = TypeVar("T")
Tags = dict[str, VirtualTime]


@dataclass(slots=True)
class RedisMemory:
    """Contents of the simulated Redis, and whether it can be reached."""

    epoch: int = 0
    clock: str | None = None
    applications: dict[str, str] = field(default_factory=dict)
    settings: str | None = None
    replicas: dict[str, str] = field(default_factory=dict)
    usage: dict[int, dict[str, str]] = field(default_factory=dict)
    away: bool = False
    slow_s: Seconds = 0.0
    """Largest additional delay of a step, in seconds."""
    emptied_at: Seconds | None = None
    """Time at which all data was last lost; None if never."""
    saved_at: Seconds | None = None
    """Time of the last save; None if never."""
    tags: Tags | None = None
    """Virtual finish times of the applications at the last save; None before it."""

    def empty(self) -> None:
        """Lose all data, like a restarted server without persistence."""
        self.emptied_at = asyncio.get_running_loop().time()
        self.epoch, self.clock, self.settings = 0, None, None
        self.applications, self.replicas, self.usage = {}, {}, {}
        self.tags = None


class StoreClient:
    """Scheduler's client of the simulated Redis, with the methods of `SchedulerStore`."""

    def __init__(
        self,
        redis: RedisMemory,
        rng: random.Random,
        tags: Callable[[], Tags],
        on_saved: Callable[[int, Seconds], None] = lambda epoch, began_at: None,
    ) -> None:
        """Connect a scheduler to the simulated Redis.

        Args:
            redis: What is stored.
            rng: Decides how long each step takes.
            tags: Returns the tags of the scheduler's applications as they are.
            on_saved: Told of the epoch, and of the beginning, of each save that has succeeded.
        """
        self._on_saved = on_saved
        self._redis = redis
        self._rng = rng
        self._tags = tags
        self._has_successor = rng.random() < 0.5
        """Whether a later scheduler is a restart of the same actor."""

    async def become_leader(self, above: int = 0) -> int:
        """Raise the stored epoch, at least above `above`, and return it."""

        def step() -> int:
            now_ms = int(1000 * asyncio.get_running_loop().time())
            self._redis.epoch = max(self._redis.epoch + 1, above + 1, now_ms)
            return self._redis.epoch

        return await self._run_after_travel(step)

    async def load(self) -> StoredState:
        redis = self._redis

        def step() -> StoredState:
            return StoredState(
                _decoded_records("clock", redis.clock),
                {
                    name: _decoded_records(name, raw) or {}
                    for name, raw in redis.applications.items()
                },
                _decoded_records("settings", redis.settings),
                {name: _decoded_records(name, raw) or {} for name, raw in redis.replicas.items()},
                redis.epoch or None,
            )

        return await self._run_after_travel(step)

    async def save(
        self,
        epoch: int,
        clock: Mapping[str, Any] | None,
        changed: Mapping[str, Mapping[str, Any]],
        removed: Iterable[str],
        settings: Mapping[str, Any] | None = None,
        replicas: Mapping[str, Mapping[str, Any]] | None = None,
        usage: Mapping[int, Mapping[str, Mapping[str, Any]]] | None = None,
    ) -> bool:
        """Write the changes, unless a later scheduler has become leader."""
        redis = self._redis
        encoded_clock = None if clock is None else encode("clock", clock)
        encoded_settings = None if settings is None else encode("settings", settings)
        encoded = {name: encode(name, record) for name, record in changed.items()}
        known = None if replicas is None else {n: encode(n, r) for n, r in replicas.items()}
        gone, tags = list(removed), self._tags()
        began_at = asyncio.get_running_loop().time()
        used = {
            day: {name: encode(name, record) for name, record in of_day.items()}
            for day, of_day in (usage or {}).items()
        }

        def step() -> bool:
            if redis.epoch > epoch:
                raise StaleEpoch(epoch, redis.epoch, has_successor=self._has_successor)
            # After the store was emptied, a part of the state would be worse than none.
            if redis.epoch != epoch:
                redis.empty()
                redis.epoch = epoch
                return False
            redis.clock = redis.clock if encoded_clock is None else encoded_clock
            redis.settings = redis.settings if encoded_settings is None else encoded_settings
            redis.replicas = redis.replicas if known is None else known
            redis.applications |= encoded
            for name in gone:
                redis.applications.pop(name, None)
            for day, of_day in used.items():
                redis.usage.setdefault(day, {}).update(of_day)
            redis.tags = tags
            redis.saved_at = asyncio.get_running_loop().time()
            self._on_saved(epoch, began_at)
            return True

        return await self._run_after_travel(step)

    async def load_usage(self, days: Iterable[int]) -> dict[int, dict[str, dict[str, Any]]]:
        wanted = list(days)
        if not wanted:
            return {}

        def step() -> dict[int, dict[str, dict[str, Any]]]:
            return {
                day: {
                    n: _decoded_records(n, raw) or {} for n, raw in self._redis.usage[day].items()
                }
                for day in wanted
                if day in self._redis.usage
            }

        return await self._run_after_travel(step)

    async def aclose(self) -> None:
        pass

    async def _run_after_travel(self, step: Callable[[], T]) -> T:
        await self._travel_time()
        result = step()
        await self._travel_time()
        return result

    async def _travel_time(self) -> None:
        if self._redis.away:
            await asyncio.sleep(self._rng.uniform(0.0, 0.1))
            raise StoreError("the store is away")
        slow_s = self._rng.random() * self._redis.slow_s
        await asyncio.sleep(self._rng.uniform(0.0002, 0.002) + slow_s)
        if self._redis.away:
            raise StoreError("the store went away")


def _decoded_records(name: str, raw: str | None) -> dict[str, Any] | None:
    return decode_object(name, None if raw is None else raw.encode())
