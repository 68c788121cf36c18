"""Versions of models in the store; each predictor replica follows and may change them."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from justitia_ray.errors import AdmissionError, ConfigError, RequestError, StoreError
from justitia_ray.observability.log_events import log_event
from justitia_ray.predictor.model_directory import ModelDirectory
from justitia_ray.predictor.model_file import model_from_bytes
from justitia_ray.predictor.online import EndedTraining, LearningPredictor
from justitia_ray.predictor.trained_model import TrainedModel
from justitia_ray.predictor.versions import NO_MODEL, Version, VersionIndex
from justitia_ray.store.prediction_store import AnyPredictionStore

logger = logging.getLogger("ray.serve")

_ATTEMPTS = 5


class ModelVersions:
    """Trained models in the store; an index is replaced only if unchanged since it was read."""

    def __init__(self, store: AnyPredictionStore) -> None:
        self.changing = asyncio.Lock()
        """Lock held while a change of models is published or read, because following an older read
        would undo the change.
        """
        self._store = store
        self._indexes: dict[str, VersionIndex] = {}
        """Indexes of model versions as last read from or written to the store, by application
        class.
        """
        self._models: dict[str, tuple[str, TrainedModel]] = {}
        """Model that was read last and its SHA-256, by class."""
        self._refused: set[tuple[str, str]] = set()
        """Damaged models that were logged, as (class, SHA-256)."""

    async def follow(
        self, stored: Mapping[str, VersionIndex], predictor: LearningPredictor, *, is_new: bool
    ) -> None:
        """Load active models with a changed index into a predictor; into a new one, load all.

        The caller holds the lock `changing`, and has loaded `stored` while holding it.

        Raises:
            StoreError: If the store does not answer; the remaining changes stay due.
        """
        self._indexes = {name: i for name, i in self._indexes.items() if name in stored}
        for name, index in stored.items():
            if is_new or self._indexes.get(name) != index:
                await self._activate_model(name, index, predictor)
                self._indexes[name] = index

    async def publish_directory(self, path: Path, predictor: LearningPredictor) -> None:
        """Publish the models of a directory that were not imported before."""
        directory = ModelDirectory(path)
        try:
            for name in await asyncio.to_thread(directory.classes):
                async with self.changing:
                    await self._import_from_directory(directory, name, predictor)
        except ConfigError as error:
            log_event(logger, logging.ERROR, "predictor.models_not_brought", reason=str(error))

    async def publish(self, application_class: str, ended: EndedTraining, data: bytes) -> None:
        """Store a class's index of versions after a training, with the model if it becomes active.

        Raises:
            StoreError: If the versions were changed since the evaluation; nothing was stored.
        """
        new = None if ended.model is None else data
        async with self.changing:
            revision = await self._store.save_index(
                application_class, ended.before, ended.index, new
            )
            if revision is None:
                raise StoreError("the versions were changed meanwhile")
            self._indexes[application_class] = ended.index
            if ended.model is not None:
                self._models[application_class] = (ended.index.versions[-1].sha256, ended.model)

    async def withdraw(self, names: Iterable[str], predictor: LearningPredictor) -> None:
        """Deactivate stored models of classes whose costs have changed too much.

        Raises:
            StoreError: If the versions were changed meanwhile.
        """
        for name in names:
            async with self.changing:
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
        """Change the active version in the store; see `Learner.roll_back`."""
        for _ in range(_ATTEMPTS):
            before = (await self._store.load()).models.get(application_class)
            if before is None:
                raise RequestError(
                    f"class {application_class[:80]!r} has no model", param="application_class"
                )
            after = before.after_rollback(version, release=release)
            chosen = after.find(after.active)
            if chosen is not None and await self._valid_model(application_class, chosen) is None:
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

    async def _import_from_directory(
        self, directory: ModelDirectory, name: str, predictor: LearningPredictor
    ) -> None:
        before = self._indexes.get(name, VersionIndex())
        found = await asyncio.to_thread(_best_readable, directory, name)
        if found is None or before.imported == found[0].sha256:
            return
        version, data = found
        after = before.with_imported(data, version.record | {"reason": "models_dir"})
        if await self._store.save_index(name, before, after, data) is not None:
            self._indexes[name] = after
            await self._activate_model(name, after, predictor)

    async def _activate_model(
        self, name: str, index: VersionIndex, predictor: LearningPredictor
    ) -> None:
        """Activate the index's active model, else the last valid earlier model, else none."""
        for version in index.candidates():
            model = await self._valid_model(name, version)
            if model is not None:
                predictor.serve(name, index, model, version.number)
                return
        self._models.pop(name, None)
        predictor.serve(name, index, None, NO_MODEL)

    async def _valid_model(self, application_class: str, version: Version) -> TrainedModel | None:
        """Return the model of a version; None, logged once, if the model is damaged.

        Raises:
            StoreError: If the store does not answer.
        """
        digest, known = self._models.get(application_class, (None, None))
        if known is not None and digest == version.sha256:
            return known
        where = f"version {version.number} of class {application_class}"
        data = await self._store.load_model(application_class, version.number)
        try:
            if data is None:
                raise StoreError(f"{where} is missing")
            if not version.holds(data):
                raise StoreError(f"{where} is damaged: its checksum is another")
            model = await asyncio.to_thread(model_from_bytes, data, where)
        except StoreError as error:
            key = (application_class, version.sha256)
            if key not in self._refused:
                self._refused.add(key)
                log_event(
                    logger,
                    logging.ERROR,
                    "predictor.model_refused",
                    application_class=application_class,
                    version=version.number,
                    reason=str(error),
                )
            return None
        self._models[application_class] = (version.sha256, model)
        return model


def _best_readable(directory: ModelDirectory, name: str) -> tuple[Version, bytes] | None:
    """Return the best version of a class that this release can read; log unreadable versions."""
    for version, data in directory.candidates(name):
        try:
            if isinstance(data, StoreError):
                raise data
            model_from_bytes(data, f"{directory.path}: version {version.number} of class {name}")
        except StoreError as error:
            log_event(logger, logging.ERROR, "predictor.model_refused", reason=str(error))
            continue
        return version, data
    return None
