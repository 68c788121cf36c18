"""Predictor deployment: estimates of applications, learned from finished ones."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ray.exceptions import RayActorError

from justitia_ray.config import AppConfig
from justitia_ray.errors import RequestError
from justitia_ray.observability.part_metrics import PredictorMetrics
from justitia_ray.predictor.estimate import Estimate
from justitia_ray.predictor.input_features import InputFeatures, features_of
from justitia_ray.predictor.model_directory import ModelDirectory
from justitia_ray.predictor.observation import Observation
from justitia_ray.predictor.online import EstimateRequest, LearningSettings
from justitia_ray.serve.predictor.learner import Learner
from justitia_ray.serve.predictor.training import Trainer
from justitia_ray.serve.ray_metrics import Exporter, RayMetrics, new_measures
from justitia_ray.serve.scheduler.handle import get_current_scheduler
from justitia_ray.serve.stores import prediction_store
from justitia_ray.units import Seconds, Tokens

_CHARS_PER_TOKEN = 4
_RETRY_S: Seconds = 0.2


class Predictor:
    """Serve deployment of a `LearningPredictor`, which a `Learner` keeps up to date."""

    async def __init__(self, config: dict[str, Any]) -> None:  # type: ignore[misc]  # Serve awaits it
        """Load the predictor's state from the store, and continue to learn.

        Args:
            config: `AppConfig` as a dict.

        Raises:
            ConfigError: If the directory of models does not exist.
        """
        self._config = AppConfig.parse(config)
        models_dir = _models_dir(self._config)
        section = self._config.prediction
        measures = new_measures(self._config, "predictor")
        self._metrics = PredictorMetrics(measures)
        self._exporter: Exporter | None = None
        self._learner = Learner(
            LearningSettings(
                prior_output_tokens=section.prior_output_tokens,
                max_classes=section.max_classes,
                minimum_samples=section.minimum_samples,
                history_per_class=section.history_per_class,
            ),
            prediction_store(self._config, await _store_url(self._config)),
            Trainer(section.training_timeout_s),
            self._metrics,
            store_inputs=section.store_inputs,
            models_dir=models_dir,
        )
        self._batch = EstimateBatch(
            lambda requests: self._learner.predictor.estimate_many(requests)
        )
        await self._learner.start()
        if self._config.metrics.enabled:
            interval_s = self._config.metrics.interval_s
            self._exporter = Exporter(measures, self._set_gauges, RayMetrics(), interval_s)
            self._exporter.start()

    async def estimate(
        self,
        application_class: str,
        input: InputFeatures | str | None,
        input_tokens: Tokens | None = None,
        max_tokens: Tokens | None = None,
    ) -> dict[str, Any]:
        """Return an `Estimate` as a dict: kv_token_time, p10, p90, output_tokens, source.

        Calls in the same turn of the event loop are answered together.

        Args:
            application_class: A known or a new class.
            input: Features of the application's input, or the input itself.
            input_tokens: Tokens of the input, if they were counted.
            max_tokens: Maximum output tokens of one of its inferences; None if unlimited.

        Raises:
            RequestError: If the class's name is malformed or a count is below its minimum.
        """
        if isinstance(input, str):
            input = await asyncio.to_thread(features_of, input)
        if input_tokens is None:
            input_tokens = 0 if input is None else input.measures[0] // _CHARS_PER_TOKEN
        request = EstimateRequest(application_class, input_tokens, max_tokens, input)
        return (await self._batch.estimate(request)).to_dict()

    async def observe_many(self, finished: Sequence[Observation]) -> None:
        """Accept finished applications from which the predictor learns."""
        await self._learner.observe_many(finished)

    async def take_history(self, history: Sequence[dict[str, Any]]) -> int:
        """Accept past applications that a user sends; return their number.

        Args:
            history: `Observation`s as dicts.

        Raises:
            RequestError: If an observation is malformed; then none is accepted.
            AdmissionError: If too many observations are waiting, so that some would be lost.
        """
        observations = []
        for number, values in enumerate(history):
            try:
                observations.append(Observation.from_dict(values))
            except ValueError as error:
                raise RequestError(f"samples[{number}]: {error}", param="samples") from error
        await self._learner.take_history(observations)
        return len(observations)

    async def table(self) -> dict[str, dict[str, Any]]:
        """Return the statistics that ingresses copy: `classes` and `stages`, by class."""
        predictor = self._learner.predictor
        return {"classes": predictor.means.all_statistics(), "stages": predictor.stages.to_dict()}

    async def overview(self) -> dict[str, Any]:
        """Return each class's statistics and model versions, and whether this replica learns."""
        return {"learns": self._learner.learns, "classes": self._learner.predictor.overview()}

    async def roll_back(
        self, application_class: str, version: int | None, release: bool
    ) -> dict[str, Any]:
        """Make an earlier version of a class's model active; see `Learner.roll_back`."""
        return await self._learner.roll_back(application_class, version, release=release)

    async def __del__(self) -> None:
        """Save and stop learning; Ray Serve calls this when no call is running any more."""
        await self._learner.stop()
        if self._exporter is not None:
            self._exporter.end()

    def _set_gauges(self) -> None:
        predictor = self._learner.predictor
        self._metrics.measure(
            {name: predictor.serving(name) for name in predictor.means.all_statistics()}
        )


class EstimateBatch:
    """Estimates all calls of one turn of the event loop together, without a delay of any call.

    `serve.batch` is not used, because it delays a call for some time, or answers it alone.
    """

    def __init__(
        self, estimate_many: Callable[[Sequence[EstimateRequest]], list[Estimate]]
    ) -> None:
        self._estimate_many = estimate_many
        self._waiting: list[tuple[EstimateRequest, asyncio.Future[Estimate]]] = []

    async def estimate(self, request: EstimateRequest) -> Estimate:
        """Return the estimate of one application.

        Raises:
            RequestError: Like `estimate_many`, for this request alone.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Estimate] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._answer_batch)
        self._waiting.append((request, answer))
        return await answer

    def _answer_batch(self) -> None:
        waiting, self._waiting = self._waiting, []
        open_calls = [(request, answer) for request, answer in waiting if not answer.done()]
        try:
            estimates = self._estimate_many([request for request, _ in open_calls])
        except Exception as error:  # On any error the callers use their own estimates.
            if len(open_calls) == 1:
                open_calls[0][1].set_exception(error)
                return
            # The calls are retried one by one, so that only an invalid one fails.
            for call in open_calls:
                self._waiting = [call]
                self._answer_batch()
            return
        for (_, answer), estimate in zip(open_calls, estimates, strict=True):
            answer.set_result(estimate)


async def _store_url(config: AppConfig) -> str | None:
    """Return the store's URL from the scheduler, waiting for it; None if there is no store."""
    while True:
        scheduler = await get_current_scheduler(config)
        try:
            url: str | None = await scheduler.store_url.remote()
            return url
        except RayActorError:
            await asyncio.sleep(_RETRY_S)  # the scheduler is restarting


def _models_dir(config: AppConfig) -> Path | None:
    if config.prediction.models_dir is None:
        return None
    path = Path(config.prediction.models_dir).expanduser()
    ModelDirectory(path).classes()
    return path
