"""Named, detached Ray actor that runs the accounts of an application's quotas."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import ray

from justitia_ray import __version__
from justitia_ray.accounts.messages import Answer, Exchange
from justitia_ray.config import AppConfig
from justitia_ray.errors import JustitiaError
from justitia_ray.observability.log_events import flush_lines, log_event, write_json_lines
from justitia_ray.serve.accounts.service import AccountsService
from justitia_ray.serve.stores import accounts_server, accounts_store
from justitia_ray.store.leader import LeaderRecord
from justitia_ray.units import Epoch

logger = logging.getLogger(__name__)


class AccountsActor:
    """Ray actor that runs the quota accounts with their store; it retries a failed start."""

    def __init__(self, config: dict[str, Any]) -> None:
        write_json_lines()
        self._config = AppConfig.parse(config)
        self._redis = accounts_server(self._config)
        self._service: AccountsService | None = None
        self._starting: asyncio.Task[AccountsService] | None = None
        self._idle: asyncio.Task[None] | None = None

    async def configure(self, tenants: Mapping[str, Any]) -> Epoch:
        return await (await self._leading_service()).configure(tenants)

    async def exchange(self, told: Exchange) -> Answer:
        return await (await self._leading_service()).exchange(told)

    async def version(self) -> str:
        """Return the version of the `justitia_ray` package in the actor's process."""
        return __version__

    async def status(self) -> dict[str, Any]:
        if self._service is None:
            return {"ready": False, "degraded": "starting", "epoch": 0}
        return self._service.status() | {"version": __version__}

    async def retire(self) -> None:
        """Save usage and quota claims, and stop the Redis; called before the actor is killed."""
        if self._service is not None:
            await self._service.end()
        if self._redis is not None:
            await asyncio.to_thread(self._redis.stop)
        flush_lines()

    async def _leading_service(self) -> AccountsService:
        if self._service is not None:
            return self._service
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start_service())
        return await asyncio.shield(self._starting)

    async def _start_service(self) -> AccountsService:
        service = await self._make_service()
        await service.begin()
        self._service = service
        self._idle = asyncio.create_task(self._end_when_abandoned(service))
        return service

    async def _make_service(self) -> AccountsService:
        if self._redis is not None:
            await asyncio.to_thread(self._redis.start)
        leader = LeaderRecord(
            self._config.scheduler.namespace,
            ray.get_runtime_context().get_actor_id() or "",
            __version__,
        )
        return AccountsService(
            accounts_store(self._config, leader),
            self._step_down,
            None if self._redis is None else self._redis.start,
        )

    async def _end_when_abandoned(self, service: AccountsService) -> None:
        limit_s, idle_s = self._config.scheduler.abandoned_s, 0.0
        while idle_s < limit_s:
            await asyncio.sleep(limit_s - idle_s)
            idle_s = service.idle_s()
        self._step_down("no call for too long")

    def _step_down(self, reason: str) -> None:
        """End this actor for good; a scheduler that needs the accounts then starts a new one."""
        log_event(logger, logging.WARNING, "accounts.step_down", reason=reason)
        asyncio.get_running_loop().create_task(self._end_process())

    async def _end_process(self) -> None:
        try:
            await self.retire()
        except JustitiaError as error:
            log_event(logger, logging.WARNING, "accounts.ended_unsaved", reason=str(error))
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
