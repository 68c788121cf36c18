"""The Ingress deployment: HTTP for everybody, the same surface over a Serve handle for Python."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.actor import ActorHandle
from ray.serve.handle import DeploymentHandle

from justitia_ray.app_args import AppArgs, PlacedModel, parse_app_args, parse_app_settings
from justitia_ray.errors import RequestError, shown_short
from justitia_ray.serve.asgi import call_asgi
from justitia_ray.serve.examination_calls import ExaminationCalls
from justitia_ray.serve.http_app import build_http_app
from justitia_ray.serve.model_queue import ModelQueue
from justitia_ray.serve.models import ServedModel, ServedModels
from justitia_ray.serve.opening import Opening
from justitia_ray.serve.openings import Openings
from justitia_ray.serve.predictor_calls import PredictorCalls
from justitia_ray.serve.ray_metrics import RayMetrics
from justitia_ray.serve.scheduler_actor import get_current_scheduler
from justitia_ray.serve.token_counter import load_token_counter
from justitia_ray.units import ApplicationId

Head = tuple[int, dict[str, str]]


class Ingress:
    """Serve deployment; `ingress_deployment` in `app` makes Serve build its HTTP application."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, args: dict[str, Any], parts: Sequence[tuple[DeploymentHandle, DeploymentHandle]]
    ) -> None:
        """Find the schedulers and begin to listen.

        Args:
            args: `AppArgs` as a dict.
            parts: Handles of the deployments of each model's engines and predictor, in the order of
                the arguments.
        """
        self._args: AppArgs = parse_app_args(args)
        placed = self._args.each_model()
        self._openings = self._openings_of(len(placed))
        schedulers = await asyncio.gather(*(get_current_scheduler(p.config) for p in placed))
        replica_id = serve.get_replica_context().replica_id.unique_id
        backend = RayMetrics()
        self._queues = [
            ModelQueue(
                place.config,
                scheduler,
                replicas,
                predictor,
                load_token_counter(place.config),
                opened_elsewhere=self._opened_elsewhere,
                replica_id=replica_id,
                backend=backend,
            )
            for place, scheduler, (replicas, predictor) in zip(
                placed, schedulers, parts, strict=True
            )
        ]
        self._http_app = build_http_app(self._served(placed, schedulers), self._openings)
        for queue in self._queues:
            queue.start()

    async def reconfigure(self, user_config: dict[str, Any] | None) -> None:
        """Take other scheduling settings while the application runs.

        Raises:
            ConfigError: If a setting is not allowed; those in force stay, of all models.
        """
        settings = parse_app_settings(user_config or {}).each_model(self._args.model_names)
        await asyncio.gather(
            *(queue.reconfigure(settings[queue.config.model.name]) for queue in self._queues)
        )

    async def call(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """Do what the same HTTP request would, and return status, headers and body."""
        head: Head = (500, {})
        chunks = []
        async with aclosing(self._answer(method, path, headers, body)) as items:
            async for item in items:
                if isinstance(item, bytes):
                    chunks.append(item)
                else:
                    head = item
        return (*head, b"".join(chunks))

    async def stream(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncGenerator[Head | bytes]:
        """Do what the same HTTP request would: yield (status, headers), then the body."""
        async with aclosing(self._answer(method, path, headers, body)) as items:
            async for item in items:
                yield item

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Return the HTTP application; Serve asks for it after the constructor."""
        return self._http_app

    async def __del__(self) -> None:
        """Serve calls this when nothing runs any more."""
        await asyncio.gather(*(queue.stop() for queue in self._queues))

    async def _answer(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncGenerator[Head | bytes]:
        names = {name.lower(): value for name, value in headers.items()}
        names |= {"content-length": str(len(body))}
        try:
            raw = [(n.encode("latin-1"), value.encode("latin-1")) for n, value in names.items()]
        except UnicodeEncodeError as error:
            raise RequestError(
                f"headers: {shown_short(error.object)} holds what HTTP headers cannot: only"
                " characters of Latin-1 are allowed"
            ) from None
        async with aclosing(call_asgi(self._http_app, path, raw, body, method=method)) as messages:
            async for message in messages:
                if message["type"] == "http.response.start":
                    pairs = message.get("headers", [])
                    yield message["status"], {k.decode(): v.decode() for k, v in pairs}
                elif message.get("body"):
                    yield message["body"]

    def _openings_of(self, models: int) -> Openings | None:
        section = self._args.scheduler
        if models == 1:
            return None  # an application is opened in its only queue, at once
        return Openings(section.application_idle_s, section.max_open_applications)

    def _opened_elsewhere(self, application_id: ApplicationId) -> Opening | None:
        if self._openings is None:
            return None
        return self._openings.get(application_id, asyncio.get_running_loop().time())

    def _served(
        self, placed: Sequence[PlacedModel], schedulers: Sequence[ActorHandle]
    ) -> ServedModels:
        app_name = serve.get_replica_context().app_name
        return ServedModels(
            [
                ServedModel(
                    place.config,
                    queue.gateway,
                    queue.scheduler_calls,
                    PredictorCalls(queue.predictor),
                    ExaminationCalls(place, app_name, scheduler, queue.calls, queue.dispatcher),
                )
                for place, queue, scheduler in zip(placed, self._queues, schedulers, strict=True)
            ]
        )
