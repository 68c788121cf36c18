"""The baseline of scripts/bench_serve: the same HTTP application and engines, nothing between them.

The ingress calls the Replica deployment through Serve's own router (power of two choices): no
scheduler, no lease, no queue of ours; what the engine cannot run yet waits inside it. Everything
else is the real thing, inherited: HTTP surface, body parsing, token counts, calls in a fresh
context, cancellation, coalesced streams. What is measured against it is thus the cost of the queue.
Not for serving: first come, first served.
"""

import json
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle

from justitia_ray.config import AppConfig, parse_app_config
from justitia_ray.core.actions import Grant
from justitia_ray.protocol.inference_body import InferenceBody, output_bound
from justitia_ray.serve.continuation import Part
from justitia_ray.serve.dispatcher import Dispatcher
from justitia_ray.serve.engine import EngineCall, Output, ResponseHead
from justitia_ray.serve.engines import build_engine
from justitia_ray.serve.estimates import Estimates
from justitia_ray.serve.gateway import Gateway
from justitia_ray.serve.http_app import build_http_app
from justitia_ray.serve.ingress import Ingress
from justitia_ray.serve.models import ServedModel, ServedModels
from justitia_ray.serve.replica import Replica
from justitia_ray.serve.replica_calls import Answer, ReplicaCalls, StreamItem
from justitia_ray.serve.scheduler_calls import SchedulerCalls
from justitia_ray.serve.token_counter import TokenCounter, load_token_counter

_ANY_REPLICA = ""
"""As a session id: Serve's router chooses."""
_UNBOUNDED = 100_000


class DirectGateway(Gateway):
    """Sends each inference to whichever replica Serve picks, at once."""

    def __init__(self, config: AppConfig, calls: ReplicaCalls, counter: TokenCounter) -> None:
        """Build a gateway whose dispatcher and estimates are never started, nor asked.

        Args:
            config: The application's arguments.
            calls: To the Replica deployment.
            counter: Of prompt tokens.
        """
        section = config.ingress
        idle = Dispatcher(
            None, lambda _: None, _nothing, section.max_outstanding, section.submit_interval_s
        )
        super().__init__(config, idle, calls, Estimates(None, config.prediction), counter)
        self._counter = counter

    async def unary(self, path: str, headers: Mapping[str, str], body: InferenceBody) -> Answer:
        """Run one inference and return its whole answer; a lost replica is an error."""
        await self._check_size(body)
        return await self._calls.unary(_grant(), 0, path, json.dumps(body.fields).encode())

    async def stream(
        self, path: str, headers: Mapping[str, str], body: InferenceBody
    ) -> AsyncGenerator[StreamItem]:
        """Run one inference: yield (status, headers), then chunks."""
        await self._check_size(body)
        items = self._calls.stream(_grant(), 0, path, json.dumps(body.fields).encode())
        async with aclosing(items):
            async for item in items:
                yield item.body if isinstance(item, Part) else item

    async def _check_size(self, body: InferenceBody) -> None:
        size = await self._counter.size(body)
        output_bound(body, size.longest_tokens, self.max_model_len)


class DirectReplica(Replica):
    """An engine that runs whatever it is sent."""

    async def __init__(self, config: dict[str, Any]) -> None:  # type: ignore[misc]  # Serve awaits it
        """Start the engine.

        Args:
            config: `AppConfig` as a dict.
        """
        self._config = parse_app_config(config)
        self._engine = await build_engine(self._config)
        self._capacity = await self._engine.start()

    def check_health(self) -> None:
        """Ask the engine.

        Raises:
            EngineError: If it is dead.
        """
        self._engine.check()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return nothing: there is no queue to scale by."""
        return {}

    async def __del__(self) -> None:
        """Stop the engine."""
        await self._engine.stop()

    async def _answer(
        self,
        lease_id: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        earlier: tuple[Output, ...] = (),
    ) -> AsyncGenerator[ResponseHead | bytes]:
        call = EngineCall(lease_id, 0, path, headers, body, earlier)
        try:
            async with aclosing(self._engine.call(call)) as items:
                async for item in items:
                    yield item
        finally:
            self._engine.release(lease_id)


class DirectIngress(Ingress):
    """The HTTP side, without a scheduler to talk to."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: dict[str, Any], replicas: DeploymentHandle
    ) -> None:
        """Load the token counter.

        Args:
            config: `AppConfig` as a dict.
            replicas: Handle of the DirectReplica deployment.
        """
        parsed = parse_app_config(config)
        self._counter = load_token_counter(parsed)
        gateway = DirectGateway(parsed, ReplicaCalls(replicas), self._counter)
        model = ServedModel(parsed, gateway, _no_scheduler())
        self._http_app = build_http_app(ServedModels([model]))

    async def reconfigure(self, user_config: dict[str, Any] | None) -> None:
        """Take no settings: there is nothing to schedule."""

    async def __del__(self) -> None:
        """Serve calls this when nothing runs any more."""
        self._counter.close()


def build(args: dict[str, Any]) -> Application:
    """Return the baseline for the arguments of `justitia_ray.serve.app:build`.

    Raises:
        ConfigError: If a key is unknown or a value is not allowed.
    """
    values = parse_app_config(args).model_dump()
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


def _grant() -> Grant:
    """Return what stands for a lease: a name under which the engine counts tokens."""
    return Grant("", "", uuid.uuid4().hex, _ANY_REPLICA, 0, 0, 0.0)


def _no_scheduler() -> SchedulerCalls:
    async def unknown(application_id: str) -> None:
        return None

    async def untouched(application_id: str) -> bool:
        return False

    async def status(applications: int) -> dict[str, Any]:
        return {"ready": True, "degraded": None, "replicas": {"any": {}}}

    return SchedulerCalls(unknown, untouched, untouched, status)


async def _nothing() -> None:
    return None
