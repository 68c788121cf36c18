"""The processes of a history and the real parts in them: schedulers, replicas, ingresses."""

import asyncio
import random
from collections.abc import Callable
from typing import Any, cast

from ray.exceptions import RayError

from justitia_ray.config import AppConfig, parse_scheduling_config
from justitia_ray.serve.engine import EngineCapacity
from justitia_ray.serve.histories.handles import NobodyHandle, ReplicaHandle, SchedulerHandle
from justitia_ray.serve.histories.parts import Parts, WatchedEngine
from justitia_ray.serve.histories.process import Process
from justitia_ray.serve.histories.redis_memory import RedisMemory, StoreClient
from justitia_ray.serve.histories.witness import Witness, tags_of
from justitia_ray.serve.model_queue import ModelQueue
from justitia_ray.serve.replica import Replica
from justitia_ray.serve.returning_handle import ReturningHandle
from justitia_ray.serve.steady_clock import SteadyClock
from justitia_ray.serve.token_counter import load_token_counter
from justitia_ray.store.scheduler_store import SchedulerStore
from justitia_ray.units import Epoch, ReplicaId, Seconds


class SchedulerHost:
    """A scheduler's process."""

    def __init__(
        self,
        config: AppConfig,
        parts: Parts,
        redis: RedisMemory,
        lots: random.Random,
        witness: Witness,
        on_stand_down: Callable[["SchedulerHost", str], None],
        on_outranked: Callable[["SchedulerHost", Epoch], None],
        wall_ahead_s: Seconds,
        above: Epoch,
    ) -> None:
        """Start to take office.

        Args:
            config: Of the application.
            parts: What it is made of.
            redis: What is stored.
            lots: For the store's delays.
            witness: Sees everything.
            on_stand_down: Told when this scheduler is not to go on.
            on_outranked: Told above which epoch another one has to take office in its place.
            wall_ahead_s: How far its wall clock is ahead of the loop's time.
            above: Its epoch is to be above this one.
        """
        loop = asyncio.get_running_loop()
        self.process = Process("scheduler")
        self.is_leaving = False
        self.wall_ahead_s = wall_ahead_s
        store = StoreClient(redis, lots, lambda: tags_of(self.answers.core))
        self.answers = self.process.run(
            lambda: parts.service(
                config,
                cast(SchedulerStore, store),
                lambda reason: on_stand_down(self, reason),
                clock=SteadyClock(loop.time, lambda: loop.time() + wall_ahead_s),
                begin_again=lambda heard: on_outranked(self, heard),
            )
        )
        self.answers.watch(config, witness, redis)
        self.process.start(self.answers.start(above))

    @property
    def in_charge(self) -> bool:
        """Whether it lives and takes calls."""
        return self.process.alive and not self.process.paused and self.answers.in_office


class ReplicaWithoutServe(Replica):
    """A replica as it is, but for how it is started and ended."""

    def __init__(
        self,
        config: AppConfig,
        replica_id: ReplicaId,
        engine: WatchedEngine,
        on_engine_died: Callable[[Exception], None],
    ) -> None:
        self._config = config
        self._replica_id = replica_id
        self._engine: WatchedEngine = engine
        self._on_engine_died = on_engine_died

    async def begin(self, parts: Parts, scheduler: SchedulerHandle, witness: Witness) -> None:
        """Start the engine, then pull."""
        self._capacity: EngineCapacity = await self._engine.start()
        grace_s = self._config.replica.lease_grace_s
        self.desk = self._desk = parts.desk(self._replica_id, self._engine, grace_s)
        self.puller = self._puller = parts.puller(
            self._replica_id,
            ReturningHandle(scheduler),
            self.desk,
            self._engine,
            self._capacity,
            self._config.replica,
            self._engine_died,
        )
        self.desk.witness, self.desk.puller = witness, self.puller
        self._pulling = asyncio.get_running_loop().create_task(self._puller.run())
        self._exporting = None

    async def leave(self) -> None:
        """Do what Serve lets a replica do before it is gone."""
        await super().__del__()

    def __del__(self) -> None:  # type: ignore[override]  # Serve awaits that one
        """Nothing: here the garbage collector calls it."""

    def _engine_died(self, error: Exception) -> None:
        if not self._puller.draining:
            self._puller.draining = True
            self._on_engine_died(error)


class ReplicaHost:
    """A replica's process."""

    def __init__(
        self,
        slot: int,
        replica_id: ReplicaId,
        config: AppConfig,
        witness: Witness,
        routed_at: Seconds,
    ) -> None:
        """Prepare; `begin` starts it.

        Args:
            slot: Its place; a successor has the same.
            replica_id: Its id, of its own.
            config: Of the application.
            witness: Sees everything.
            routed_at: From when on routers know it.
        """
        self.slot = slot
        self.replica_id = replica_id
        self.process = Process(f"replica-{slot}")
        self.routed_at = routed_at
        self.unrouted_at: Seconds | None = None
        self.draining = False
        fake = config.engine.fake
        self.engine = self.process.run(
            lambda: WatchedEngine(
                config.model.name,
                fake.kv_tokens,
                fake.block_size,
                fake.max_num_seqs,
                fake.max_model_len,
                fake.iteration_s,
            )
        )
        self.engine.witness, self.engine.replica_id = witness, replica_id
        self._witness = witness
        self._config = config
        self.answers: ReplicaWithoutServe

    def begin(
        self, parts: Parts, scheduler: SchedulerHandle, on_died: Callable[["ReplicaHost"], None]
    ) -> None:
        """Start the engine and pull."""
        self.answers = ReplicaWithoutServe(
            self._config, self.replica_id, self.engine, lambda error: on_died(self)
        )
        self.process.start(self.answers.begin(parts, scheduler, self._witness))

    @property
    def pulls(self) -> bool:
        """Whether it lives and takes part."""
        return self.process.alive and not self.process.paused


class IngressHost:
    """An ingress's process: its side of the queue, without HTTP."""

    def __init__(
        self,
        slot: int,
        config: AppConfig,
        parts: Parts,
        scheduler: SchedulerHandle,
        replicas: ReplicaHandle,
        nobody: NobodyHandle,
    ) -> None:
        self.slot = slot
        self.process = Process(f"ingress-{slot}")
        self.answers = self.process.run(
            lambda: ModelQueue(
                config,
                scheduler,
                replicas,
                nobody,
                load_token_counter(config),
                dispatcher=parts.dispatcher,
            )
        )
        self.process.run(self.answers.dispatcher.start)
        self.is_ready = False
        """Whether it takes connections: Serve configures an ingress before that."""

    async def configure(self, settings: dict[str, Any]) -> None:
        """Give it its settings, again until it has been able to pass them on."""
        while True:
            try:
                await self.answers.reconfigure(parse_scheduling_config(settings))
                break
            except RayError:
                await asyncio.sleep(0.2)
        self.is_ready = True
