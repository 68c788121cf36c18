"""A prediction store in memory, shared by the replicas of a test; it can be made to fail."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from justitia_ray.errors import StoreError
from justitia_ray.predictor.versions import VersionIndex
from justitia_ray.store.prediction_store import Learned, StoredPredictions
from justitia_ray.units import Seconds


class MemoryPredictionStore:
    """Does what `PredictionStore` does, through JSON, without expiry."""

    def __init__(self) -> None:
        self.fails = False
        self.holder: str | None = None
        self.classes: dict[str, str] = {}
        self.learning: dict[str, str] = {}
        self.models: dict[str, VersionIndex] = {}
        self.data: dict[tuple[str, int], bytes] = {}
        self.samples: dict[str, list[str]] = {}
        self.observed: list[tuple[str, str]] = []
        self.applied = "0-0"
        self.changes = 0
        self._added = 0

    async def load(self) -> StoredPredictions:
        self._answer()
        return StoredPredictions(
            self.changes,
            self.applied,
            {name: json.loads(value) for name, value in self.classes.items()},
            {name: json.loads(value) for name, value in self.learning.items()},
            dict(self.models),
            [],
        )

    async def revision(self) -> int:
        self._answer()
        return self.changes

    async def load_samples(self, application_class: str) -> tuple[list[dict[str, Any]], int]:
        self._answer()
        return [json.loads(value) for value in self.samples.get(application_class, [])], 0

    async def load_model(self, application_class: str, version: int) -> bytes:
        self._answer()
        if (application_class, version) not in self.data:
            raise StoreError(f"model:{application_class}:{version}: is missing")
        return self.data[application_class, version]

    async def add_observed(self, observations: Iterable[Mapping[str, Any]]) -> None:
        self._answer()
        for observation in observations:
            self._added += 1
            self.observed.append((f"{self._added:04}-0", json.dumps(observation)))

    async def observed_count(self) -> int:
        self._answer()
        return len(self.observed)

    async def read_observed(
        self, after: str, count: int
    ) -> list[tuple[str, dict[str, Any] | None]]:
        self._answer()
        later = [(name, json.loads(value)) for name, value in self.observed if name > after]
        return later[:count]

    async def hold(self, learner: str, for_s: Seconds) -> bool:
        self._answer()
        self.holder = self.holder or learner
        return self.holder == learner

    async def release(self, learner: str) -> None:
        self._answer()
        if self.holder == learner:
            self.holder = None

    async def save(self, learner: str, learned: Learned, bound: int) -> int | None:
        self._answer()
        if self.holder != learner:
            return None
        self.classes |= {name: json.dumps(value) for name, value in learned.classes.items()}
        self.learning |= {name: json.dumps(value) for name, value in learned.learning.items()}
        for name, new in learned.samples.items():
            kept = self.samples.setdefault(name, [])
            kept += [json.dumps(value) for value in new]
            del kept[:-bound]
        self.applied = learned.applied
        self.observed = [entry for entry in self.observed if entry[0] > learned.applied]
        self.changes += 1
        return self.changes

    async def save_index(
        self,
        application_class: str,
        before: VersionIndex,
        after: VersionIndex,
        data: bytes | None = None,
    ) -> int | None:
        self._answer()
        if self.models.get(application_class, VersionIndex()) != before:
            return None
        self.models[application_class] = after
        if data is not None:
            self.data[application_class, after.active] = data
        self.changes += 1
        return self.changes

    async def ping(self) -> bool:
        return not self.fails

    async def aclose(self) -> None:
        pass

    def _answer(self) -> None:
        if self.fails:
            raise StoreError("Redis at memory: gone")
