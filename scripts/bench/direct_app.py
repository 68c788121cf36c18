"""Baseline of `scripts/bench_serve`: the same HTTP application and engines without the queue.

The ingress calls the Replica deployment through Serve's own router (power of two choices): there is
no scheduler, no lease and no queue; calls that the engine cannot run yet wait inside it. Everything
else is inherited: HTTP surface, body parsing, token counts, calls in a fresh context, cancellation.
The difference to this baseline is therefore the cost of the queue. Not for serving: calls run first
come, first served.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle

from justitia_ray.config import AppConfig, RecognitionSection
from justitia_ray.protocol.engine import Answer, EngineCall, ResponseHead
from justitia_ray.protocol.inference_body import InferenceBody, output_bound
from justitia_ray.serve.engines.factory import build_engine, load_prompt_counter
from justitia_ray.serve.ingress.attempts import Attempts
from justitia_ray.serve.ingress.deployment import Ingress
from justitia_ray.serve.ingress.door import DEFAULT_TENANT, Door
from justitia_ray.serve.ingress.estimates import Estimates
from justitia_ray.serve.ingress.gateway import Gateway
from justitia_ray.serve.ingress.http_app import build_http_app
from justitia_ray.serve.ingress.models import SchedulerCalls, ServedModel, ServedModels
from justitia_ray.serve.ingress.queue_client import QueueClient
from justitia_ray.serve.ingress.recognition import ApplicationFinder
from justitia_ray.serve.ingress.replica_calls import (
    ReplicaCalls,
    StreamItem,
    call_remote,
    end_task,
    in_fresh_context,
)
from justitia_ray.serve.ingress.request_context import RequestContext
from justitia_ray.serve.ingress.submission import ApplicationSpecCache
from justitia_ray.serve.ingress.token_counter import TokenCounter
from justitia_ray.serve.ingress.waiting_streams import StreamOutlooks
from justitia_ray.serve.replica.deployment import EngineReplica
from justitia_ray.units import ApplicationId

_HEADERS = {"content-type": "application/json"}
_QUEUED_CHUNKS = 64
_UNBOUNDED = 100_000


class DirectCalls(ReplicaCalls):
    """Calls to a replica that Serve's router chooses, over a deployment handle."""

    def __init__(self, replicas: DeploymentHandle) -> None:
        self._replicas = replicas
        self._streams = replicas.options(stream=True)

    async def whole(self, path: str, body: bytes) -> Answer:
        """Return the whole answer of a call; if cancelled, cancel the call at the replica."""
        answer: Answer = await call_remote(self._replicas, "whole", path, body)
        return answer

    async def parts(self, path: str, body: bytes) -> AsyncGenerator[StreamItem]:
        """Yield (status, headers), then the chunks of a call."""
        items: asyncio.Queue[StreamItem | Exception | None] = asyncio.Queue(_QUEUED_CHUNKS)

        async def pump_items() -> None:
            response = self._streams.parts.remote(path, body)
            try:
                async for item in response:
                    await items.put(item)
            except Exception as error:  # pass any error on to the reader
                await items.put(error)
                return
            finally:
                # Dropping the generator would not cancel the call at the replica.
                response.cancel()
            await items.put(None)

        task = in_fresh_context(pump_items())
        try:
            while (item := await items.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            await end_task(task)


class DirectGateway(Gateway):
    """Gateway whose inferences bypass the queue."""

    def __init__(self, config: AppConfig, calls: DirectCalls, counter: TokenCounter) -> None:
        """Build a gateway whose queue client and estimates are never started or used.

        Args:
            config: The application's arguments.
            calls: To the Replica deployment.
            counter: Of prompt tokens.
        """
        section = config.ingress
        idle = QueueClient(
            None, lambda _: None, _do_nothing, section.max_outstanding, section.submit_interval_s
        )
        specs = ApplicationSpecCache(0.0, 0)
        estimates = Estimates(None, config.prediction)
        outlooks = StreamOutlooks(_no_outlooks, config.ingress.keepalive_s)
        super().__init__(config, idle, calls, estimates, counter, specs, outlooks)
        self.attempts = DirectAttempts(self, calls, counter)


class DirectAttempts(Attempts):
    """Sends each inference at once to a replica of Serve's choice, without a queue."""

    def __init__(self, gateway: Gateway, calls: DirectCalls, counter: TokenCounter) -> None:
        self._gateway = gateway
        self._direct = calls
        self._counter = counter

    async def answer(self, path: str, context: RequestContext, body: InferenceBody) -> Answer:
        """Return the answer to one inference; a lost replica is an error."""
        await self._check_size(body)
        return await self._direct.whole(path, body.payload)

    async def stream(
        self,
        path: str,
        context: RequestContext,
        body: InferenceBody,
        on_submitted: Callable[[ApplicationId], None] = lambda application_id: None,
    ) -> AsyncGenerator[StreamItem]:
        """Yield (status, headers), then bytes of an inference; a lost replica is an error."""
        await self._check_size(body)
        async with aclosing(self._direct.parts(path, body.payload)) as items:
            async for item in items:
                yield item

    async def _check_size(self, body: InferenceBody) -> None:
        most = self._gateway.max_model_len
        size = body.size or await self._counter.prompt_size(body, "default", most)
        output_bound(body, size.longest_tokens, most)


class DirectReplica(EngineReplica):
    """Replica that runs every call it receives without a lease."""

    async def __init__(self, config: dict[str, Any]) -> None:  # type: ignore[misc]  # Serve awaits it
        self._config = AppConfig.parse(config)
        self._engine = await build_engine(self._config)
        self._capacity = await self._engine.start()

    def check_health(self) -> None:
        self._engine.check()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return no statistics, because there is no queue to scale by."""
        return {}

    async def __del__(self) -> None:
        await self._engine.stop()

    async def whole(self, path: str, body: bytes) -> Answer:
        """Run a call to its end and return status, headers and body."""
        status, headers, chunks = 200, dict[str, str](), list[bytes]()
        async for item in self._run_call(path, body):
            if isinstance(item, ResponseHead):
                status, headers = item.status, dict(item.headers)
            else:
                chunks.append(item)
        return status, headers, b"".join(chunks)

    async def parts(self, path: str, body: bytes) -> AsyncGenerator[StreamItem]:
        """Run a call; yield (status, headers), then its chunks."""
        async with aclosing(self._run_call(path, body)) as items:
            async for item in items:
                yield (item.status, dict(item.headers)) if isinstance(item, ResponseHead) else item

    async def _run_call(self, path: str, body: bytes) -> AsyncGenerator[ResponseHead | bytes]:
        name = uuid.uuid4().hex  # the engine counts progress by this id
        try:
            async with aclosing(
                self._engine.call(EngineCall(name, 0, path, _HEADERS, body))
            ) as run:
                async for item in run:
                    yield item
        finally:
            self._engine.release(name)


class DirectIngress(Ingress):
    """Ingress deployment without a connection to a scheduler."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: dict[str, Any], replicas: DeploymentHandle
    ) -> None:
        parsed = AppConfig.parse(config)
        self._counter = TokenCounter(load_prompt_counter(parsed))
        gateway = DirectGateway(parsed, DirectCalls(replicas), self._counter)
        nothing: Any = None
        model = ServedModel(parsed, gateway, _NoScheduler(), nothing, nothing)
        self._http_app = build_http_app(
            ServedModels([model]),
            ApplicationSpecCache(0.0, 0),
            Door(None, DEFAULT_TENANT),
            ApplicationFinder(RecognitionSection()),
        )

    async def reconfigure(self, user_config: dict[str, Any] | None) -> None:
        """Ignore the settings, because there is no scheduler to configure."""

    async def __del__(self) -> None:
        """Close the token counter; Serve calls this when the replica is idle."""
        self._counter.close()


def build(args: dict[str, Any]) -> Application:
    """Return the baseline without a queue, for the arguments of `justitia_ray.serve.app:build`.

    Raises:
        ConfigError: If a key is unknown or a value is not allowed.
    """
    values = AppConfig.parse(args).model_dump()
    replicas = serve.deployment(
        DirectReplica,
        name="Replica",
        max_ongoing_requests=_UNBOUNDED,
        logging_config={"enable_access_log": False},
    ).bind(values)
    ingress = serve.deployment(
        serve.ingress()(DirectIngress), name="Ingress", max_ongoing_requests=_UNBOUNDED
    )
    return ingress.bind(values, replicas)


class _NoScheduler(SchedulerCalls):
    """Scheduler stub without applications that is always ready."""

    def __init__(self) -> None:
        pass

    async def _answer_as_scheduler(
        self, method: str, *arguments: str | int | list[int] | None
    ) -> Any:
        if method == "status":
            return {"ready": True, "degraded": None, "replicas": {"any": {}}}
        return None


async def _do_nothing() -> None:
    return None


async def _no_outlooks(application_ids: tuple[ApplicationId, ...]) -> dict[str, Any]:
    return {}
