"""Brings what was measured to the metrics library of the process, from time to time."""

import asyncio
import logging
from collections.abc import Callable

from justitia_ray.config import AppConfig
from justitia_ray.observability.measures import Backend, Measures
from justitia_ray.observability.metrics import SetBy
from justitia_ray.units import ReplicaId, Seconds

logger = logging.getLogger("ray.serve")


def new_measures(config: AppConfig, set_by: SetBy, replica_id: ReplicaId = "") -> Measures:
    """Return the measures of a process for one model.

    Args:
        config: Of the model.
        set_by: What kind of process it is.
        replica_id: Serve's name of it, where its metrics are told apart by that.
    """
    common = {"application": config.name, "model": config.model.name}
    if replica_id:
        common["replica"] = replica_id
    section = config.metrics
    return Measures(set_by, common, section.max_classes, section.max_tenants)


class Exporter:
    """Looks, and exports what is new: a mistake in either is logged, and hurts nobody else."""

    def __init__(
        self,
        measures: Measures,
        look: Callable[[], None],
        backend: Backend,
        interval_s: Seconds,
    ) -> None:
        """Prepare.

        Args:
            measures: What is exported.
            look: Called before each export, to set gauges.
            backend: Where it goes.
            interval_s: From one export to the next.
        """
        self._measures = measures
        self._look = look
        self._backend = backend
        self._interval_s = interval_s
        self._failed = False
        self._has_ended = False

    async def run(self) -> None:
        """Export until `end`, first at once."""
        while not self._has_ended:
            self.export()
            await asyncio.sleep(self._interval_s)

    def end(self) -> None:
        """Export a last time."""
        self._has_ended = True
        self.export()

    def export(self) -> None:
        """Export once: what was counted also where looking fails, lest it grow without end."""
        failures = [*_failures_of(self._look), *_failures_of(self._tell)]
        if failures and not self._failed:  # it may fail every time
            logger.error("metrics.export_failed", exc_info=failures[0])
        self._failed = bool(failures)

    def _tell(self) -> None:
        self._measures.export(self._backend)


def _failures_of(step: Callable[[], None]) -> list[Exception]:
    try:
        step()
    except Exception as error:
        return [error]
    return []
