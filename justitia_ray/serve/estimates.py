"""The ingress's side of prediction: one call for an application, a deadline, a prior behind it."""

import asyncio
import logging
from typing import Any

from ray.exceptions import RayError
from ray.serve.handle import DeploymentHandle

from justitia_ray.config import PredictionSection
from justitia_ray.core.actions import EndApplication
from justitia_ray.core.entities import Outcome
from justitia_ray.predictor.class_mean import ClassMeanPredictor
from justitia_ray.predictor.estimate import Estimate
from justitia_ray.serve.replica_calls import in_fresh_context
from justitia_ray.units import Seconds, Tokens

logger = logging.getLogger("ray.serve")

Observation = tuple[str, float, int, int]
"""Class, KV token-time, inferences and output tokens of a finished application."""

_KEPT = 10_000
"""Observations kept while the predictor cannot be reached."""

_REFRESH_S: Seconds = 10.0
_TEACH_S: Seconds = 0.5
"""Finished applications are gathered for so long: a handle call costs milliseconds of CPU."""


class Estimates:
    """Estimates of applications, and what finished applications teach.

    The predictor is asked for applications that name their class. The rest, and all of them while
    it cannot be reached in time, are estimated from a copy of its table of class statistics.
    """

    def __init__(self, predictor: DeploymentHandle, section: PredictionSection) -> None:
        self._predictor = predictor
        self._deadline_s = section.deadline_s
        self._table = ClassMeanPredictor(section.prior_output_tokens, section.max_classes)
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

    async def ask(
        self,
        application_class: str,
        input_tokens: Tokens,
        max_tokens: Tokens | None,
        input_text: str,
    ) -> Estimate:
        """Return the predictor's estimate, or the table's if that does not come in time.

        Raises:
            RequestError: If the class name has another form.
        """
        fallback = self.from_table(application_class, input_tokens, max_tokens)

        async def call() -> Estimate:
            return Estimate.from_dict(
                await self._predictor.estimate.remote(
                    application_class, input_tokens, max_tokens, input_text
                )
            )

        try:
            return await asyncio.wait_for(in_fresh_context(call()), self._deadline_s)
        except (TimeoutError, RayError, ValueError):
            return fallback

    def application_ended(self, ended: EndApplication) -> None:
        """Teach the predictor, soon, what an application took, if it ran to its end."""
        if ended.outcome is Outcome.FINISHED and not ended.failed and ended.kv_token_time > 0:
            self._finished.append(
                (
                    ended.application_class,
                    ended.kv_token_time,
                    ended.inferences,
                    ended.output_tokens,
                )
            )

    async def _keep_teaching(self) -> None:
        while True:
            await asyncio.sleep(_TEACH_S)
            batch, self._finished = self._finished, []
            if not batch:
                continue
            try:
                await self._predictor.observe_many.remote(batch)
            except RayError as error:
                logger.warning("predictor.unreachable %s", type(error).__name__)
                self._finished = (batch + self._finished)[-_KEPT:]

    async def _keep_refreshing(self) -> None:
        while True:
            try:
                table: dict[str, Any] = await self._predictor.table.remote()
                self._table.restore(table)
            except RayError as error:
                logger.warning("predictor.unreachable %s", type(error).__name__)
            await asyncio.sleep(_REFRESH_S)
