"""Ingress deployment: the HTTP application, also reachable by Serve handle from Python."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from justitia_ray.config import AppArgs, AppConfig, AppSettings, SchedulingConfig
from justitia_ray.core.actions import EndApplication
from justitia_ray.core.ended_by_owner import EndedByOwner
from justitia_ray.errors import RequestError, shown_short
from justitia_ray.observability.call_traces import CallTracer, Export
from justitia_ray.observability.measures import MetricsBackend
from justitia_ray.observability.part_metrics import IngressMetrics
from justitia_ray.observability.trace_context import ApplicationSampler
from justitia_ray.protocol.engine import Answer
from justitia_ray.protocol.inference_body import CountPrompt
from justitia_ray.serve.asgi import call_asgi
from justitia_ray.serve.front import raise_descriptor_limit
from justitia_ray.serve.http_options import read_request_limit
from justitia_ray.serve.ingress.access_keeper import AccessKeeper
from justitia_ray.serve.ingress.body_room import give_memory_back
from justitia_ray.serve.ingress.door import TRUSTED
from justitia_ray.serve.ingress.estimates import Estimates
from justitia_ray.serve.ingress.fair_threads import FairThreads
from justitia_ray.serve.ingress.gateway import Gateway
from justitia_ray.serve.ingress.http_app import build_http_app
from justitia_ray.serve.ingress.inspection import InspectionCalls
from justitia_ray.serve.ingress.models import (
    SchedulerCalls,
    ServedModel,
    ServedModels,
)
from justitia_ray.serve.ingress.prefix_names import PrefixNames
from justitia_ray.serve.ingress.queue_client import QueueClient
from justitia_ray.serve.ingress.recognition import ApplicationFinder
from justitia_ray.serve.ingress.replica_calls import ReplicaCalls, StreamItem, end_task
from justitia_ray.serve.ingress.replica_links import ReplicaLinks
from justitia_ray.serve.ingress.submission import ApplicationSpecCache
from justitia_ray.serve.ingress.token_counter import TokenCounter
from justitia_ray.serve.ingress.waiting_streams import StreamOutlooks, silence_s
from justitia_ray.serve.ray_metrics import Exporter, RayMetrics, new_measures
from justitia_ray.serve.scheduler.handle import SchedulerLink, get_current_scheduler
from justitia_ray.serve.span_exporter import start_span_exporter
from justitia_ray.serve.transport.endpoint import dialer
from justitia_ray.serve.transport.handshake import Keyring, Peer
from justitia_ray.serve.transport.methods import REPLICA_METHODS, SCHEDULER_METHODS
from justitia_ray.units import ApplicationId, Epoch, ReplicaId


class ModelQueue:
    """Clients, gateway and metrics of one served model in an ingress process.

    Attributes:
        config: The model's configuration.
        client: Client of the model's queue.
        calls: Calls to the model's replicas.
        gateway: The model's gateway.
        scheduler_calls: Calls of the HTTP surface to the model's scheduler.

    Args:
        config: The model's configuration.
        scheduler: Handle of the model's scheduler actor.
        replicas: Handle of the deployment of the model's engines.
        predictor: Handle of the deployment of the model's predictor.
        counter: Counts the model's prompt tokens; `stop` closes it.
        specs: Specs of applications, shared by all models of the ingress.
        scheduler_link: The connection to the model's scheduler.
        links: The connections to the model's replicas.
        make_client: Creates the queue client; tests pass their own.
        replica_id: Serve's replica id of this ingress, for its metrics.
        backend: Exports the metrics; None: they are not exported.
        tell_new_scheduler: Sends a new scheduler the names that this ingress gave to applications.
        export_span: Receives the spans of traces; None: calls are not traced.
    """

    def __init__(
        self,
        config: AppConfig,
        scheduler: Any,
        replicas: Any,
        predictor: Any,
        counter: TokenCounter,
        specs: ApplicationSpecCache,
        scheduler_link: SchedulerLink,
        links: ReplicaLinks,
        *,
        make_client: Callable[..., QueueClient] = QueueClient,
        replica_id: ReplicaId = "",
        backend: MetricsBackend | None = None,
        tell_new_scheduler: Callable[[], Awaitable[None]] | None = None,
        export_span: Export | None = None,
    ) -> None:
        self.config = config
        self.calls = ReplicaCalls(links, replicas)
        self._scheduler = scheduler
        self._scheduler_link = scheduler_link
        self._counter = counter
        self._tell_new_scheduler = tell_new_scheduler
        self._learning: asyncio.Task[None] | None = None
        self._scheduling = SchedulingConfig()
        self._metrics = self._exporter = None
        if backend is not None and config.metrics.enabled:
            measures = new_measures(config, "ingress", replica_id)
            self._metrics = IngressMetrics(measures)
            self._exporter = Exporter(
                measures, self._set_gauges, backend, config.metrics.interval_s
            )
        self._estimates = Estimates(predictor, config.prediction, self._metrics)
        self._tracer: CallTracer | None = None
        if export_span is not None:
            self._tracer = CallTracer(
                ApplicationSampler(config.name, config.model.name, config.tracing.sample_ratio),
                export_span,
                config.model.name,
                self._request_outlooks,
                parent=config.tracing.parent,
            )
        self.client = make_client(
            scheduler_link,
            self._note_ended_application,
            self._prepare_scheduler,
            config.ingress.max_outstanding,
            config.ingress.submit_interval_s,
            None if self._metrics is None else self._metrics.note_opening,
            links.note_addresses,
        )
        self.gateway = Gateway(
            config,
            self.client,
            self.calls,
            self._estimates,
            counter,
            specs,
            StreamOutlooks(self._request_outlooks, silence_s(config.ingress.keepalive_s)),
            self._metrics,
            self._tracer,
        )
        self.scheduler_calls = SchedulerCalls(
            scheduler,
            self.client.pending,
            EndedByOwner(config.scheduler.application_idle_s),
        )

    def start(self) -> None:
        """Connect to the model's scheduler and predictor, and start exporting metrics."""
        self._learning = asyncio.get_running_loop().create_task(self.gateway.learn_context())
        self._estimates.start()
        self.client.start()
        if self._exporter is not None:
            self._exporter.start()

    async def stop(self) -> None:
        """Close the model's connections, and export metrics a last time."""
        if self._learning is not None:
            await end_task(self._learning)
        await self._estimates.stop()
        await self.client.stop()
        if self._exporter is not None:
            self._exporter.end()
        await self.calls.links.close()
        await self._scheduler_link.close()
        self._counter.close()

    async def reconfigure(self, scheduling: SchedulingConfig) -> None:
        """Apply new scheduling settings, and send them to the scheduler."""
        self._scheduling = scheduling
        self.gateway.submitter.tenant_weights = scheduling.tenant_weights
        self.gateway.submitter.tenants = scheduling.tenant_tree
        self.client.session.configured_epoch = await self._configure_scheduler()

    async def _request_outlooks(
        self, application_ids: tuple[ApplicationId, ...]
    ) -> Mapping[str, Any]:
        outlooks: Mapping[str, Any] = await self._scheduler_link.call("outlooks", application_ids)
        return outlooks

    def _set_gauges(self) -> None:
        assert self._metrics is not None
        self._metrics.measure(len(self.client.pending.inferences), self.client.session.epoch)

    def _note_ended_application(self, ended: EndApplication) -> None:
        self._estimates.note_ended_application(ended)
        if self._tracer is not None:
            self._tracer.end_application(ended)

    async def _prepare_scheduler(self) -> None:
        """Send a new scheduler the settings, recently ended applications, and names of sessions."""
        await self._configure_scheduler()
        await self.scheduler_calls.tell_ended()
        if self._tell_new_scheduler is not None:
            await self._tell_new_scheduler()

    async def _configure_scheduler(self) -> Epoch:
        """Send the scheduler the settings; return its epoch."""
        epoch: Epoch = await self._scheduler.configure.remote(self._scheduling.model_dump())
        return epoch


class Ingress:
    """Serve deployment of the ingress; `ingress_deployment` in `app` wraps it for Ray Serve."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        args: dict[str, Any],
        parts: Sequence[tuple[DeploymentHandle, DeploymentHandle]],
        load_prompt_counter: Callable[[AppConfig], CountPrompt],
    ) -> None:
        """Start the parts of every model and the HTTP application; Ray Serve awaits this.

        Args:
            args: `AppArgs` as a dict.
            parts: Handles of the deployments of each model's engines and predictor, in the order of
                the arguments.
            load_prompt_counter: Loads the function that counts a model's prompt tokens.
        """
        raise_descriptor_limit()
        give_memory_back()
        self._args: AppArgs = AppArgs.parse(args)
        placed = self._args.each_model()
        schedulers = await asyncio.gather(*(get_current_scheduler(p.config) for p in placed))
        context = serve.get_replica_context()
        section = self._args.scheduler
        specs = ApplicationSpecCache(section.application_idle_s, section.max_open_applications)
        backend = RayMetrics()
        self._spans = start_span_exporter(self._args, "ingress", context.replica_id.unique_id)
        self._queues: list[ModelQueue] = []
        counting = FairThreads()
        models = []
        me = Peer("ingress", context.replica_id.unique_id)
        finder: ApplicationFinder | None = None
        for place, scheduler, (replicas, predictor) in zip(placed, schedulers, parts, strict=True):
            keyring, transport = Keyring(), place.config.transport
            scheduler_link = SchedulerLink(
                scheduler, keyring, dialer(transport, me, keyring, SCHEDULER_METHODS).dial
            )
            tell_new_scheduler = None
            if finder is None:
                finder = ApplicationFinder(self._args.recognition, scheduler_link)
                tell_new_scheduler = finder.tell_new_scheduler
            queue = ModelQueue(
                place.config,
                scheduler,
                replicas,
                predictor,
                TokenCounter(
                    load_prompt_counter(place.config),
                    counting,
                    PrefixNames(place.config.engine.cache_isolation, keyring),
                ),
                specs,
                scheduler_link,
                ReplicaLinks(dialer(transport, me, keyring, REPLICA_METHODS, waits=True).dial),
                replica_id=context.replica_id.unique_id,
                backend=backend,
                tell_new_scheduler=tell_new_scheduler,
                export_span=None if self._spans is None else self._spans.export,
            )
            self._queues.append(queue)
            models.append(
                ServedModel(
                    place.config,
                    queue.gateway,
                    queue.scheduler_calls,
                    predictor,
                    InspectionCalls(place, context.app_name, scheduler, queue.calls, queue.client),
                )
            )
        self._access = AccessKeeper(self._args)
        assert finder is not None  # there is at least one model
        limit_s = await asyncio.to_thread(read_request_limit)
        self._http_app = build_http_app(
            ServedModels(models),
            specs,
            self._access.door,
            finder,
            limit_s,
        )
        await self._access.start()
        for queue in self._queues:
            queue.start()

    async def reconfigure(self, user_config: dict[str, Any] | None) -> None:
        """Apply new scheduling settings while the application runs; called by Ray Serve.

        Raises:
            ConfigError: If a setting is invalid; then no model's settings change.
        """
        shared = AppSettings.parse(user_config or {})
        settings = shared.each_model(self._args.model_names)
        if self._args.access is not None or shared.deprioritises:
            settings = {name: one.fair_between_tenants() for name, one in settings.items()}
        await asyncio.gather(
            *(queue.reconfigure(settings[queue.config.model.name]) for queue in self._queues)
        )

    async def call(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Handle a call over a Serve handle like HTTP; return status, headers and body."""
        items: list[Any] = [item async for item in self.stream(method, path, headers, body)]
        (status, head), *chunks = items
        return status, head, b"".join(chunks)

    async def stream(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncGenerator[StreamItem]:
        """Handle a streamed call over a Serve handle: yield (status, headers), then the body."""
        names = {name.lower(): value for name, value in headers.items()}
        names |= {"content-length": str(len(body))}
        try:
            raw = [(n.encode("latin-1"), value.encode("latin-1")) for n, value in names.items()]
        except UnicodeEncodeError as error:
            raise RequestError(
                f"headers: {shown_short(error.object)} holds what HTTP headers cannot: only"
                " characters of Latin-1 are allowed"
            ) from None
        answer = call_asgi(self._http_app, path, raw, body, method=method, more={TRUSTED: True})
        async with aclosing(answer) as messages:
            async for message in messages:
                if message["type"] == "http.response.start":
                    pairs = message.get("headers", [])
                    yield message["status"], {k.decode(): v.decode() for k, v in pairs}
                elif message.get("body"):
                    yield message["body"]

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Return the HTTP application; Ray Serve calls this after the constructor."""
        return self._http_app

    async def __del__(self) -> None:
        """Close all connections; Ray Serve calls this after the last call has ended."""
        await self._access.stop()
        await asyncio.gather(*(queue.stop() for queue in self._queues))
        if self._spans is not None:
            await self._spans.stop()
