"""Reading models from the store: checked, each once; the last good one if one is damaged."""

import asyncio
import logging
from typing import Protocol

from justitia_ray.errors import StoreError
from justitia_ray.observability.log_events import log_event
from justitia_ray.predictor.cost_model import CostModel
from justitia_ray.predictor.model_file import model_from_bytes
from justitia_ray.predictor.versions import NO_MODEL, Version, VersionIndex

logger = logging.getLogger("ray.serve")


class ModelStore(Protocol):
    """Where the bytes of models are."""

    async def load_model(self, application_class: str, version: int) -> bytes:
        """Return the bytes of a version; StoreError if they cannot be read."""


class StoredModels:
    """The models that serve, read from a store; what was read once is not read again."""

    def __init__(self, store: ModelStore) -> None:
        self._store = store
        self._read: dict[str, tuple[str, CostModel]] = {}
        """By class: SHA-256 and model."""
        self._complaints: set[tuple[str, str]] = set()

    async def serving(
        self, application_class: str, index: VersionIndex
    ) -> tuple[CostModel | None, int]:
        """Return the active model and its version, or the last good one before it.

        What is damaged is logged once. None and 0 if none is good, or none is to serve.
        """
        for version in index.candidates():
            model = await self._model(application_class, version)
            if model is not None:
                return model, version.number
        self._read.pop(application_class, None)
        return None, NO_MODEL

    def note(self, application_class: str, index: VersionIndex, model: CostModel) -> None:
        """Take note of a model that was just published."""
        version = index.find(index.active)
        if version is not None:
            self._read[application_class] = (version.sha256, model)

    async def is_good(self, application_class: str, version: Version) -> bool:
        """Return whether a version can be read; if not, that is logged once."""
        return await self._model(application_class, version) is not None

    async def _model(self, application_class: str, version: Version) -> CostModel | None:
        digest, known = self._read.get(application_class, (None, None))
        if known is not None and digest == version.sha256:
            return known
        where = f"version {version.number} of class {application_class}"
        try:
            data = await self._store.load_model(application_class, version.number)
            if not version.holds(data):
                raise StoreError(f"{where} is damaged: its checksum is another")
            model = await asyncio.to_thread(model_from_bytes, data, where)
        except StoreError as error:
            key = (application_class, version.sha256)
            if key not in self._complaints:
                self._complaints.add(key)
                log_event(
                    logger,
                    logging.ERROR,
                    "predictor.model_refused",
                    application_class=application_class,
                    version=version.number,
                    reason=str(error),
                )
            return None
        self._read[application_class] = (version.sha256, model)
        return model
