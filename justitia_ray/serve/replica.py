"""A GPU replica: one engine, its leases, and the loop that pulls work for it."""

import asyncio
import itertools
import logging
import os
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Any

from ray import serve
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError

from justitia_ray.config import AppConfig, parse_app_config
from justitia_ray.core.entities import Outcome, ReplicaCapacity
from justitia_ray.errors import EngineError
from justitia_ray.protocol.mailbox import Cursor
from justitia_ray.protocol.messages import Pull, ReplicaMail
from justitia_ray.serve.coalesce import coalesce
from justitia_ray.serve.engine import Engine, EngineCall, EngineCapacity, ResponseHead
from justitia_ray.serve.engines import build_engine
from justitia_ray.serve.lease_desk import LeaseDesk
from justitia_ray.serve.scheduler_actor import get_current_scheduler

logger = logging.getLogger("ray.serve")  # Serve adds the replica and the request

_RETRY_S = 0.2
_REJOIN_S = 5.0
"""Serve stops a replica that is to leave within 2 s after its last call."""
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
        self._draining = False
        self._puller: asyncio.Task[None] | None = None
        self._config: AppConfig = parse_app_config(config)
        self._replica_id: str = serve.get_replica_context().replica_id.unique_id
        self._engine: Engine = await build_engine(self._config)
        self._capacity: EngineCapacity = await self._engine.start()
        self._desk = LeaseDesk(self._replica_id, self._engine, self._config.replica.lease_grace_s)
        self._scheduler: ActorHandle = await get_current_scheduler(self._config)
        self._epoch = 0
        self._numbers = itertools.count(1)
        self._cursor = Cursor()
        self._unused_since: float | None = None
        self._backlog_kv_tokens = 0
        self._puller = asyncio.get_running_loop().create_task(self._keep_pulling())

    async def unary(
        self, lease_id: str, epoch: int, path: str, headers: Mapping[str, str], body: bytes
    ) -> Answer:
        """Run a leased call to its end and return status, headers and body.

        Raises:
            UnknownLease: If the lease does not hold (any more).
            EngineError: If the engine died.
        """
        status, head, chunks = 0, {}, []
        async with aclosing(self._answer(lease_id, path, headers, body)) as items:
            async for item in items:
                if isinstance(item, ResponseHead):
                    status, head = item.status, dict(item.headers)
                else:
                    chunks.append(item)
        return status, head, b"".join(chunks)

    async def stream(
        self, lease_id: str, epoch: int, path: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncGenerator[tuple[int, dict[str, str]] | bytes]:
        """Run a leased call: yield (status, headers), then the body in joined chunks.

        Raises:
            UnknownLease: If the lease does not hold (any more).
            EngineError: If the engine died; nothing that looks like an end has been yielded then.
        """
        answer = self._answer(lease_id, path, headers, body)
        async with aclosing(coalesce(answer, self._config.replica.chunk_interval_s)) as items:
            async for item in items:
                if isinstance(item, ResponseHead):
                    yield item.status, dict(item.headers)
                else:
                    yield item

    def check_health(self) -> None:
        """Ask the engine and the pull loop; an unreachable scheduler is no reason to restart.

        Raises:
            EngineError: If either is dead.
        """
        self._engine.check()
        if self._puller is not None and self._puller.done() and not self._draining:
            raise EngineError("the pull loop has ended")

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return KV demand, for a policy that scales by it."""
        busy = self._capacity.kv_tokens - self._engine.free_kv_tokens()
        return {
            "backlog_kv_tokens": float(self._backlog_kv_tokens),
            "busy_kv_tokens": float(busy),
            "kv_capacity": float(self._capacity.kv_tokens),
        }

    async def __del__(self) -> None:
        """Serve calls this when nothing runs any more: leave the scheduler and stop the engine."""
        self._draining = True
        if self._puller is None:  # shut down while its engine was loading: the process is to go
            return
        self._puller.cancel()
        with suppress(asyncio.CancelledError, RayActorError):
            await self._puller
        with suppress(RayActorError, TimeoutError):
            await asyncio.wait_for(self._scheduler.leave.remote(self._replica_id), 2.0)
        await self._engine.stop()

    async def _answer(
        self, lease_id: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncGenerator[ResponseHead | bytes]:
        status = 0
        try:
            async with self._desk.hold(lease_id) as lease:
                call = EngineCall(lease_id, lease.priority, path, headers, body)
                async with aclosing(self._engine.call(call)) as items:
                    async for item in items:
                        if isinstance(item, ResponseHead):
                            status = item.status
                        yield item
                lease.outcome = Outcome.FINISHED if status < 400 else Outcome.FAILED
        except EngineError as error:
            self._engine_died(error)
            raise

    # --- pulling

    async def _keep_pulling(self) -> None:
        """Report and ask for work for ever; a newer pull releases the one before it."""
        pulls: set[asyncio.Task[bool]] = set()
        section = self._config.replica
        loop = asyncio.get_running_loop()
        while True:
            pulled_at = loop.time()
            pull = asyncio.create_task(self._pull())
            pulls.add(pull)
            pull.add_done_callback(pulls.discard)
            news = asyncio.create_task(self._desk.news.wait())
            try:
                await asyncio.wait(
                    [pull, news],
                    timeout=section.report_interval_s if self._desk.held else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                news.cancel()
            if not pull.done():
                await asyncio.sleep(max(0.0, pulled_at + section.pull_interval_s - loop.time()))
            elif not pull.result():
                await asyncio.sleep(_RETRY_S)
            self._notice_dead_engine()

    async def _pull(self) -> bool:
        """Pull once; return whether the scheduler could be reached."""
        progress, finished = self._desk.report()
        pull = Pull(
            replica_id=self._replica_id,
            epoch=self._epoch,
            number=next(self._numbers),
            ack=self._cursor.ack,
            capacity=ReplicaCapacity(
                self._capacity.kv_tokens, self._capacity.block_size, self._capacity.max_num_seqs
            ),
            free_kv_tokens=self._engine.free_kv_tokens(),
            progress=progress,
            finished=finished,
            preemptions=self._engine.preemptions(),
            wait_s=self._config.replica.heartbeat_s,
            draining=self._draining,
        )
        try:
            mail: ReplicaMail = await self._scheduler.pull.remote(pull)
        except RayError as error:
            if not isinstance(error, RayActorError):  # that one is only being started again
                logger.error("scheduler.call_failed call=pull error=%s", error)
            return False
        if mail.epoch != pull.epoch:
            self._take_epoch(mail.epoch)
            return True
        if mail.epoch == self._epoch:  # another scheduler may have taken office meanwhile
            self._desk.confirm(finished)
            self._desk.read(self._cursor.fresh(mail.messages))
            self._backlog_kv_tokens = mail.backlog_kv_tokens
            await self._rejoin_if_unused(mail.draining)
        return True

    async def _rejoin_if_unused(self, told_to_drain: bool) -> None:
        """Begin anew if this replica is taken for one that leaves, and Serve lets it be.

        An ingress reports a replica gone that Serve has not told it of in time. Serve stops one
        that really leaves as soon as nothing runs on it.
        """
        now = time.monotonic()
        if not told_to_drain or self._draining or self._desk.held:
            self._unused_since = None
        elif self._unused_since is None:
            self._unused_since = now
        elif now - self._unused_since >= _REJOIN_S:
            self._unused_since = None
            logger.warning("replica.rejoins")
            with suppress(RayError):
                await self._scheduler.leave.remote(self._replica_id)

    def _take_epoch(self, epoch: int) -> None:
        """Report to a new scheduler from the start; one of a lower epoch is not listened to."""
        if epoch > self._epoch:
            self._epoch = epoch
            self._cursor.reset()
            self._desk.report_all_again()
            self._desk.news.set()

    # --- death of the engine

    def _notice_dead_engine(self) -> None:
        try:
            self._engine.check()
        except EngineError as error:
            self._engine_died(error)

    def _engine_died(self, error: EngineError) -> None:
        """Leave the process, once callers were told and the scheduler has the last report."""
        if not self._draining:
            self._draining = True
            logger.error("replica.engine_died %s", error)
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, os._exit, 1)
