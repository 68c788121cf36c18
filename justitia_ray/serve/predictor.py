"""The Predictor deployment: estimates of applications, learned from those that finished."""

import logging
from collections.abc import Iterable
from typing import Any

from ray.exceptions import RayActorError

from justitia_ray.config import parse_app_config
from justitia_ray.errors import StoreError
from justitia_ray.predictor.class_mean import ClassMeanPredictor
from justitia_ray.serve.estimates import Observation
from justitia_ray.serve.scheduler_actor import get_current_scheduler, store_password
from justitia_ray.store.prediction_store import PredictionStore

logger = logging.getLogger("ray.serve")


class Predictor:
    """Serve deployment around a `ClassMeanPredictor`, with its statistics in Redis."""

    async def __init__(self, config: dict[str, Any]) -> None:  # type: ignore[misc]  # Serve awaits it
        """Load what is known.

        Args:
            config: `AppConfig` as a dict.
        """
        self._config = parse_app_config(config)
        section = self._config.prediction
        self._predictor = ClassMeanPredictor(section.prior_output_tokens, section.max_classes)
        self._store: PredictionStore | None = None
        try:
            scheduler = await get_current_scheduler(self._config)
            self._store = PredictionStore(
                await scheduler.store_url.remote(),
                self._config.store_name,
                store_password(self._config),
            )
            self._predictor.restore(await self._store.load_classes())
        except (StoreError, RayActorError) as error:
            logger.warning("predictor.starts_without_history %s", error)

    async def estimate(
        self, application_class: str, input_tokens: int, max_tokens: int | None, input_text: str
    ) -> dict[str, Any]:
        """Return an `Estimate` as a dict: kv_token_time, p10, p90, output_tokens, source.

        Raises:
            RequestError: If the class name has another form.
        """
        return self._predictor.estimate(
            application_class, input_tokens, max_tokens, input_text
        ).to_dict()

    async def observe_many(self, finished: Iterable[Observation]) -> None:
        """Learn from applications that finished."""
        learned = {self._predictor.observe(*observation) for observation in finished}
        if self._store is None:
            return
        try:
            for name in sorted(learned):
                await self._store.save_class(name, self._predictor.statistics(name))
        except StoreError as error:
            logger.warning("predictor.not_saved %s", error)

    async def table(self) -> dict[str, dict[str, Any]]:
        """Return the statistics of every class, as `ClassMeanPredictor.restore` takes them."""
        return self._predictor.all_statistics()

    async def __del__(self) -> None:
        """Serve calls this when nothing runs any more."""
        if self._store is not None:
            await self._store.aclose()
