"""Predictions for an ingress: one call to the predictor with a deadline, and a fallback."""

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayError
from ray.serve.handle import DeploymentHandle

from justitia_ray.config import PredictionSection
from justitia_ray.core.actions import EndApplication
from justitia_ray.errors import StoreError
from justitia_ray.observability.log_events import log_event
from justitia_ray.observability.part_metrics import IngressMetrics
from justitia_ray.predictor.class_mean import ClassMeanPredictor
from justitia_ray.predictor.estimate import Estimate
from justitia_ray.predictor.input_features import InputFeatures, features_of
from justitia_ray.predictor.observation import Observation, Sample, is_lesson
from justitia_ray.predictor.stages import StageTable
from justitia_ray.serve.ingress.replica_calls import call_remote, in_fresh_context
from justitia_ray.units import ApplicationId, Seconds, Tokens

logger = logging.getLogger("ray.serve")

_MAX_WEIGHT = 4_000_000
"""Maximum size of the cache of input features, in numbers and characters. Applications beyond it
are learned without features.
"""
_WEIGHT_OF_ONE = 64
_LONG_CHARS = 2_000
"""Maximum characters of texts that are processed on the event loop: 2,000 characters take 0.25 ms.
"""
_MAX_OBSERVATIONS = 10_000
"""Maximum number of finished applications kept while the predictor cannot be reached."""
_REFRESH_S: Seconds = 10.0
_TEACH_S: Seconds = 0.5
"""Seconds between two batches of finished applications for the predictor, because each call costs
milliseconds of CPU.
"""


@dataclass(frozen=True, slots=True)
class InputSummary:
    """Features of an application's input, and its text if texts are stored."""

    features: InputFeatures
    text: str | None = None

    @property
    def weight(self) -> int:
        """Size of the input's features in memory, in numbers and characters."""
        text = 0 if self.text is None else len(self.text)
        return _WEIGHT_OF_ONE + 2 * len(self.features.terms) + text


class FeatureCache:
    """Cache of input features of open applications, bounded in total size.

    Args:
        store_inputs: Whether to keep texts.
        max_weight: Maximum sum of the weights kept.
    """

    def __init__(self, *, store_inputs: bool, max_weight: int = _MAX_WEIGHT) -> None:
        self._store_inputs = store_inputs
        self._max_weight = max_weight
        self._kept: OrderedDict[ApplicationId, InputSummary] = OrderedDict()
        self._weight = 0

    async def summarise(self, text: str) -> InputSummary:
        """Return the features of an input."""
        if len(text) > _LONG_CHARS:
            features = await asyncio.to_thread(features_of, text)
        else:
            features = features_of(text)
        return InputSummary(features, text if self._store_inputs else None)

    def keep_input(self, application_id: ApplicationId, summary: InputSummary) -> None:
        """Keep the features of an application's input until the application ends."""
        self.take_input(application_id)
        self._kept[application_id] = summary
        self._weight += summary.weight
        while self._weight > self._max_weight:
            _, oldest = self._kept.popitem(last=False)
            self._weight -= oldest.weight

    def take_input(self, application_id: ApplicationId) -> InputSummary | None:
        """Remove and return the features of an application's input; None if they are not cached."""
        summary = self._kept.pop(application_id, None)
        if summary is not None:
            self._weight -= summary.weight
        return summary


class Estimates:
    """Predicted costs of applications, and reports of finished applications to the predictor.

    For an application that names its class, the predictor is called with the features of the input;
    the text stays here. If the class is missing, or the predictor does not answer in time, the
    estimate is read from a copy of the predictor's tables.

    Attributes:
        classes: Copy of the predictor's class statistics.
        stages: Copy of the predictor's table of stages: the expected inferences by class.
        inputs: Summaries of the inputs of open applications.

    Args:
        predictor: Handle of the predictor's deployment.
        section: Settings: the deadline of a call, the prior, bounds.
        metrics: Counts estimates and their errors; None: they are not counted.
    """

    def __init__(
        self,
        predictor: DeploymentHandle,
        section: PredictionSection,
        metrics: IngressMetrics | None = None,
    ) -> None:
        self._metrics = metrics
        self._predictor = predictor
        self._deadline_s = section.deadline_s
        self._max_classes = section.max_classes
        self.classes = ClassMeanPredictor(section.prior_output_tokens, section.max_classes)
        self.stages = StageTable(section.max_classes)
        self.inputs = FeatureCache(store_inputs=section.store_inputs)
        self._tasks: list[asyncio.Task[None]] = []
        self._finished: list[Observation] = []

    def start(self) -> None:
        self._tasks = [
            in_fresh_context(self._keep_refreshing()),
            in_fresh_context(self._keep_teaching()),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def estimate_application(
        self,
        application_class: str,
        input_tokens: Tokens,
        max_tokens: Tokens | None,
        summary: InputSummary,
    ) -> Estimate:
        """Return the predictor's estimate, or its class's mean cost if the predictor is too late.

        Raises:
            RequestError: If the class name is malformed.
        """
        fallback = self.classes.estimate(application_class, input_tokens, max_tokens)
        asked = (application_class, summary.features, input_tokens, max_tokens)
        try:
            async with asyncio.timeout(self._deadline_s):
                return Estimate.from_dict(await call_remote(self._predictor, "estimate", *asked))
        except (TimeoutError, RayError, ValueError):
            if self._metrics is not None:
                self._metrics.record_missed_estimate()
            return fallback

    def note_ended_application(self, ended: EndApplication) -> None:
        """Report the cost of an ended application to the predictor, if it ran to its end."""
        if self._metrics is not None:
            self._metrics.record_end(ended)
        summary = self.inputs.take_input(ended.application_id)
        if is_lesson(ended):
            sample = Sample(
                kv_token_time=ended.kv_token_time,
                inferences=ended.inferences,
                output_tokens=ended.output_tokens,
                features=None if summary is None else summary.features,
                input_text=None if summary is None else summary.text,
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
                self._finished = (batch + self._finished)[-_MAX_OBSERVATIONS:]

    async def _keep_refreshing(self) -> None:
        while True:
            try:
                table: dict[str, dict[str, Any]] = await self._predictor.table.remote()
                self.classes.restore(table["classes"])
                self.stages = StageTable.from_dict(table["stages"], self._max_classes)
            except (RayError, StoreError) as error:
                _log_unreachable(error)
            await asyncio.sleep(_REFRESH_S)


def _log_unreachable(error: Exception) -> None:
    log_event(logger, logging.WARNING, "predictor.unreachable", reason=type(error).__name__)
