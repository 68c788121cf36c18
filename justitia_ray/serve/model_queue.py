"""An ingress's side of one model: its scheduler, its predictor, its replicas."""

import asyncio
from collections.abc import Callable
from typing import Any

from justitia_ray.config import AppConfig, SchedulingConfig
from justitia_ray.observability.ingress_metrics import IngressMetrics
from justitia_ray.observability.measures import Backend
from justitia_ray.serve.dispatcher import Dispatcher
from justitia_ray.serve.estimates import Estimates
from justitia_ray.serve.exporter import Exporter, new_measures
from justitia_ray.serve.gateway import Gateway
from justitia_ray.serve.opening import Opening
from justitia_ray.serve.replica_calls import ReplicaCalls
from justitia_ray.serve.returning_handle import ReturningHandle
from justitia_ray.serve.scheduler_calls import scheduler_calls
from justitia_ray.serve.token_counter import TokenCounter
from justitia_ray.units import ApplicationId, ReplicaId


class ModelQueue:
    """Everything that an ingress process has of one model, and nothing of another."""

    def __init__(
        self,
        config: AppConfig,
        scheduler: Any,
        replicas: Any,
        predictor: Any,
        counter: TokenCounter,
        *,
        dispatcher: Callable[..., Dispatcher] = Dispatcher,
        opened_elsewhere: Callable[[ApplicationId], Opening | None] | None = None,
        replica_id: ReplicaId = "",
        backend: Backend | None = None,
    ) -> None:
        """Put it together; `start` begins to talk.

        Args:
            config: Of the model.
            scheduler: Handle of its scheduler actor.
            replicas: Handle of the deployment of its engines.
            predictor: Handle of the deployment of its predictor.
            counter: Of its prompt tokens; closed here.
            dispatcher: Makes the dispatcher; a test passes its own.
            opened_elsewhere: Returns what an application was opened with at another model.
            replica_id: Serve's name of this ingress, for its metrics.
            backend: Where they go; None: nowhere.
        """
        self.config = config
        self.scheduler = scheduler
        self.predictor = predictor
        self.calls = ReplicaCalls(replicas)
        self._counter = counter
        self._scheduling = SchedulingConfig()
        self._exporting: asyncio.Task[None] | None = None
        metrics = self._exporter = None
        if backend is not None and config.metrics.enabled:
            measures = new_measures(config, "ingress", replica_id)
            metrics = IngressMetrics(measures)
            interval_s = config.metrics.interval_s
            self._exporter = Exporter(measures, self._look, backend, interval_s)
        self._metrics = metrics
        self._estimates = Estimates(predictor, config.prediction, metrics)
        self.dispatcher = dispatcher(
            ReturningHandle(scheduler),
            self._estimates.application_ended,
            self._configure,
            config.ingress.max_outstanding,
            config.ingress.submit_interval_s,
            self._heard_of,
        )
        self.gateway = Gateway(
            config,
            self.dispatcher,
            self.calls,
            self._estimates,
            counter,
            opened_elsewhere,
            metrics,
        )
        self.scheduler_calls = scheduler_calls(scheduler, self.dispatcher.note_closed)

    def start(self) -> None:
        """Begin to submit and to listen, and to ask and teach the predictor."""
        self._estimates.start()
        self.dispatcher.start()
        if self._exporter is not None:
            self._exporting = asyncio.get_running_loop().create_task(self._exporter.run())

    async def stop(self) -> None:
        """Talk no more."""
        if self._exporting is not None:
            self._exporting.cancel()
        await self._estimates.stop()
        await self.dispatcher.stop()
        self._counter.close()

    async def reconfigure(self, scheduling: SchedulingConfig) -> None:
        """Take other settings, and pass them to the scheduler."""
        self._scheduling = scheduling
        self.gateway.submitter.tenant_weights = scheduling.tenant_weights
        await self._configure()

    def _look(self) -> None:
        """Tell what there is now."""
        assert self._metrics is not None
        self._metrics.look(self.dispatcher.outstanding, self.dispatcher.epoch)

    def _heard_of(self, application_id: ApplicationId, is_open: bool) -> None:
        """Tell the metrics whether an application was opened."""
        if self._metrics is not None:
            tell = self._metrics.opened if is_open else self._metrics.forget
            tell(application_id)

    async def _configure(self) -> None:
        await self.scheduler.configure.remote(self._scheduling.model_dump())
