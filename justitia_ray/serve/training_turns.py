"""Has models trained that are due, one after the other, while estimates go on."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from justitia_ray.errors import JustitiaError
from justitia_ray.observability.log_events import log_event
from justitia_ray.observability.predictor_metrics import PredictorMetrics
from justitia_ray.predictor.online import LearningPredictor
from justitia_ray.predictor.retraining import TrainingJob
from justitia_ray.serve.model_versions import ModelVersions
from justitia_ray.serve.training import Trainer
from justitia_ray.units import Seconds

logger = logging.getLogger("ray.serve")


class TrainingTurns:
    """At most one training at a time; what it leaves is published before it serves."""

    def __init__(
        self,
        trainer: Trainer,
        versions: ModelVersions,
        clock: Callable[[], Seconds],
        calendar: Callable[[], Seconds],
        on_ended: Callable[[str], None],
        metrics: PredictorMetrics | None = None,
    ) -> None:
        """Prepare.

        Args:
            trainer: Trains models.
            versions: Where they are published.
            clock: Never goes back.
            calendar: Seconds since 1970, for records.
            on_ended: Told the class whose training has ended, and changed what is known of it.
            metrics: What is told of trainings; None: nothing is.
        """
        self._metrics = metrics
        self._trainer = trainer
        self._versions = versions
        self._clock = clock
        self._calendar = calendar
        self._on_ended = on_ended
        self.running: asyncio.Task[None] | None = None
        """The last one; it may have ended."""

    def begin_due(self, predictor: LearningPredictor) -> None:
        """Begin the training that is due, if any is and none runs."""
        if self.running is None or self.running.done():
            job = predictor.due_training(self._clock())
            if job is not None:
                self.running = asyncio.create_task(self._train(predictor, job))

    def cancel(self) -> None:
        """Let the one that runs come to nothing."""
        if self.running is not None:
            self.running.cancel()

    async def stop(self) -> None:
        """Cancel the one that runs, and wait until it has ended."""
        if self.running is not None:
            self.running.cancel()
            with suppress(asyncio.CancelledError):
                await self.running

    async def _train(self, predictor: LearningPredictor, job: TrainingJob) -> None:
        name = job.application_class
        began = self._clock()
        try:
            data = await self._trainer.train(job)
            ended = await asyncio.to_thread(predictor.judge, job, data, self._calendar())
            await self._versions.publish(name, ended, data)
        except JustitiaError as error:
            if self._metrics is not None:
                self._metrics.trained("failed")
            wait_s = predictor.training_failed(job, self._clock())
            log_event(
                logger,
                logging.WARNING,
                "predictor.training_failed",
                application_class=name,
                reason=str(error),
                again_in_s=wait_s,
            )
            return
        predictor.take_over(name, ended)
        if self._metrics is not None:
            self._metrics.trained("rejected" if ended.model is None else "took_over")
        self._on_ended(name)
        log_event(
            logger,
            logging.INFO,
            "predictor.trained",
            application_class=name,
            version=ended.index.active,
            took_s=round(self._clock() - began, 1),
            **ended.outcome,
        )
