"""An ingress's side of one model: its scheduler, its predictor, its replicas."""

from collections.abc import Callable
from typing import Any

from justitia_ray.config import AppConfig, SchedulingConfig
from justitia_ray.serve.dispatcher import Dispatcher
from justitia_ray.serve.estimates import Estimates
from justitia_ray.serve.gateway import Gateway, Opening
from justitia_ray.serve.replica_calls import ReplicaCalls
from justitia_ray.serve.returning_handle import ReturningHandle
from justitia_ray.serve.scheduler_calls import scheduler_calls
from justitia_ray.serve.token_counter import TokenCounter
from justitia_ray.units import ApplicationId


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
        """
        self.config = config
        self.scheduler = scheduler
        self.predictor = predictor
        self.calls = ReplicaCalls(replicas)
        self._counter = counter
        self._estimates = Estimates(predictor, config.prediction)
        self.dispatcher = dispatcher(
            ReturningHandle(scheduler),
            self._estimates.application_ended,
            self._configure,
            config.ingress.max_outstanding,
            config.ingress.submit_interval_s,
        )
        self.gateway = Gateway(
            config,
            self.dispatcher,
            self.calls,
            self._estimates,
            counter,
            opened_elsewhere,
        )
        self.scheduler_calls = scheduler_calls(scheduler, self.dispatcher.note_closed)

    def start(self) -> None:
        """Begin to submit and to listen, and to ask and teach the predictor."""
        self._estimates.start()
        self.dispatcher.start()

    async def stop(self) -> None:
        """Talk no more."""
        await self._estimates.stop()
        await self.dispatcher.stop()
        self._counter.close()

    async def reconfigure(self, scheduling: SchedulingConfig) -> None:
        """Take other settings, and pass them to the scheduler."""
        self.gateway.scheduling = scheduling
        await self._configure()

    async def _configure(self) -> None:
        await self.scheduler.configure.remote(self.gateway.scheduling.model_dump())
