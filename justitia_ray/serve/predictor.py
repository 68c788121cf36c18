"""The Predictor deployment: estimates of applications, learned from those that finished."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ray.exceptions import RayActorError

from justitia_ray.config import AppConfig, parse_app_config
from justitia_ray.errors import RequestError
from justitia_ray.observability.predictor_metrics import PredictorMetrics
from justitia_ray.predictor.estimator import EstimateRequest
from justitia_ray.predictor.input_features import InputFeatures, features_of
from justitia_ray.predictor.model_directory import ModelDirectory
from justitia_ray.predictor.observation import Observation
from justitia_ray.predictor.online import LearningSettings
from justitia_ray.serve.estimate_batch import EstimateBatch
from justitia_ray.serve.exporter import Exporter, new_measures
from justitia_ray.serve.learning import Learner
from justitia_ray.serve.ray_metrics import RayMetrics
from justitia_ray.serve.scheduler_actor import get_current_scheduler
from justitia_ray.serve.stores import prediction_store
from justitia_ray.serve.training import Trainer
from justitia_ray.units import Seconds, Tokens

_CHARS_PER_TOKEN = 4
_RETRY_S: Seconds = 0.2


class Predictor:
    """Serve deployment around a `LearningPredictor`; a `Learner` keeps it up to date."""

    async def __init__(self, config: dict[str, Any]) -> None:  # type: ignore[misc]  # Serve awaits it
        """Load what is known.

        Args:
            config: `AppConfig` as a dict.

        Raises:
            ConfigError: If the directory of models is not there.
        """
        self._config = parse_app_config(config)
        models_dir = _models_dir(self._config)
        section = self._config.prediction
        self._metrics: PredictorMetrics | None = None
        self._exporting: asyncio.Task[None] | None = None
        if self._config.metrics.enabled:
            measures = new_measures(self._config, "predictor")
            self._metrics = PredictorMetrics(measures)
        self._learner = Learner(
            LearningSettings(
                prior_output_tokens=section.prior_output_tokens,
                max_classes=section.max_classes,
                minimum_samples=section.minimum_samples,
                history_per_class=section.history_per_class,
            ),
            prediction_store(self._config, await _store_url(self._config)),
            Trainer(section.training_timeout_s),
            store_inputs=section.store_inputs,
            models_dir=models_dir,
            metrics=self._metrics,
        )
        self._batch = EstimateBatch(
            lambda requests: self._learner.predictor.estimate_many(requests)
        )
        await self._learner.start()
        if self._metrics is not None:
            interval_s = self._config.metrics.interval_s
            exporter = Exporter(measures, self._look, RayMetrics(), interval_s)
            self._exporting = asyncio.get_running_loop().create_task(exporter.run())

    async def estimate(
        self,
        application_class: str,
        input: InputFeatures | str | None,
        input_tokens: Tokens | None = None,
        max_tokens: Tokens | None = None,
    ) -> dict[str, Any]:
        """Return an `Estimate` as a dict: kv_token_time, p10, p90, output_tokens, source.

        Calls that come together are answered together.

        Args:
            application_class: A known or a new class.
            input: Features of the application's input, or the input itself.
            input_tokens: Tokens of the input, if somebody has counted them.
            max_tokens: Most output tokens of one of its inferences; None if not bounded.

        Raises:
            RequestError: If the class's name has another form or a count is below its least.
        """
        if isinstance(input, str):
            input = await asyncio.to_thread(features_of, input)
        if input_tokens is None:
            input_tokens = 0 if input is None else input.measures[0] // _CHARS_PER_TOKEN
        request = EstimateRequest(application_class, input_tokens, max_tokens, input)
        return (await self._batch.estimate(request)).to_dict()

    async def observe_many(self, finished: Sequence[Observation]) -> None:
        """Learn from applications that finished."""
        await self._learner.observe_many(finished)

    async def take_history(self, history: Sequence[dict[str, Any]]) -> int:
        """Learn from a user's own history, and return how much of it was taken.

        Args:
            history: `Observation`s as dicts.

        Raises:
            RequestError: If one of them has another form; none was taken then.
            AdmissionError: If so much waits to be learned that some of it would be lost.
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
        """Return what ingresses have a copy of: `classes` and `stages`, by class."""
        predictor = self._learner.predictor
        return {"classes": predictor.table(), "stages": predictor.stages.to_dict()}

    async def overview(self) -> dict[str, Any]:
        """Return what is known of each class, and whether this is the replica that learns."""
        return {"learns": self._learner.learns, "classes": self._learner.overview()}

    async def roll_back(
        self, application_class: str, version: int | None, release: bool
    ) -> dict[str, Any]:
        """Let an earlier version serve; see `Learner.roll_back`."""
        return await self._learner.roll_back(application_class, version, release=release)

    async def __del__(self) -> None:
        """Serve calls this when nothing runs any more."""
        if self._exporting is not None:
            self._exporting.cancel()
        await self._learner.stop()

    def _look(self) -> None:
        """Tell what answers for each class now."""
        assert self._metrics is not None
        predictor = self._learner.predictor
        self._metrics.look({name: predictor.serving(name) for name in predictor.table()})


async def _store_url(config: AppConfig) -> str | None:
    """Return where the state is kept, once the scheduler says so; None if nowhere."""
    while True:
        scheduler = await get_current_scheduler(config)
        try:
            url: str | None = await scheduler.store_url.remote()
            return url
        except RayActorError:
            await asyncio.sleep(_RETRY_S)  # it is being started again


def _models_dir(config: AppConfig) -> Path | None:
    if config.prediction.models_dir is None:
        return None
    path = Path(config.prediction.models_dir).expanduser()
    ModelDirectory(path).classes()
    return path
