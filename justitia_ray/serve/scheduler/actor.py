"""The named, detached Ray actor of a scheduler."""

import asyncio
import gc
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any

import ray
from msgspec import to_builtins

from justitia_ray import __version__
from justitia_ray.config import AppConfig
from justitia_ray.errors import JustitiaError
from justitia_ray.observability.log_events import flush_lines, log_event, write_json_lines
from justitia_ray.serve.ray_metrics import RayMetrics
from justitia_ray.serve.scheduler.clock import SteadyClock, elapsed
from justitia_ray.serve.scheduler.leadership import Term
from justitia_ray.serve.scheduler.service import SchedulerService
from justitia_ray.serve.stores import embedded_server, scheduler_store, store_url
from justitia_ray.serve.transport.endpoint import listen
from justitia_ray.serve.transport.handshake import Key, Keyring, Offer, Peer
from justitia_ray.serve.transport.listener import Caller, Listener
from justitia_ray.serve.transport.methods import SCHEDULER_METHODS
from justitia_ray.store.leader import LeaderRecord
from justitia_ray.units import Epoch

logger = logging.getLogger(__name__)


def _forward_to_service(method: str) -> Callable[..., Awaitable[Any]]:
    """Return an actor method that calls `SchedulerService`'s method, once a service leads."""

    async def call(actor: "SchedulerActor", *arguments: Any) -> Any:
        return await getattr(await actor.started(), method)(*arguments)

    return call


def _process_facts() -> dict[str, Any]:
    return {"version": __version__, "pid": os.getpid()}


class SchedulerActor:
    """Ray actor that starts a `SchedulerService` with its store, and retries a failed start."""

    def __init__(self, config: dict[str, Any]) -> None:
        # The garbage collector finds nothing in the scheduler core, and blocks it for 0.1 s.
        gc.freeze()
        gc.set_threshold(700, 10, 10_000)
        write_json_lines()
        self._config = AppConfig.parse(config)
        self._ray_metrics = RayMetrics()
        self._redis = embedded_server(self._config)
        self._service: SchedulerService | None = None
        """Service that leads or is starting; None before any start."""
        self._leading: SchedulerService | None = None
        self._starting: asyncio.Task[SchedulerService] | None = None
        self._failure = "starting"
        self._key = Key.new()
        self._listening: asyncio.Task[Offer] | None = None
        self._listener: Listener | None = None

    async def link(self) -> Offer:
        """Return the address to which ingresses and replicas connect, once a service leads."""
        await self.started()
        listening = self._listening
        if listening is None or (listening.done() and listening.exception() is not None):
            listening = self._listening = asyncio.create_task(self._start_listening())
        return await asyncio.shield(listening)

    close_application = _forward_to_service("close_application")
    cancel_application = _forward_to_service("cancel_application")
    restore_ended = _forward_to_service("restore_ended")
    application = _forward_to_service("application")
    applications = _forward_to_service("applications")
    console_frame = _forward_to_service("console_frame")
    console_application = _forward_to_service("console_application")
    console_history = _forward_to_service("console_history")
    usage = _forward_to_service("usage")
    configure = _forward_to_service("configure")

    async def size(self, question: dict[str, Any]) -> dict[str, Any] | None:
        return None if self._leading is None else await self._leading.size(question)

    async def version(self) -> str:
        if self._service is None:
            await self.started()
        return __version__

    async def store_url(self) -> str | None:
        """Return the URL of the store, valid on this node only; None without a store."""
        await self.started()
        return None if self._config.store.durability == "none" else store_url(self._config)

    async def status(self, applications: int = 0) -> dict[str, Any]:
        """Return the scheduler's part of `/v1/status` without waiting, even if it does not lead.

        Args:
            applications: Number of first live applications to describe.
        """
        if self._service is None:
            return {"ready": False, "degraded": self._failure, "epoch": 0}
        status = self._service.inspector.status(applications)
        return {**to_builtins(status), **_process_facts()}

    async def inspect(self) -> dict[str, Any]:
        """Return a `SchedulerReport` as a dict at once, even if this scheduler does not lead."""
        if self._service is None:
            return {"ready": False, "degraded": self._failure, "version": __version__}
        return {**self._service.inspector.report(), **_process_facts()}

    async def retire(self) -> None:
        """Save the state and stop the embedded Redis; called before the actor is killed."""
        if self._service is not None:
            await self._service.term.end()
        if self._redis is not None:
            await asyncio.to_thread(self._redis.stop)
        flush_lines()

    async def started(self) -> SchedulerService:
        """Return the service that leads; start a service if there is none."""
        if self._leading is not None:
            return self._leading
        if self._starting is None or self._starting.done():  # done: the last start failed
            self._starting = asyncio.create_task(self._start_service())
        return await asyncio.shield(self._starting)

    async def _start_service(self, above: Epoch = 0) -> SchedulerService:
        try:
            service = self._service = await self._make_service()
            if self._listener is not None:
                service.connected = self._listener.peers
            await service.term.begin(above)
        except JustitiaError as error:
            self._service = None
            self._failure = str(error)
            raise
        self._leading = service
        return service

    async def _start_listening(self) -> Offer:
        keyring, name = Keyring(), self._config.scheduler_name
        keyring.add(self._key)
        serve = {method: self._handler_of(method) for method in SCHEDULER_METHODS}
        section = self._config.transport
        listener = self._listener = await listen(
            section,
            name,
            keyring,
            SCHEDULER_METHODS,
            serve,
            on_lost=self._peer_lost,
            on_crashed=self._peer_crashed,
        )
        if self._service is not None:
            self._service.connected = listener.peers
        return Offer(listener.address, name, self._key)

    def _handler_of(self, method: str) -> Callable[..., Awaitable[Any]]:
        """Return the handler of a method, which waits until a service leads."""

        async def serve_method(_: Caller, *arguments: Any) -> Any:
            service = self._leading or await self.started()
            return await getattr(service, method)(*arguments)

        return serve_method

    def _peer_lost(self, peer: Peer) -> None:
        if self._leading is not None and peer.role == "replica":
            self._leading.replica_disconnected(peer.name)

    async def _peer_crashed(self, peer: Peer) -> None:
        if peer.role == "replica":
            service = self._leading or await self.started()
            await service.replica_crashed(peer.name)

    async def _make_service(self) -> SchedulerService:
        if self._redis is not None:
            await asyncio.to_thread(self._redis.start)
        actor = ray.get_runtime_context().get_actor_id() if ray.is_initialized() else None
        leader = LeaderRecord(self._config.scheduler.namespace, actor or "", __version__)
        term = Term(
            self._config,
            scheduler_store(self._config, leader),
            self._step_down,
            None if self._redis is None else self._redis.start,
            SteadyClock(elapsed),
            self._start_new_term,
            self._ray_metrics,
        )
        return SchedulerService(term)

    def _start_new_term(self, above: Epoch) -> None:
        """Start a new term with a higher epoch, as the store has lost one that callers know."""
        before, self._leading = self._leading, None
        self._starting = asyncio.get_running_loop().create_task(
            self._replace_service(before, above)
        )

    async def _replace_service(
        self, before: SchedulerService | None, above: Epoch
    ) -> SchedulerService:
        if before is not None:
            await before.term.end()
        return await self._start_service(above)

    def _step_down(self, reason: str) -> None:
        """End this actor for good, so that Ray does not restart it."""
        log_event(logger, logging.WARNING, "scheduler.stands_down", reason=reason)
        if self._service is not None and self._service.term.has_successor:
            # After Ray has replaced this process, ending the actor would end the new process.
            os._exit(0)
        asyncio.get_running_loop().create_task(self._end_actor())

    async def _end_actor(self) -> None:
        await self.retire()
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
