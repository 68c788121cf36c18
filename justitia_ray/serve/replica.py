"""A GPU replica: one engine, and the calls that run on it under leases."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Any

from ray import serve
from ray.exceptions import RayActorError

from justitia_ray.config import AppConfig, parse_app_config
from justitia_ray.core.entities import Outcome
from justitia_ray.errors import EngineError
from justitia_ray.observability.log_events import log_event
from justitia_ray.observability.replica_metrics import ReplicaMetrics
from justitia_ray.protocol.headers import LEASED_HEADER, RAN_HEADER
from justitia_ray.serve.coalesce import coalesce
from justitia_ray.serve.continuation import PackedPart, Resume, in_parts, left_out, packed
from justitia_ray.serve.engine import (
    AsideCall,
    Engine,
    EngineCall,
    EngineCapacity,
    Output,
    ResponseHead,
)
from justitia_ray.serve.engines import build_engine
from justitia_ray.serve.examination import examine_replica
from justitia_ray.serve.exporter import Exporter, new_measures
from justitia_ray.serve.lease_desk import LeaseDesk
from justitia_ray.serve.puller import Puller
from justitia_ray.serve.ray_metrics import RayMetrics
from justitia_ray.serve.returning_handle import ReturningHandle
from justitia_ray.serve.scheduler_actor import get_current_scheduler

logger = logging.getLogger("ray.serve")  # Serve adds the replica and the request

_LAST_WORDS_S = 2.0
"""How long the callers of a dead engine have to hear of it before the process leaves."""

Answer = tuple[int, dict[str, str], bytes]


class Replica:
    """Serve deployment: takes payloads by lease, pulls leases from the scheduler."""

    async def __init__(self, config: dict[str, Any]) -> None:  # type: ignore[misc]  # Serve awaits it
        """Start the engine, then pull.

        Args:
            config: `AppConfig` as a dict.
        """
        self._pulling: asyncio.Task[None] | None = None
        self._config: AppConfig = parse_app_config(config)
        self._replica_id: str = serve.get_replica_context().replica_id.unique_id
        self._engine: Engine = await build_engine(self._config)
        self._capacity: EngineCapacity = await self._engine.start()
        self._desk = LeaseDesk(self._replica_id, self._engine, self._config.replica.lease_grace_s)
        self._puller = Puller(
            self._replica_id,
            ReturningHandle(await get_current_scheduler(self._config)),
            self._desk,
            self._engine,
            self._capacity,
            self._config.replica,
            self._engine_died,
        )
        loop = asyncio.get_running_loop()
        self._pulling = loop.create_task(self._puller.run())
        self._exporting: asyncio.Task[None] | None = None
        if self._config.metrics.enabled:
            measures = new_measures(self._config, "replica", self._replica_id)
            self._metrics = ReplicaMetrics(measures, self._capacity.kv_tokens)
            interval_s = self._config.metrics.interval_s
            exporter = Exporter(measures, self._look, RayMetrics(), interval_s)
            self._exporting = loop.create_task(exporter.run())

    async def unary(
        self, lease_id: str, epoch: int, path: str, headers: Mapping[str, str], body: bytes
    ) -> Answer:
        """Run a leased call to its end and return status, headers and body.

        Raises:
            UnknownLease: If the lease does not hold (any more).
            EngineError: If the engine died.
        """
        clock = asyncio.get_running_loop().time
        arrived_at, status, head, chunks = clock(), 0, {}, []
        lease = self._desk.leases().get(lease_id)
        leased_at = arrived_at if lease is None else lease.armed_at
        async with aclosing(self._answer(lease_id, path, headers, body)) as items:
            async for item in items:
                if isinstance(item, ResponseHead):
                    status, head = item.status, dict(item.headers)
                else:
                    chunks.append(item)
        ended_at = clock()
        head[RAN_HEADER] = f"{ended_at - arrived_at:.4f}"
        head[LEASED_HEADER] = f"{ended_at - leased_at:.4f}"
        return status, head, b"".join(chunks)

    async def stream(
        self,
        lease_id: str,
        epoch: int,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        resume: Resume | None = None,
    ) -> AsyncGenerator[tuple[int, dict[str, str]] | PackedPart]:
        """Run a leased call: yield (status, headers), then the body in joined parts.

        Args:
            lease_id: The lease.
            epoch: The scheduler's.
            path: Path of the OpenAI surface.
            headers: Request headers.
            body: JSON request body.
            resume: Where an earlier attempt was cut, if there was one: the body goes on there.

        Raises:
            CannotContinue: If this engine's answer does not begin with what the caller has.
            UnknownLease: If the lease does not hold (any more).
            EngineError: If the engine died; nothing that looks like an end has been yielded then.
        """
        earlier = () if resume is None else resume.outputs
        answer = self._answer(lease_id, path, headers, body, earlier)
        parts = in_parts(answer, self._engine, lease_id)
        if resume is not None:
            parts = left_out(parts, resume)
        async with aclosing(coalesce(parts, self._config.replica.chunk_interval_s)) as items:
            async for item in items:
                if isinstance(item, ResponseHead):
                    yield item.status, dict(item.headers)
                else:
                    yield packed(item)

    async def aside(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Answer a call that needs no lease, e.g. `/tokenize`.

        Raises:
            EngineError: If the engine died.
        """
        try:
            head, whole = await self._engine.aside(AsideCall(path, headers, body))
        except EngineError as error:
            self._engine_died(error)
            raise
        return head.status, dict(head.headers), whole

    async def paths(self) -> frozenset[str]:
        """Return the paths to which the engine with its model has an answer."""
        return self._engine.paths()

    def check_health(self) -> None:
        """Ask the engine and the pull loop; an unreachable scheduler is no reason to restart.

        Raises:
            EngineError: If either is dead.
        """
        self._engine.check()
        if self._pulling is not None and self._pulling.done() and not self._puller.draining:
            raise EngineError("the pull loop has ended")

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return KV demand, for a policy that scales by it."""
        busy = self._capacity.kv_tokens - self._engine.free_kv_tokens()
        return {
            "backlog_kv_tokens": float(self._puller.backlog_kv_tokens),
            "busy_kv_tokens": float(busy),
            "kv_capacity": float(self._capacity.kv_tokens),
        }

    async def examine(self) -> dict[str, Any]:
        """Return what this replica says of itself when it is examined."""
        return examine_replica(self._puller, self._desk, self._engine, self._capacity)

    async def __del__(self) -> None:
        """Serve calls this when nothing runs any more: leave the scheduler and stop the engine."""
        if self._pulling is None:  # shut down while its engine was loading: the process is to go
            return
        self._puller.draining = True
        if self._exporting is not None:
            self._exporting.cancel()
        self._pulling.cancel()
        with suppress(asyncio.CancelledError, RayActorError):
            await self._pulling
        await self._puller.leave()
        await self._engine.stop()

    def _look(self) -> None:
        """Tell what there is now."""
        self._metrics.look(
            free_kv_tokens=self._engine.free_kv_tokens(),
            held_leases=self._desk.held,
            preemptions=self._engine.preemptions(),
            prompt_tokens=self._desk.prompt_tokens,
            output_tokens=self._desk.output_tokens,
        )

    async def _answer(
        self,
        lease_id: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        earlier: tuple[Output, ...] = (),
    ) -> AsyncGenerator[ResponseHead | bytes]:
        status = 0
        try:
            async with self._desk.hold(lease_id) as lease:
                call = EngineCall(lease_id, lease.priority, path, headers, body, earlier)
                async with aclosing(self._engine.call(call)) as items:
                    async for item in items:
                        if isinstance(item, ResponseHead):
                            status = item.status
                        yield item
                lease.outcome = Outcome.FINISHED if status < 400 else Outcome.FAILED
        except EngineError as error:
            self._engine_died(error)
            raise

    # --- death of the engine

    def _engine_died(self, error: EngineError) -> None:
        """Leave the process, once callers were told and the scheduler has the last report."""
        if not self._puller.draining:
            self._puller.draining = True
            log_event(logger, logging.ERROR, "replica.engine_died", reason=str(error))
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, os._exit, 1)
