"""The ingress's side of prediction: one call for an application, a deadline, a prior behind it."""

import asyncio
import logging
from typing import Any

from ray.exceptions import RayError
from ray.serve.handle import DeploymentHandle

from justitia_ray.config import PredictionSection
from justitia_ray.core.actions import EndApplication
from justitia_ray.errors import StoreError
from justitia_ray.observability.ingress_metrics import IngressMetrics
from justitia_ray.observability.log_events import log_event
from justitia_ray.predictor.class_mean import ClassMeanPredictor
from justitia_ray.predictor.estimate import Estimate
from justitia_ray.predictor.observation import Observation, is_lesson
from justitia_ray.predictor.sample import Sample
from justitia_ray.predictor.stages import Expectation, StageTable
from justitia_ray.serve.open_inputs import OpenInputs, SeenInput
from justitia_ray.serve.replica_calls import in_fresh_context
from justitia_ray.units import ApplicationId, Seconds, Tokens

logger = logging.getLogger("ray.serve")

_KEPT = 10_000
"""Observations kept while the predictor cannot be reached."""

_REFRESH_S: Seconds = 10.0
_TEACH_S: Seconds = 0.5
"""Finished applications are gathered for so long: a handle call costs milliseconds of CPU."""


class Estimates:
    """Estimates of applications, and what finished applications teach.

    The predictor is asked for applications that name their class, by the features of their input:
    the text stays here. The rest, and all of them while it cannot be reached in time, are estimated
    from a copy of its table of class statistics. What is to be expected of an inference at its
    stage comes from a copy as well.
    """

    def __init__(
        self,
        predictor: DeploymentHandle,
        section: PredictionSection,
        metrics: IngressMetrics | None = None,
    ) -> None:
        """Know nothing yet.

        Args:
            predictor: Handle of its deployment.
            section: How long it is waited for, and so on.
            metrics: What is told of estimates and their errors; None: nothing is.
        """
        self._metrics = metrics
        self._predictor = predictor
        self._deadline_s = section.deadline_s
        self._max_classes = section.max_classes
        self._table = ClassMeanPredictor(section.prior_output_tokens, section.max_classes)
        self._stages = StageTable(section.max_classes)
        self._inputs = OpenInputs(store_inputs=section.store_inputs)
        self._tasks: list[asyncio.Task[None]] = []
        self._finished: list[Observation] = []

    def start(self) -> None:
        """Begin to copy the table, and to pass on what finished."""
        self._tasks = [
            in_fresh_context(self._keep_refreshing()),
            in_fresh_context(self._keep_teaching()),
        ]

    async def stop(self) -> None:
        """Copy and teach no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def from_table(
        self, application_class: str, input_tokens: Tokens, max_tokens: Tokens | None
    ) -> Estimate:
        """Return what the copied table says of a class, at once.

        Raises:
            RequestError: If the class name has another form.
        """
        return self._table.estimate(application_class, input_tokens, max_tokens)

    def expect(
        self,
        application_class: str,
        stage: int,
        prompt_tokens: Tokens,
        max_tokens: Tokens | None,
        inferences: int = 1,
    ) -> Expectation | None:
        """Return what the copied table says of an inference at a stage; see `StageTable.expect`."""
        return self._stages.expect(application_class, stage, prompt_tokens, max_tokens, inferences)

    async def look_at(self, text: str) -> SeenInput:
        """Return what is looked at of an application's input, for `ask` and `remember`."""
        return await self._inputs.look_at(text)

    def remember(self, application_id: ApplicationId, seen: SeenInput) -> None:
        """Keep what was seen of an application's input, to be learned from when it ends."""
        self._inputs.remember(application_id, seen)

    async def ask(
        self,
        application_class: str,
        input_tokens: Tokens,
        max_tokens: Tokens | None,
        seen: SeenInput,
    ) -> Estimate:
        """Return the predictor's estimate, or the table's if that does not come in time.

        Raises:
            RequestError: If the class name has another form.
        """
        fallback = self.from_table(application_class, input_tokens, max_tokens)

        async def call() -> Estimate:
            return Estimate.from_dict(
                await self._predictor.estimate.remote(
                    application_class, seen.features, input_tokens, max_tokens
                )
            )

        try:
            return await asyncio.wait_for(in_fresh_context(call()), self._deadline_s)
        except (TimeoutError, RayError, ValueError):
            if self._metrics is not None:
                self._metrics.missed()
            return fallback

    def application_ended(self, ended: EndApplication) -> None:
        """Teach the predictor, soon, what an application took, if it ran to its end."""
        if self._metrics is not None:
            self._metrics.ended(ended)
        seen = self._inputs.take(ended.application_id)
        if is_lesson(ended):
            sample = Sample(
                kv_token_time=ended.kv_token_time,
                inferences=ended.inferences,
                output_tokens=ended.output_tokens,
                features=None if seen is None else seen.features,
                input_text=None if seen is None else seen.text,
            )
            self._finished.append(Observation(ended.application_class, sample, ended.stages))

    async def _keep_teaching(self) -> None:
        while True:
            await asyncio.sleep(_TEACH_S)
            batch, self._finished = self._finished, []
            if not batch:
                continue
            try:
                await self._predictor.observe_many.remote(batch)
            except RayError as error:
                _log_unreachable(error)
                self._finished = (batch + self._finished)[-_KEPT:]

    async def _keep_refreshing(self) -> None:
        while True:
            try:
                table: dict[str, dict[str, Any]] = await self._predictor.table.remote()
                self._table.restore(table["classes"])
                self._stages = StageTable.from_dict(table["stages"], self._max_classes)
            except (RayError, StoreError) as error:
                _log_unreachable(error)
            await asyncio.sleep(_REFRESH_S)


def _log_unreachable(error: Exception) -> None:
    log_event(logger, logging.WARNING, "predictor.unreachable", reason=type(error).__name__)
