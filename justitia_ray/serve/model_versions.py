"""The versions of models in the store, followed by one replica of the predictor, and changed."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from justitia_ray.errors import AdmissionError, ConfigError, RequestError, StoreError
from justitia_ray.observability.log_events import log_event
from justitia_ray.predictor.model_directory import ModelDirectory
from justitia_ray.predictor.online import EndedTraining, LearningPredictor
from justitia_ray.predictor.versions import Version, VersionIndex
from justitia_ray.serve.stored_models import StoredModels
from justitia_ray.store.predictions import Predictions

logger = logging.getLogger("ray.serve")

_ATTEMPTS = 5


class ModelVersions:
    """What the store says of models; a change is made only to what was read."""

    def __init__(self, store: Predictions) -> None:
        self._store = store
        self._models = StoredModels(store)
        self._indexes: dict[str, VersionIndex] = {}
        """As they were last read or written, by class."""

    async def serve_all(
        self, stored: Mapping[str, VersionIndex], predictor: LearningPredictor
    ) -> None:
        """Let a new predictor serve what the store says."""
        self._indexes = {}
        await self.follow(stored, predictor)

    async def follow(
        self, stored: Mapping[str, VersionIndex], predictor: LearningPredictor
    ) -> None:
        """Let a predictor serve what the store says by now."""
        before, self._indexes = self._indexes, dict(stored)
        for name, index in stored.items():
            if before.get(name) != index:
                predictor.serve(name, index, *await self._models.serving(name, index))

    async def bring(self, path: Path, predictor: LearningPredictor) -> None:
        """Publish the models of a directory, those that were not brought before."""
        directory = ModelDirectory(path)
        try:
            for name in await asyncio.to_thread(directory.classes):
                await self._bring(directory, name, predictor)
        except ConfigError as error:
            log_event(logger, logging.ERROR, "predictor.models_not_brought", reason=str(error))

    async def publish(self, application_class: str, ended: EndedTraining, data: bytes) -> None:
        """Store what a training left.

        Raises:
            StoreError: If the versions were changed since it was judged; nothing was stored.
        """
        new = None if ended.model is None else data
        if await self._store.save_index(application_class, ended.before, ended.index, new) is None:
            raise StoreError("the versions were changed meanwhile")
        self._indexes[application_class] = ended.index
        if ended.model is not None:
            self._models.note(application_class, ended.index, ended.model)

    async def withdraw(self, names: Iterable[str], predictor: LearningPredictor) -> None:
        """Tell the other replicas of models that a change has made useless.

        Raises:
            StoreError: If the versions were changed meanwhile.
        """
        for name in names:
            before, after = self._indexes.get(name, VersionIndex()), predictor.index(name)
            if after == before:
                continue
            if await self._store.save_index(name, before, after) is None:
                raise StoreError(f"versions of class {name}: changed by another replica")
            self._indexes[name] = after
            log_event(
                logger,
                logging.WARNING,
                "predictor.model_withdrawn",
                application_class=name,
                version=before.active,
            )

    async def roll_back(
        self, application_class: str, version: int | None, *, release: bool
    ) -> None:
        """Change in the store which version serves; see `Learner.roll_back`."""
        for _ in range(_ATTEMPTS):
            before = (await self._store.load()).models.get(application_class)
            if before is None:
                raise RequestError(
                    f"class {application_class[:80]!r} has no model", param="application_class"
                )
            if release:
                after = before.released()
            elif version is None:
                after = before.rolled_back()
            else:
                after = before.activated(version, pinned=True)
            chosen = after.find(after.active)
            if chosen is not None and not await self._models.is_good(application_class, chosen):
                raise RequestError(
                    f"version {chosen.number} of class {application_class} is damaged",
                    param="version",
                )
            if await self._store.save_index(application_class, before, after) is not None:
                log_event(
                    logger,
                    logging.INFO,
                    "predictor.released" if release else "predictor.rolled_back",
                    application_class=application_class,
                    version=after.active,
                )
                return
        raise AdmissionError("the versions are being changed by others")

    async def _bring(
        self, directory: ModelDirectory, name: str, predictor: LearningPredictor
    ) -> None:
        before = self._indexes.get(name, VersionIndex())
        found = await asyncio.to_thread(_first_good, directory, name)
        if found is None or before.imported == found[0].sha256:
            return
        version, data = found
        after = before.brought(data, version.record | {"reason": "models_dir"})
        if await self._store.save_index(name, before, after, data) is not None:
            self._indexes[name] = after
            predictor.serve(name, after, *await self._models.serving(name, after))


def _first_good(directory: ModelDirectory, name: str) -> tuple[Version, bytes] | None:
    """Return the best version of a class that is whole; the others are logged."""
    for version, data in directory.candidates(name):
        if isinstance(data, bytes):
            return version, data
        log_event(logger, logging.ERROR, "predictor.model_refused", reason=str(data))
    return None
