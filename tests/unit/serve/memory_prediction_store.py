"""A prediction store in memory, shared by the replicas of a test; it can be made to fail."""

from collections.abc import Iterable, Mapping
from typing import Any

from justitia_ray.errors import StoreError
from justitia_ray.predictor.versions import VersionIndex
from justitia_ray.store.prediction_memory import PredictionMemory
from justitia_ray.store.predictions import Learned, StoredPredictions
from justitia_ray.units import Seconds


class MemoryPredictionStore(PredictionMemory):
    """What the product has for one process; `fails` makes every call fail."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False

    async def load(self) -> StoredPredictions:
        self._answer()
        return await super().load()

    async def revision(self) -> int:
        self._answer()
        return await super().revision()

    async def load_samples(self, application_class: str) -> tuple[list[dict[str, Any]], int]:
        self._answer()
        return await super().load_samples(application_class)

    async def load_model(self, application_class: str, version: int) -> bytes:
        self._answer()
        return await super().load_model(application_class, version)

    async def add_observed(self, observations: Iterable[Mapping[str, Any]]) -> None:
        self._answer()
        await super().add_observed(observations)

    async def observed_count(self) -> int:
        self._answer()
        return await super().observed_count()

    async def read_observed(
        self, after: str, count: int
    ) -> list[tuple[str, dict[str, Any] | None]]:
        self._answer()
        return await super().read_observed(after, count)

    async def hold(self, learner: str, for_s: Seconds) -> bool:
        self._answer()
        return await super().hold(learner, for_s)

    async def release(self, learner: str) -> None:
        self._answer()
        await super().release(learner)

    async def save(self, learner: str, learned: Learned, bound: int) -> int | None:
        self._answer()
        return await super().save(learner, learned, bound)

    async def save_index(
        self,
        application_class: str,
        before: VersionIndex,
        after: VersionIndex,
        data: bytes | None = None,
    ) -> int | None:
        self._answer()
        return await super().save_index(application_class, before, after, data)

    def _answer(self) -> None:
        if self.fails:
            raise StoreError("Redis at memory: gone")
