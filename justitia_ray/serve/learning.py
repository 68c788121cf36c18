"""Keeps a predictor learning: what finished comes in by the store, models go out by it.

Every replica of the predictor runs a `Learner`. All of them add what finished to the store, and
read what was learned and which models serve. One of them, which holds the store's lock, learns:
it takes in what finished, in the order of the store, saves what follows from it, and has models
trained. When it goes, another goes on from what it saved.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from justitia_ray.errors import AdmissionError, StoreError
from justitia_ray.observability.log_events import log_event
from justitia_ray.observability.predictor_metrics import PredictorMetrics
from justitia_ray.predictor.observation import Observation
from justitia_ray.predictor.online import LearningPredictor, LearningSettings
from justitia_ray.predictor.overview import overview
from justitia_ray.predictor.sample_record import sample_to_dict
from justitia_ray.serve.model_versions import ModelVersions
from justitia_ray.serve.restoring import restore_predictor
from justitia_ray.serve.training import Trainer
from justitia_ray.serve.training_turns import TrainingTurns
from justitia_ray.serve.unsent_observations import UnsentObservations
from justitia_ray.store.predictions import (
    MOST_WAITING,
    Learned,
    Predictions,
    StoredPredictions,
)
from justitia_ray.units import Seconds

logger = logging.getLogger("ray.serve")

_TICK_S: Seconds = 0.5
_HOLD_S: Seconds = 10.0
"""A learner that was killed is replaced after so long; one that stands still longer, too."""
_AT_ONCE = 25
"""Finished applications learned before estimates have their turn: about 10 ms."""


class Learner:
    """One replica's part in learning; use it from one event loop."""

    def __init__(
        self,
        settings: LearningSettings,
        store: Predictions,
        trainer: Trainer,
        *,
        store_inputs: bool = False,
        models_dir: Path | None = None,
        clock: Callable[[], Seconds] = time.monotonic,
        calendar: Callable[[], Seconds] = time.time,
        metrics: PredictorMetrics | None = None,
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            settings: Of the predictor.
            store: Redis, or a fake of it in tests.
            trainer: Trains models.
            store_inputs: Whether texts of inputs are kept with the history.
            models_dir: Trained models to begin with.
            clock: Never goes back.
            calendar: Seconds since 1970, for records.
            metrics: What is told of what is learned; None: nothing is.
        """
        self._metrics = metrics
        self._settings = settings
        self._store = store
        self._models_dir = models_dir
        self._name = uuid.uuid4().hex
        self._versions = ModelVersions(store)
        self._unsent = UnsentObservations(store, store_inputs=store_inputs)
        self._training = TrainingTurns(
            trainer, self._versions, clock, calendar, self._training_ended, metrics
        )
        self.predictor = LearningPredictor(settings)
        """What estimates; another object after the store was read again."""
        self.learns = False
        """Whether this replica holds the lock, and knows the histories."""
        self._revision = -1
        self._applied = ""
        self._ended: set[str] = set()
        """Classes whose training has ended since their progress was saved."""
        self._news = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._trouble: str | None = None

    async def start(self) -> None:
        """Read what was learned, if the store answers, and go on from there in the background."""
        await self.tick()
        self._loop = asyncio.create_task(self._keep_ticking())

    async def stop(self) -> None:
        """Learn no more, and let another replica do so at once."""
        if self._loop is not None:
            self._loop.cancel()
            with suppress(asyncio.CancelledError):
                await self._loop
        await self._training.stop()
        with suppress(StoreError):
            await self._store.release(self._name)
        await self._store.aclose()

    # --- what callers ask for

    async def observe_many(self, observations: Iterable[Observation]) -> None:
        """Take in applications that finished; they are learned soon, by whoever learns."""
        self._unsent.add(observations)
        with suppress(StoreError):  # the next tick tries again, and says so
            await self._unsent.send()
        self._news.set()

    async def take_history(self, observations: Iterable[Observation]) -> None:
        """Take in a part of a user's own history.

        Raises:
            AdmissionError: If so much waits to be learned that some of it would be lost.
            StoreError: If it cannot be stored; nothing of it was taken.
        """
        if await self._store.observed_count() > MOST_WAITING // 2:
            raise AdmissionError("the predictor is still learning what it was sent", 2.0)
        await self._unsent.send_at_once(observations)
        self._news.set()

    async def roll_back(
        self, application_class: str, version: int | None, *, release: bool = False
    ) -> dict[str, Any]:
        """Let an earlier version of a class's model serve, until it is released.

        Args:
            application_class: The class.
            version: Which one; None is the one before the active one, 0 the class mean.
            release: Instead, let trainings replace the active version again.

        Returns:
            What `overview` says of the class.

        Raises:
            RequestError: If there is no such version, or it is damaged.
            StoreError: If the store does not answer.
            AdmissionError: If others change the versions all the time.
        """
        await self._versions.roll_back(application_class, version, release=release)
        await self._versions.follow((await self._store.load()).models, self.predictor)
        return self.overview()[application_class]

    def overview(self) -> dict[str, dict[str, Any]]:
        """Return what is known of each class: statistics, versions, what serves."""
        return overview(self.predictor)

    # --- in the background

    async def tick(self) -> None:
        """Do what is to be done now; a store that fails is tried again with the next tick."""
        try:
            await self._unsent.send()
            held = await self._store.hold(self._name, _HOLD_S)
            if held and not self.learns:
                await self._begin_to_learn()
            elif not held and self.learns:
                self._forget_place()
            if self.learns:
                await self._learn()
            await self._follow()
        except StoreError as error:
            # What was saved last is not known for certain: read it again.
            self._forget_place()
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
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), _TICK_S)
            self._news.clear()
            try:
                await self.tick()
            except Exception:
                # A mistake of ours must not end learning for good; estimates go on in any case.
                logger.exception("predictor.tick_failed")
                self._forget_place()
                await asyncio.sleep(_TICK_S)

    def _forget_place(self) -> None:
        self.learns = False
        self._revision = -1

    async def _begin_to_learn(self) -> None:
        stored = await self._store.load()
        predictor = await self._restored(stored, with_histories=True)
        self._training.cancel()
        self.predictor, self._applied = predictor, stored.applied
        self.learns = True
        if self._models_dir is not None:
            await self._versions.bring(self._models_dir, predictor)

    async def _follow(self) -> None:
        """Take over what another replica learned, or was told."""
        revision = await self._store.revision()
        if revision == self._revision:
            return
        stored = await self._store.load()
        if self.learns:
            await self._versions.follow(stored.models, self.predictor)
        else:
            self.predictor = await self._restored(stored, with_histories=False)
        self._revision = stored.revision

    async def _restored(
        self, stored: StoredPredictions, *, with_histories: bool
    ) -> LearningPredictor:
        predictor, left_out = await restore_predictor(
            self._settings, stored, self._store if with_histories else None
        )
        if left_out and with_histories:
            log_event(logger, logging.ERROR, "predictor.unreadable", left_out=left_out)
        await self._versions.serve_all(stored.models, predictor)
        return predictor

    async def _learn(self) -> None:
        """Take in what finished, and save what follows from it."""
        while entries := await self._store.read_observed(self._applied, _AT_ONCE):
            samples: dict[str, list[Mapping[str, Any]]] = {}
            unreadable = 0
            for entry_id, values in entries:
                try:
                    observation = Observation.from_dict(values or {})
                    name = self.predictor.observe(
                        observation.application_class, observation.sample, observation.stages
                    )
                except ValueError:
                    unreadable += 1
                    continue
                record = {"at": _time_of(entry_id), "sample": sample_to_dict(observation.sample)}
                samples.setdefault(name, []).append(record)
            if unreadable:
                log_event(logger, logging.ERROR, "predictor.observations_refused", count=unreadable)
            if not await self._save(entries[-1][0], samples):
                return
            if self._metrics is not None:
                self._metrics.learned(sum(map(len, samples.values())))
            await self._versions.withdraw(samples, self.predictor)
            await asyncio.sleep(0)
        if self._ended:
            await self._save(self._applied, {})

    async def _save(self, applied: str, samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> bool:
        """Save what follows from new samples, by class, and from trainings.

        Args:
            applied: Id of the last finished application that was taken in.
            samples: The new ones.

        Returns:
            Whether it was saved; if not, another replica learns.
        """
        ended, self._ended = self._ended, set()
        stages = self.predictor.stages.to_dict()
        learned = Learned(
            applied=applied,
            classes={name: self.predictor.statistics(name) for name in samples},
            learning={
                name: {"progress": self.predictor.progress(name), "stages": stages.get(name)}
                for name in sorted({*samples, *ended})
            },
            samples=samples,
        )
        bound = self._settings.history_per_class
        revision = await self._store.save(self._name, learned, bound)
        if revision is None:
            self._forget_place()
            return False
        self._applied = applied
        if revision == self._revision + 1:
            self._revision = revision  # nobody else has changed anything: nothing to follow
        return True

    def _training_ended(self, application_class: str) -> None:
        self._ended.add(application_class)
        self._news.set()


def _time_of(entry_id: str) -> Seconds:
    """Return when a stream's entry was added, seconds since 1970: its id says so."""
    return int(entry_id.partition("-")[0]) / 1000
