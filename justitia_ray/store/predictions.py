"""What a predictor asks of its store, and what they tell each other."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from justitia_ray.predictor.versions import VersionIndex
from justitia_ray.store.schema import JsonObject
from justitia_ray.units import Seconds

MOST_WAITING = 20_000
"""Finished applications that wait to be learned; the oldest go first. Some tens of megabytes."""


@dataclass(frozen=True, slots=True)
class StoredPredictions:
    """What was learned, all of one instant; each by class."""

    revision: int
    applied: str
    """Id of the last finished application in it."""
    classes: dict[str, JsonObject]
    learning: dict[str, JsonObject]
    models: dict[str, VersionIndex]
    damage: list[str]
    """A sentence for each value that has another form and was left out."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What changed by learning from some finished applications; each by class."""

    applied: str
    """Id of the last of them."""
    classes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    learning: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    samples: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """New ones only."""


class Predictions(Protocol):
    """`prediction_store.PredictionStore`, or `prediction_memory.PredictionMemory`."""

    async def load(self) -> StoredPredictions:
        """Return what was learned."""
        ...

    async def revision(self) -> int:
        """Return a number that is another after every change of what `load` returns."""
        ...

    async def load_samples(self, application_class: str) -> tuple[list[JsonObject], int]:
        """Return the history of a class, oldest first, and how many entries cannot be read."""
        ...

    async def load_model(self, application_class: str, version: int) -> bytes:
        """Return the bytes of a model."""
        ...

    async def add_observed(self, observations: Iterable[Mapping[str, Any]]) -> None:
        """Add finished applications to what is to be learned, all or none."""
        ...

    async def observed_count(self) -> int:
        """Return how many finished applications wait to be learned."""
        ...

    async def read_observed(self, after: str, count: int) -> list[tuple[str, JsonObject | None]]:
        """Return the next finished applications with their ids, oldest first."""
        ...

    async def hold(self, learner: str, for_s: Seconds) -> bool:
        """Become, or stay, the one that learns; return whether `learner` is it now."""
        ...

    async def release(self, learner: str) -> None:
        """Let another one learn, if this one does."""
        ...

    async def save(self, learner: str, learned: Learned, bound: int) -> int | None:
        """Write what was learned, if `learner` still is the one that learns."""
        ...

    async def save_index(
        self,
        application_class: str,
        before: VersionIndex,
        after: VersionIndex,
        data: bytes | None = None,
    ) -> int | None:
        """Write the index of a class's models in place of the one that was read."""
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...
