"""What a predictor knows where nothing is stored: it lasts as long as its process.

For `durability: none`. Each replica of the predictor learns for itself, from what it is told.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from justitia_ray.errors import StoreError
from justitia_ray.predictor.versions import VersionIndex
from justitia_ray.store.predictions import MOST_WAITING, Learned, StoredPredictions
from justitia_ray.store.schema import JsonObject
from justitia_ray.units import Seconds


class PredictionMemory:
    """Does what `PredictionStore` does, in this process; values are kept as JSON, as Redis does."""

    def __init__(self, wall: Callable[[], Seconds] = time.time) -> None:
        self._wall = wall
        self.holder: str | None = None
        self.classes: dict[str, str] = {}
        self.learning: dict[str, str] = {}
        self.models: dict[str, VersionIndex] = {}
        self.data: dict[tuple[str, int], bytes] = {}
        self.samples: dict[str, list[str]] = {}
        self.observed: list[tuple[str, str]] = []
        self.applied = ""
        self.changes = 0
        self._last = (0, 0)
        """Milliseconds, and how many since."""

    async def load(self) -> StoredPredictions:
        """Return what was learned."""
        return StoredPredictions(
            self.changes,
            self.applied,
            {name: json.loads(value) for name, value in self.classes.items()},
            {name: json.loads(value) for name, value in self.learning.items()},
            dict(self.models),
            [],
        )

    async def revision(self) -> int:
        """Return a number that is another after every change of what `load` returns."""
        return self.changes

    async def load_samples(self, application_class: str) -> tuple[list[JsonObject], int]:
        """Return the history of a class, oldest first."""
        return [json.loads(value) for value in self.samples.get(application_class, [])], 0

    async def load_model(self, application_class: str, version: int) -> bytes:
        """Return the bytes of a model.

        Raises:
            StoreError: If there is none.
        """
        if (application_class, version) not in self.data:
            raise StoreError(f"model:{application_class}:{version}: is missing")
        return self.data[application_class, version]

    async def add_observed(self, observations: Iterable[Mapping[str, Any]]) -> None:
        """Add finished applications to what is to be learned; the oldest of too many go."""
        for observation in observations:
            self.observed.append((self._next_id(), json.dumps(observation)))
        del self.observed[:-MOST_WAITING]

    async def observed_count(self) -> int:
        """Return how many finished applications wait to be learned."""
        return len(self.observed)

    async def read_observed(self, after: str, count: int) -> list[tuple[str, JsonObject | None]]:
        """Return the next finished applications with their ids, oldest first."""
        later = ((name, value) for name, value in self.observed if name > after)
        return [(name, json.loads(value)) for name, value in later][:count]

    async def hold(self, learner: str, for_s: Seconds) -> bool:
        """Become, or stay, the one that learns."""
        self.holder = self.holder or learner
        return self.holder == learner

    async def release(self, learner: str) -> None:
        """Let another one learn, if this one does."""
        if self.holder == learner:
            self.holder = None

    async def save(self, learner: str, learned: Learned, bound: int) -> int | None:
        """Keep what was learned, and `bound` samples of each class."""
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
        """Keep the index of a class's models in place of the one that was read, and the model."""
        if self.models.get(application_class, VersionIndex()) != before:
            return None
        self.models[application_class] = after
        if data is not None:
            self.data[application_class, after.active] = data
        for version in before.versions:
            if after.find(version.number) is None:
                self.data.pop((application_class, version.number), None)
        self.changes += 1
        return self.changes

    async def aclose(self) -> None:
        """There is nothing to close."""

    def _next_id(self) -> str:
        """Return an id as Redis makes them, but such that they sort as text."""
        now_ms = int(1000 * self._wall())
        at_ms, count = self._last
        self._last = (now_ms, 0) if now_ms > at_ms else (at_ms, count + 1)
        return f"{self._last[0]:013}-{self._last[1]:09}"
