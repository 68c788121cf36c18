"""Replica deployment: one engine, and the leased calls that run on it."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from ray import serve
from ray.exceptions import RayActorError

from justitia_ray.config import AppConfig
from justitia_ray.core.entities import FailureCause, Outcome
from justitia_ray.core.prefill_costs import MeasuredPrefill
from justitia_ray.errors import EngineError
from justitia_ray.observability.call_traces import EngineTracer
from justitia_ray.observability.log_events import log_event
from justitia_ray.observability.part_metrics import ReplicaMetrics
from justitia_ray.observability.trace_context import TRACEPARENT
from justitia_ray.protocol.endpoints import LEASED_HEADER, RAN_HEADER, TENANT_HEADER
from justitia_ray.protocol.engine import (
    Answer,
    Engine,
    EngineCall,
    EngineCapacity,
    Output,
    ResponseHead,
)
from justitia_ray.protocol.stream_parts import Part, Resume, in_parts, without_delivered
from justitia_ray.serve.ray_metrics import Exporter, RayMetrics, new_measures
from justitia_ray.serve.replica.coalesce import coalesce
from justitia_ray.serve.replica.crash_watch import CrashWatch
from justitia_ray.serve.replica.engine_watch import EngineWatch
from justitia_ray.serve.replica.lease_table import LeaseTable
from justitia_ray.serve.replica.puller import Puller
from justitia_ray.serve.replica.stalls import StallWatch
from justitia_ray.serve.replica.start_deadline import start_deadline
from justitia_ray.serve.scheduler.handle import SchedulerLink, get_current_scheduler
from justitia_ray.serve.span_exporter import start_span_exporter
from justitia_ray.serve.transport.endpoint import dialer, listen
from justitia_ray.serve.transport.handshake import Keyring, Peer
from justitia_ray.serve.transport.listener import Caller, Listener, Serve
from justitia_ray.serve.transport.methods import REPLICA_METHODS, SCHEDULER_METHODS
from justitia_ray.units import Seconds, Tokens

if TYPE_CHECKING:
    from justitia_ray.serve.replica.call_holds import CallHolds

logger = logging.getLogger("ray.serve")  # Serve's logger adds replica and request id to lines.

_LAST_WORDS_S = 2.0
"""Seconds between a dead engine's error to callers and the end of the process."""
_CALLERS_WAIT_S = 3.0
"""Maximum seconds for which a call's error waits until the scheduler knows of the engine's failure.
Otherwise the call could kill another engine.
"""
_SCHEDULER_WAIT_S = 10.0
"""Maximum seconds until the process ends even if the scheduler has not received its engine's
failure.
"""


class EngineReplica:
    """Serve deployment of a replica: fetches leases, receives payloads, runs them in its engine.

    Ingresses call `unary`, `stream` and `inspect` over their own connections, the other methods
    over Serve's handle.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: dict[str, Any], build_engine: Callable[[AppConfig], Awaitable[Engine]]
    ) -> None:
        """Start the engine, then start to pull leases.

        Args:
            config: `AppConfig` as a dict.
            build_engine: Creates the configured engine.
        """
        self._pulling: asyncio.Task[None] | None = None
        self._listener: Listener | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._config: AppConfig = AppConfig.parse(config)
        self._replica_id: str = serve.get_replica_context().replica_id.unique_id
        with start_deadline(self._config.engine.start_timeout_s):
            self._engine: Engine = await build_engine(self._config)
            self._capacity: EngineCapacity = await self._engine.start()
            prefill: MeasuredPrefill | None = None
            if self._config.measures_prefill:
                from justitia_ray.serve.replica.prefill_plan import measure_prefill

                name = self._config.model.name
                prefill = await measure_prefill(self._engine, self._capacity, name)
        self._leases = LeaseTable(
            self._replica_id, self._engine, self._config.replica.lease_grace_s
        )
        self._spans = start_span_exporter(self._config, "replica", self._replica_id)
        self._tracer: EngineTracer | None = None
        if self._spans is not None:
            model = self._config.model.name
            self._tracer = EngineTracer(self._spans.export, model, self._replica_id)
        section, keyring, me = self._config.transport, Keyring(), Peer("replica", self._replica_id)
        dial = dialer(section, me, keyring, SCHEDULER_METHODS).dial
        self._crashes: CrashWatch | None = None
        if self._config.scheduler.engine_deaths_allowed:
            self._crashes = CrashWatch(me, section)
            self._crashes.start()
        on_offer = None if self._crashes is None else self._crashes.take_offer
        scheduler = await get_current_scheduler(self._config)
        self._scheduler = SchedulerLink(scheduler, keyring, dial, on_offer)
        await self._scheduler.connected()  # The link's dialer receives the key that ingresses use.
        serve_calls: dict[str, Serve] = {
            "unary": self.unary,
            "stream": self.stream,
            "inspect": self.inspect,
        }
        self._listener = await listen(
            section, self._replica_id, keyring, REPLICA_METHODS, serve_calls, log=logger
        )
        self._stalls = StallWatch(self._config.replica)
        self._holds = _call_holds() if self._capacity.holds_contexts else None
        self._puller = Puller(
            self._replica_id,
            self._scheduler,
            self._leases,
            self._engine,
            self._capacity,
            self._config.replica,
            self._engine_died,
            self._listener.address,
            self._stalls,
            prefill,
            self._holds,
        )
        loop = asyncio.get_running_loop()
        self._pulling = loop.create_task(self._puller.run())
        self._watching = self._watch_engine()
        self._exporter: Exporter | None = None
        if self._config.metrics.enabled:
            measures = new_measures(self._config, "replica", self._replica_id)
            memory = self._capacity.kv_tokens, self._capacity.host_kv_tokens
            self._metrics = ReplicaMetrics(measures, *memory)
            interval_s = self._config.metrics.interval_s
            self._exporter = Exporter(measures, self._set_gauges, RayMetrics(), interval_s)
            self._exporter.start()
        if (limit_s := self._config.replica.cache_fill_s) > 0:
            from justitia_ray.serve.replica.cache_fill import wait_until_filled

            await wait_until_filled(self._leases, self._capacity.kv_tokens, limit_s)

    async def unary(
        self, caller: Caller, lease_id: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Answer:
        """Run a leased call to its end and return status, headers and body.

        Raises:
            UnknownLease: If the lease is unknown or no longer valid.
            EngineError: If the engine died.
            StreamRefused: If the engine lives, and fails the call after its head.
        """
        clock = asyncio.get_running_loop().time
        arrived_at = clock()
        lease = self._leases.held_leases.get(lease_id)
        leased_at = arrived_at if lease is None else lease.armed_at
        answer = self._answer_leased(caller, lease_id, path, headers, body)
        items: list[Any] = [item async for item in answer]
        first, *chunks = items
        ended_at = clock()
        head = dict(first.headers)
        head[RAN_HEADER] = f"{ended_at - arrived_at:.4f}"
        head[LEASED_HEADER] = f"{ended_at - leased_at:.4f}"
        return first.status, head, b"".join(chunks)

    def stream(
        self,
        caller: Caller,
        lease_id: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        resume: Resume | None = None,
    ) -> AsyncGenerator[ResponseHead | Part]:
        """Run a leased call: yield its head, then the body in parts.

        Args:
            caller: The ingress.
            lease_id: The lease.
            path: Path of the OpenAI surface.
            headers: Request headers.
            body: JSON request body.
            resume: Position at which an earlier attempt was cut and the body continues; None
                without an earlier attempt.

        Raises:
            CannotContinue: If this engine's answer does not start with the part that the caller
                has.
            UnknownLease: If the lease is unknown or no longer valid.
            EngineError: If the engine died; the stream then does not look complete.
            StreamRefused: If the engine lives, and refuses or fails the call after its head.
        """
        earlier = () if resume is None else resume.outputs
        answer = self._answer_leased(caller, lease_id, path, headers, body, earlier)
        parts = in_parts(answer, self._engine, lease_id)
        if resume is not None:
            parts = without_delivered(parts, resume)
        return coalesce(parts, self._config.replica.chunk_interval_s)

    async def aside(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Answer a call that needs no lease, such as `/tokenize`.

        Raises:
            EngineError: If the engine died.
        """
        try:
            head, whole = await self._engine.answer_unscheduled(path, headers, body)
        except EngineError as error:
            self._engine_died(error)
            raise
        return head.status, dict(head.headers), whole

    async def paths(self) -> frozenset[str]:
        """Return the POST paths that the engine serves for its model."""
        return self._engine.paths()

    async def context(self) -> Tokens:
        """Return the maximum length of prompt plus output of one sequence, in tokens."""
        return self._capacity.max_model_len

    async def cache_block(self) -> Tokens:
        """Return the block size of the engine's prefix cache in tokens; 0: without prefix cache."""
        return self._capacity.block_size if self._capacity.caches_prefixes else 0

    def check_health(self) -> None:
        """Check the engine and the pull loop; an unreachable scheduler is no reason to fail.

        Raises:
            EngineError: If the engine is dead, or the pull loop has ended.
        """
        self._engine.check()
        if self._pulling is not None and self._pulling.done() and not self._puller.draining:
            raise EngineError("the pull loop has ended")

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the demand for KV memory in tokens, for an autoscaling policy of Ray Serve."""
        busy = self._capacity.kv_tokens - self._engine.free_kv_tokens()
        return {
            "backlog_kv_tokens": float(self._puller.backlog_kv_tokens),
            "busy_kv_tokens": float(busy),
            "kv_capacity": float(self._capacity.kv_tokens),
        }

    async def inspect(self, _: Caller) -> dict[str, Any]:
        """Return a `ReplicaReport` as a dict: leases, KV memory and the engine's trouble."""
        return self._puller.report().model_dump(mode="json")

    async def __del__(self) -> None:
        """Run the leased calls to their end, then leave the scheduler and stop the engine.

        Serve only counts the calls of its own handles and calls this method as soon as it has
        decided to stop the replica; `graceful_shutdown_timeout_s` later it ends the process.
        """
        # The replica was shut down while its engine was loading, so the process ends.
        if self._pulling is None:
            return
        self._puller.draining = True
        self._leases.news.set()
        await self._leases.until_empty()
        if self._exporter is not None:
            self._exporter.end()
        self._watching.cancel()
        self._pulling.cancel()
        with suppress(asyncio.CancelledError, RayActorError):
            await self._pulling
        await self._puller.leave()
        if self._listener is not None:
            await self._listener.stop()
        await self._scheduler.close()
        await self._engine.stop()
        if self._spans is not None:
            await self._spans.stop()
        if self._crashes is not None:
            await asyncio.to_thread(self._crashes.stop)

    def _watch_engine(self) -> asyncio.Task[None]:
        """Start to watch for stalls, which are reported to the scheduler as they begin and end."""
        on_change = self._leases.news.set
        watch = EngineWatch(self._engine, self._stalls, on_change, self._engine_died)
        return asyncio.get_running_loop().create_task(watch.run())

    def _set_gauges(self) -> None:
        self._metrics.measure(
            free_kv_tokens=self._engine.free_kv_tokens(),
            held_leases=len(self._leases.held_leases),
            stalled_s=self._stalls.stalled_s,
            preemptions=self._engine.preemptions(),
            prompt_tokens=self._leases.prompt_tokens,
            output_tokens=self._leases.output_tokens,
            cached_tokens=self._leases.cached_tokens,
            kept=None if self._holds is None else self._engine.kept_kv(),
        )

    async def _answer_leased(
        self,
        caller: Caller,
        lease_id: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        earlier: tuple[Output, ...] = (),
    ) -> AsyncGenerator[ResponseHead | bytes]:
        status = 0
        try:
            async with self._leases.hold_lease(lease_id) as lease:
                span = None
                if self._tracer is not None:
                    span = self._tracer.begin(path, lease_id, headers)
                    if span is not None:
                        headers = {**headers, TRACEPARENT: span.context.traceparent}
                # The ingress sets the tenant header, and never passes on a caller's own header.
                tenant = headers.get(TENANT_HEADER, "")
                headers = {name: headers[name] for name in headers if name != TENANT_HEADER}
                hold = None if self._holds is None else self._holds.take(lease_id)
                call = EngineCall(
                    lease_id, lease.priority, path, headers, body, earlier, tenant, hold
                )
                try:
                    async with aclosing(self._engine.call(call)) as items:
                        async for item in items:
                            if isinstance(item, ResponseHead):
                                status = item.status
                            yield item
                except (asyncio.CancelledError, GeneratorExit):
                    if caller.is_lost:
                        # Without an outcome, the call may run again on another replica.
                        lease.outcome = None
                    raise
                except Exception:
                    lease.outcome = Outcome.FAILED  # no outcome if the engine died
                    raise
                finally:
                    if self._tracer is not None and span is not None:
                        used = self._engine.progress(lease_id)
                        self._tracer.end(span, status, used)
                lease.outcome = Outcome.FINISHED if status < 400 else Outcome.FAILED
        except EngineError as error:
            self._engine_died(error)
            await self._await_failure_report(_CALLERS_WAIT_S)
            raise

    # --- failure of the engine

    def _engine_died(self, error: EngineError) -> None:
        """Report the engine's failure; end the process once scheduler and callers know it.

        A draining replica stays until it holds no more leases, as it does without a failure.
        """
        if self._leases.failure is not None:
            return
        by_itself = self._engine.died_by_itself()
        cause = FailureCause.CRASH if by_itself else FailureCause.KILL
        self._leases.note_engine_failed(cause)
        reason = str(error)
        log_event(logger, logging.ERROR, "replica.engine_died", reason=reason, cause=cause.value)
        if not self._puller.draining:
            self._puller.draining = True
            self._leaving = asyncio.get_running_loop().create_task(self._leave_process())

    async def _leave_process(self) -> None:
        await self._await_failure_report(_SCHEDULER_WAIT_S)
        await asyncio.sleep(_LAST_WORDS_S)
        os._exit(1)

    async def _await_failure_report(self, within_s: Seconds) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._leases.failure_told.wait()


def _call_holds() -> "CallHolds":
    from justitia_ray.serve.replica.call_holds import CallHolds

    return CallHolds()
