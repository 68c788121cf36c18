"""The scheduler as a named, detached Ray actor, and how the others find it."""

import asyncio
import gc
import logging
import os
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError

from justitia_ray import __version__
from justitia_ray.config import AppConfig, parse_app_config
from justitia_ray.core import events as ev
from justitia_ray.errors import JustitiaError
from justitia_ray.observability.json_lines import write_json_lines
from justitia_ray.observability.log_events import log_event
from justitia_ray.protocol.messages import IngressMail, Opened, Pull, ReplicaMail, Submission
from justitia_ray.serve.ray_metrics import RayMetrics
from justitia_ray.serve.scheduler_service import SchedulerService
from justitia_ray.serve.steady_clock import SteadyClock, elapsed
from justitia_ray.serve.stores import embedded_server, scheduler_store, store_url
from justitia_ray.store.office import Holder
from justitia_ray.units import Epoch

logger = logging.getLogger(__name__)

_MAX_CONCURRENCY = 100_000
"""Long-polls are pending calls; at Ray's default of 1,000 the next call would block for ever."""


class SchedulerActor:
    """Forwards calls to a `SchedulerService`, which it starts with its store."""

    def __init__(self, config: dict[str, Any]) -> None:
        # The core makes no cycles: a full collection finds nothing, and with 10,000 applications
        # stands still for 0.1 s.
        gc.freeze()
        gc.set_threshold(700, 10, 10_000)
        write_json_lines()
        self._config = parse_app_config(config)
        self._ray_metrics = RayMetrics()
        self._redis = embedded_server(self._config)
        self._service: SchedulerService | None = None
        """In office, or about to be."""
        self._in_office: SchedulerService | None = None
        self._starting: asyncio.Task[SchedulerService] | None = None
        self._failure = "starting"

    async def version(self) -> str:
        """Return the version of the package that this actor runs."""
        if self._service is None:
            await self._started()
        return __version__

    async def store_url(self) -> str | None:
        """Return where the state is kept, None if nowhere; only for processes of this node."""
        await self._started()
        return None if self._config.store.durability == "none" else store_url(self._config)

    async def open_application(self, arrival: ev.ApplicationArrived) -> Opened:
        """See `SchedulerService`; so for the rest."""
        return await (await self._started()).open_application(arrival)

    async def close_application(self, application_id: str) -> bool:
        """Take no more inferences of it."""
        return await (await self._started()).close_application(application_id)

    async def cancel_application(self, application_id: str) -> bool:
        """End it with all that waits or runs of it."""
        return await (await self._started()).cancel_application(application_id)

    async def application(self, application_id: str) -> dict[str, Any] | None:
        """Return what is known of a live application."""
        return await (await self._started()).application(application_id)

    async def submit_many(
        self, ingress_id: str, epoch: int, ack: int, items: tuple[Submission, ...]
    ) -> IngressMail:
        """Let inferences wait."""
        return await (await self._started()).submit_many(ingress_id, epoch, ack, items)

    async def poll_grants(self, ingress_id: str, epoch: int, ack: int) -> IngressMail:
        """Return what the ingress has not read."""
        return await (await self._started()).poll_grants(ingress_id, epoch, ack)

    async def refuse_lease(
        self, request_id: str, lease_id: str, replica_id: str, replica_gone: bool
    ) -> bool:
        """Take back a lease that the ingress could not use."""
        service = await self._started()
        return await service.refuse_lease(request_id, lease_id, replica_id, replica_gone)

    async def configure(self, settings: dict[str, Any]) -> int:
        """Take other settings from now on."""
        return await (await self._started()).configure(settings)

    async def pull(self, pull: Pull) -> ReplicaMail:
        """Book what a replica reports, and lease it work."""
        return await (await self._started()).pull(pull)

    async def leave(self, replica_id: str) -> None:
        """Take leave of a replica that shuts down."""
        await (await self._started()).leave(replica_id)

    async def status(self, applications: int = 0) -> dict[str, Any]:
        """Return the state of affairs."""
        if self._service is None:
            return {"ready": False, "degraded": self._failure, "epoch": 0}
        office = {"version": __version__, "pid": os.getpid()}
        return await self._service.status(applications) | office

    async def examine(self) -> dict[str, Any]:
        """Return what it says of itself when it is examined."""
        if self._service is None:
            return {"ready": False, "degraded": self._failure, "version": __version__}
        office = {"version": __version__, "pid": os.getpid()}
        return await self._service.examine() | office

    async def retire(self) -> None:
        """Save a last time and end the embedded Redis, before this actor is killed."""
        if self._service is not None:
            await self._service.stop()
        if self._redis is not None:
            await asyncio.to_thread(self._redis.stop)

    async def _started(self) -> SchedulerService:
        if self._in_office is not None:
            return self._in_office
        if self._starting is None or self._starting.done():  # done and not in office: it failed
            self._starting = asyncio.create_task(self._start())
        return await asyncio.shield(self._starting)

    async def _start(self, above: Epoch = 0) -> SchedulerService:
        try:
            service = self._service = await self._make_service()
            await service.start(above)
        except JustitiaError as error:
            self._service = None
            self._failure = str(error)
            raise
        self._in_office = service
        return service

    async def _make_service(self) -> SchedulerService:
        if self._redis is not None:
            await asyncio.to_thread(self._redis.start)
        return SchedulerService(
            self._config,
            scheduler_store(self._config, self._holder()),
            self._stand_down,
            None if self._redis is None else self._redis.start,
            SteadyClock(elapsed),
            self._begin_again,
            self._ray_metrics,
        )

    def _holder(self) -> Holder:
        actor = ray.get_runtime_context().get_actor_id() if ray.is_initialized() else None
        return Holder(self._config.scheduler.namespace, actor or "", __version__)

    def _begin_again(self, above: Epoch) -> None:
        """Take office anew, above an epoch that callers know and the store had lost."""
        before, self._in_office = self._in_office, None
        self._starting = asyncio.get_running_loop().create_task(self._replace(before, above))

    async def _replace(self, before: SchedulerService | None, above: Epoch) -> SchedulerService:
        if before is not None:
            await before.stop()
        return await self._start(above)

    def _stand_down(self, reason: str) -> None:
        """End this actor for good; Ray must not start it again."""
        log_event(logger, logging.WARNING, "scheduler.stands_down", reason=reason)
        if self._service is not None and self._service.is_succeeded:
            # Ray took this process for dead and has another one. To end the actor would end that.
            os._exit(0)
        asyncio.get_running_loop().create_task(self._leave_office())

    async def _leave_office(self) -> None:
        await self.retire()
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def get_scheduler(config: AppConfig) -> ActorHandle:
    """Return the application's scheduler, starting it if it does not run.

    Safe to call from many processes at once. A handle stays good over restarts of the actor.
    """
    section = config.scheduler
    remote = ray.remote(SchedulerActor)
    return remote.options(
        name=config.scheduler_name,
        namespace=section.namespace,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=section.num_cpus,
        max_restarts=-1,
        max_task_retries=0,  # calls are idempotent and carry an epoch: their senders repeat them
        max_concurrency=_MAX_CONCURRENCY,
    ).remote(config.model_dump())


async def get_current_scheduler(config: AppConfig) -> ActorHandle:
    """Return the application's scheduler, replacing one that runs an older version.

    The old one saves its state and is killed; the new one loads it. An older caller, a replica of
    the last deployment that still drains, takes the newer scheduler as it is.
    """
    while True:
        scheduler = get_scheduler(config)
        try:
            running = await scheduler.version.remote()
            if _parts(running) >= _parts(__version__):
                return scheduler
            log_event(logger, logging.INFO, "scheduler.replaced", version=running, by=__version__)
            await scheduler.retire.remote()
            ray.kill(scheduler, no_restart=True)
        except RayActorError:
            await asyncio.sleep(0.2)  # it is being started again, or another caller replaced it


def end_scheduler(config: AppConfig, timeout_s: float = 30.0) -> bool:
    """Save the state, end the scheduler and its embedded Redis; return whether there was one."""
    try:
        scheduler = ray.get_actor(config.scheduler_name, namespace=config.scheduler.namespace)
    except ValueError:
        return False
    try:
        ray.get(scheduler.retire.remote(), timeout=timeout_s)
    except RayError as error:
        log_event(logger, logging.WARNING, "scheduler.killed_unsaved", reason=str(error))
    ray.kill(scheduler, no_restart=True)
    return True


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
