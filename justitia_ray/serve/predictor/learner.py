"""Learning in the service: finished applications arrive through the store, models leave through it.

Every replica of the predictor runs a `Learner`. Every replica adds finished applications to the
store, and reads learned statistics and active models from it. The replica that holds the store's
lock learns: it reads finished applications in the store's order, saves the results, and trains
models. When it exits, another replica continues from the saved results.
"""

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from justitia_ray.errors import AdmissionError, StoreError
from justitia_ray.observability.log_events import log_event
from justitia_ray.observability.part_metrics import PredictorMetrics
from justitia_ray.predictor.class_mean import ClassMeanPredictor
from justitia_ray.predictor.observation import Observation, Sample
from justitia_ray.predictor.online import LearningPredictor, LearningSettings
from justitia_ray.predictor.stages import StageTable
from justitia_ray.serve.predictor.models import ModelVersions
from justitia_ray.serve.predictor.training import Trainer, TrainingTurns
from justitia_ray.store.prediction_store import (
    MOST_WAITING,
    AnyPredictionStore,
    Learned,
    StoredPredictions,
)
from justitia_ray.units import Seconds

logger = logging.getLogger("ray.serve")

_TICK_S: Seconds = 0.5
_HOLD_S: Seconds = 10.0
"""Seconds after which another replica replaces a killed or blocked learner."""
_AT_ONCE = 25
"""Number of applications that are learned in about 10 ms, before the event loop serves estimates
again.
"""
_KEPT = 10_000
"""Maximum number of finished applications kept in memory while the store fails; beyond it the
oldest are lost.
"""


class Learner:
    """Lets one replica of the predictor learn, at most one at a time. Used on one event loop.

    Args:
        settings: Settings of the predictor.
        store: Store shared by the replicas.
        trainer: Trains models.
        metrics: Counts learned applications and trainings.
        store_inputs: Whether the text of inputs is stored with the history.
        models_dir: Directory of trained models to start with; None: no models.
        clock: Monotonic clock (seconds).
        calendar: Returns seconds since 1970, for records.
    """

    def __init__(
        self,
        settings: LearningSettings,
        store: AnyPredictionStore,
        trainer: Trainer,
        metrics: PredictorMetrics,
        *,
        store_inputs: bool = False,
        models_dir: Path | None = None,
        clock: Callable[[], Seconds] = time.monotonic,
        calendar: Callable[[], Seconds] = time.time,
    ) -> None:
        self._metrics = metrics
        self._settings = settings
        self._store = store
        self._store_inputs = store_inputs
        self._models_dir = models_dir
        self._name = uuid.uuid4().hex
        self._versions = ModelVersions(store)
        self._training = TrainingTurns(
            trainer, self._versions, metrics, clock, calendar, self._training_ended
        )
        self.predictor = LearningPredictor(settings)
        """Predictor that makes the estimates, replaced when the store is read again."""
        self.learns = False
        """Whether this replica is the one that learns: it holds the store's lock and has loaded the
        samples.
        """
        self._unsent: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        """Finished applications that the store has not accepted yet."""
        self._revision = -1
        self._applied = ""
        self._ended: set[str] = set()
        """Classes with an ended training whose progress is not saved yet."""
        self._news = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._ends = False
        self._trouble: str | None = None

    async def start(self) -> None:
        """Load what was learned from the store, if it answers, and continue in the background."""
        await self.tick()
        self._loop = asyncio.create_task(self._keep_ticking())

    async def stop(self) -> None:
        """Stop learning, and release the lock so that another replica can learn at once."""
        if self._loop is not None:
            self._ends = True  # A call that the task awaits may swallow the cancellation.
            self._loop.cancel()
            with suppress(asyncio.CancelledError):
                await self._loop
        await self._training.stop()
        with suppress(StoreError):
            await self._store.release(self._name)
        await self._store.aclose()

    # --- requests

    async def observe_many(self, observations: Iterable[Observation]) -> None:
        """Accept finished applications, from which the learning replica will learn soon."""
        self._unsent.extend(self._stored_form(observation) for observation in observations)
        with suppress(StoreError):  # the next `tick` sends again and logs the error
            await self._send_observations()
        self._news.set()

    async def take_history(self, observations: Iterable[Observation]) -> None:
        """Accept past applications that a user sends, for training.

        Raises:
            AdmissionError: If too many observations are waiting, so that some would be lost.
            StoreError: If the history cannot be stored; then none of it is accepted.
        """
        if await self._store.observed_count() > MOST_WAITING // 2:
            raise AdmissionError("the predictor is still learning what it was sent", 2.0)
        await self._store.add_observed([self._stored_form(o) for o in observations])
        self._news.set()

    async def roll_back(
        self, application_class: str, version: int | None, *, release: bool = False
    ) -> dict[str, Any]:
        """Make an earlier version of a class's model active, until the rollback is released.

        Args:
            application_class: Class of the model.
            version: Version to activate; None: the version before the active one; 0: the class's
                mean cost.
            release: Instead, let trainings replace the active version again.

        Returns:
            The class's entry in the predictor's overview.

        Raises:
            RequestError: If the version does not exist, or is damaged.
            StoreError: If the store does not answer.
            AdmissionError: If other replicas keep changing the versions.
        """
        await self._versions.roll_back(application_class, version, release=release)
        async with self._versions.changing:
            stored = await self._store.load()
            await self._versions.follow(stored.models, self.predictor, is_new=False)
        return self.predictor.overview()[application_class]

    def _stored_form(self, observation: Observation) -> dict[str, Any]:
        if not self._store_inputs:
            observation = replace(observation, sample=observation.sample.without_text())
        return observation.to_dict()

    async def _send_observations(self) -> None:
        """Send waiting observations to the store in order; keep them if the store fails."""
        if self._unsent:
            batch = list(self._unsent)
            self._unsent.clear()
            try:
                await self._store.add_observed(batch)
            except StoreError:
                self._unsent.extendleft(reversed(batch))
                raise

    # --- background work

    async def tick(self) -> None:
        """Do all learning that is due; if the store fails, the next call tries again."""
        try:
            await self._send_observations()
            held = await self._store.hold(self._name, _HOLD_S)
            if held and not self.learns:
                await self._begin_to_learn()
            elif not held and self.learns:
                self._stop_learning()
            if self.learns:
                await self._learn_from_store()
            await self._load_changes()
        except StoreError as error:
            # It is unknown which changes the store has saved, so they are read again.
            self._stop_learning()
            if self._trouble is None:
                log_event(logger, logging.WARNING, "predictor.store_fails", reason=str(error))
            self._trouble = str(error)
            return
        if self._trouble is not None:
            log_event(logger, logging.INFO, "predictor.store_works")
            self._trouble = None
        if self.learns:
            self._training.begin_due(self.predictor)

    async def _keep_ticking(self) -> None:
        while not self._ends:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), _TICK_S)
            self._news.clear()
            try:
                await self.tick()
            except Exception:
                # An unexpected error must not end learning for good.
                logger.exception("predictor.tick_failed")
                self._stop_learning()
                await asyncio.sleep(_TICK_S)

    def _stop_learning(self) -> None:
        self.learns = False
        self._revision = -1

    async def _begin_to_learn(self) -> None:
        async with self._versions.changing:
            stored = await self._store.load()
            predictor = await self._restored_predictor(stored, with_histories=True)
            self._training.cancel()
            self.predictor, self._applied = predictor, stored.applied
            self.learns = True
        if self._models_dir is not None:
            await self._versions.publish_directory(self._models_dir, predictor)

    async def _load_changes(self) -> None:
        """Load changes from the store that another replica or a rollback has made."""
        revision = await self._store.revision()
        if revision == self._revision:
            return
        async with self._versions.changing:
            stored = await self._store.load()
            if self.learns:
                await self._versions.follow(stored.models, self.predictor, is_new=False)
            else:
                self.predictor = await self._restored_predictor(stored, with_histories=False)
        self._revision = stored.revision

    async def _restored_predictor(
        self, stored: StoredPredictions, *, with_histories: bool
    ) -> LearningPredictor:
        """Return a predictor with the state in the store; without samples it cannot learn.

        Unreadable values are left out, and logged if histories are read.
        """
        left_out = list(stored.damage)
        predictor = LearningPredictor(self._settings)
        means, stages = {}, {}
        for name, values in stored.classes.items():
            try:
                ClassMeanPredictor().restore({name: values})
                means[name] = values
            except StoreError as error:
                left_out.append(str(error))
        for name, values in stored.learning.items():
            samples: list[Sample] = []
            if with_histories:
                samples, unreadable = await self._load_samples(name)
                if unreadable:
                    left_out.append(
                        f"history of class {name}: {unreadable} samples of another form"
                    )
            try:
                predictor.restore_class(name, values.get("progress"), samples)
            except StoreError as error:
                left_out.append(str(error))
            if of_class := values.get("stages"):
                try:
                    StageTable.from_dict({name: of_class})
                    stages[name] = of_class
                except StoreError as error:
                    left_out.append(str(error))
        predictor.means.restore(means)
        predictor.stages = StageTable.from_dict(stages, self._settings.max_classes)
        if left_out and with_histories:
            log_event(logger, logging.ERROR, "predictor.unreadable", left_out=left_out)
        await self._versions.follow(stored.models, predictor, is_new=True)
        return predictor

    async def _load_samples(self, application_class: str) -> tuple[list[Sample], int]:
        """Return the readable samples of a class, and the number of unreadable samples."""
        stored, unreadable = await self._store.load_samples(application_class)

        def parse_readable() -> list[Sample]:
            found = []
            for values in stored:
                with suppress(ValueError):  # Samples of another version are counted as unreadable.
                    found.append(Sample.from_dict(values.get("sample")))
            return found

        samples = await asyncio.to_thread(parse_readable)
        return samples, unreadable + len(stored) - len(samples)

    async def _learn_from_store(self) -> None:
        """Learn from finished applications in the store, and save the results."""
        while entries := await self._store.read_observed(self._applied, _AT_ONCE):
            samples: dict[str, list[Mapping[str, Any]]] = {}
            unreadable = 0
            for entry_id, values in entries:
                try:
                    observation = Observation.from_dict(values or {})
                    name = self.predictor.observe_application(
                        observation.application_class, observation.sample, observation.stages
                    )
                except ValueError:
                    unreadable += 1
                    continue
                # Redis begins an entry's id with the time at which it was added (ms).
                at = int(entry_id.partition("-")[0]) / 1000
                record = {"at": at, "sample": observation.sample.to_dict()}
                samples.setdefault(name, []).append(record)
            if unreadable:
                log_event(logger, logging.ERROR, "predictor.observations_refused", count=unreadable)
            if not await self._save_results(entries[-1][0], samples):
                return
            self._metrics.record_learning(sum(map(len, samples.values())))
            await self._versions.withdraw(samples, self.predictor)
            await asyncio.sleep(0)
        if self._ended:
            await self._save_results(self._applied, {})

    async def _save_results(
        self, applied: str, samples: Mapping[str, Sequence[Mapping[str, Any]]]
    ) -> bool:
        """Save the results of new samples and of trainings in the store.

        Args:
            applied: Stream id of the last learned application.
            samples: Samples since the last save.

        Returns:
            Whether the results were saved; if not, another replica learns.
        """
        ended, self._ended = self._ended, set()
        stages = self.predictor.stages.to_dict()
        learned = Learned(
            applied=applied,
            classes={name: self.predictor.means.statistics(name) for name in samples},
            learning={
                name: {"progress": self.predictor.progress(name), "stages": stages.get(name)}
                for name in sorted({*samples, *ended})
            },
            samples=samples,
        )
        bound = self._settings.history_per_class
        revision = await self._store.save(self._name, learned, bound)
        if revision is None:
            self._stop_learning()
            return False
        self._applied = applied
        if revision == self._revision + 1:
            self._revision = revision  # no other replica has changed anything since the last load
        return True

    def _training_ended(self, application_class: str) -> None:
        self._ended.add(application_class)
        self._news.set()
