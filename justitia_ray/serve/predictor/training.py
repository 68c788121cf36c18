"""Train models one after the other, each in its own process."""

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from justitia_ray.errors import JustitiaError
from justitia_ray.observability.log_events import log_event
from justitia_ray.observability.part_metrics import PredictorMetrics
from justitia_ray.predictor.online import LearningPredictor
from justitia_ray.predictor.training import COMMAND, TrainingJob, job_to_bytes
from justitia_ray.serve.predictor.models import ModelVersions
from justitia_ray.store.embedded import dying_with_parent
from justitia_ray.units import Seconds

logger = logging.getLogger("ray.serve")

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_LAST_CHARS = 300


class TrainingFailed(JustitiaError):
    """A training process crashed, hung or returned no model; the message gives the cause."""


class Trainer:
    """Trains models in separate processes, which end with their job or with this process.

    Args:
        timeout_s: Time after which a training process is killed.
        command: Program of the process: reads a job from stdin, writes a model to stdout.
    """

    def __init__(self, timeout_s: Seconds, command: Sequence[str] = COMMAND) -> None:
        self._timeout_s = timeout_s
        self._command = (*dying_with_parent(), *command)

    async def train(self, job: TrainingJob) -> bytes:
        """Train a model in a process and return its bytes; the event loop keeps running.

        Raises:
            TrainingFailed: If the process returned no model.
        """
        told = await asyncio.to_thread(job_to_bytes, job)
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=os.environ | _ONE_THREAD,
            )
        except OSError as error:
            raise TrainingFailed(f"the process does not start: {error}") from error
        try:
            answer, complaint = await asyncio.wait_for(process.communicate(told), self._timeout_s)
        except TimeoutError:
            raise TrainingFailed(f"no model after {self._timeout_s:g} s") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode != 0 or not answer:
            last = complaint.decode(errors="replace").strip()[-_LAST_CHARS:]
            raise TrainingFailed(f"the process ended with {process.returncode}: {last}")
        return answer


class TrainingTurns:
    """Runs at most one training at a time; a trained model is published before it is used.

    Args:
        trainer: Trains models.
        versions: Publishes the models.
        metrics: Counts trainings.
        clock: Monotonic clock (seconds).
        calendar: Returns seconds since 1970, for records.
        on_ended: Called with the class after a training has changed its progress.
    """

    def __init__(
        self,
        trainer: Trainer,
        versions: ModelVersions,
        metrics: PredictorMetrics,
        clock: Callable[[], Seconds],
        calendar: Callable[[], Seconds],
        on_ended: Callable[[str], None],
    ) -> None:
        self._metrics = metrics
        self._trainer = trainer
        self._versions = versions
        self._clock = clock
        self._calendar = calendar
        self._on_ended = on_ended
        self.running: asyncio.Task[None] | None = None
        """Task of the latest training, which may have ended already."""

    def begin_due(self, predictor: LearningPredictor) -> None:
        """Start the next due training, unless another training is running."""
        if self.running is None or self.running.done():
            job = predictor.due_training(self._clock())
            if job is not None:
                self.running = asyncio.create_task(self._train_class(predictor, job))

    def cancel(self) -> None:
        if self.running is not None:
            self.running.cancel()

    async def stop(self) -> None:
        self.cancel()
        if self.running is not None:
            with suppress(asyncio.CancelledError):
                await self.running

    async def _train_class(self, predictor: LearningPredictor, job: TrainingJob) -> None:
        name = job.application_class
        began = self._clock()
        try:
            data = await self._trainer.train(job)
            ended = await asyncio.to_thread(predictor.judge, job, data, self._calendar())
            await self._versions.publish(name, ended, data)
        except JustitiaError as error:
            self._metrics.record_training("failed")
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
        self._metrics.record_training("rejected" if ended.model is None else "took_over")
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
