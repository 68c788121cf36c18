"""The Ingress deployment: HTTP for everybody, the same surface over a Serve handle for Python."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.handle import DeploymentHandle

from justitia_ray.config import parse_app_config, parse_scheduling_config
from justitia_ray.errors import AdmissionError, RequestError, shown_short
from justitia_ray.serve.asgi import call_asgi
from justitia_ray.serve.dispatcher import Dispatcher
from justitia_ray.serve.estimates import Estimates
from justitia_ray.serve.examination_http import ExaminationCalls, add_examination
from justitia_ray.serve.gateway import Gateway
from justitia_ray.serve.http_app import SchedulerCalls, build_http_app
from justitia_ray.serve.predictor_http import PredictorCalls
from justitia_ray.serve.replica_calls import ReplicaCalls
from justitia_ray.serve.returning_handle import ReturningHandle
from justitia_ray.serve.scheduler_actor import get_current_scheduler
from justitia_ray.serve.token_counter import load_token_counter

Head = tuple[int, dict[str, str]]


class Ingress:
    """Serve deployment; `ingress_deployment` in `app` makes Serve build its HTTP application."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: dict[str, Any], replicas: DeploymentHandle, predictor: DeploymentHandle
    ) -> None:
        """Find the scheduler and begin to listen.

        Args:
            config: `AppConfig` as a dict.
            replicas: Handle of the Replica deployment.
            predictor: Handle of the Predictor deployment.
        """
        self._config = parse_app_config(config)
        self._counter = load_token_counter(self._config)
        self._scheduler: ActorHandle = await get_current_scheduler(self._config)
        self._estimates = Estimates(predictor, self._config.prediction)
        section = self._config.ingress
        self._dispatcher = Dispatcher(
            ReturningHandle(self._scheduler),
            self._estimates.application_ended,
            self._configure,
            section.max_outstanding,
            section.submit_interval_s,
        )
        calls = ReplicaCalls(replicas)
        self._gateway = Gateway(
            self._config, self._dispatcher, calls, self._estimates, self._counter
        )
        self._http_app = build_http_app(
            self._config, self._gateway, self._scheduler_calls(), PredictorCalls(predictor)
        )
        app_name = serve.get_replica_context().app_name
        add_examination(
            self._http_app,
            ExaminationCalls(self._config, app_name, self._scheduler, calls, self._dispatcher),
        )
        self._estimates.start()
        self._dispatcher.start()

    async def reconfigure(self, user_config: dict[str, Any] | None) -> None:
        """Take other scheduling settings while the application runs.

        Raises:
            ConfigError: If a setting is not allowed; those in force stay.
        """
        self._gateway.scheduling = parse_scheduling_config(user_config or {})
        await self._configure()

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
        await self._estimates.stop()
        await self._dispatcher.stop()
        self._counter.close()

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

    async def _configure(self) -> None:
        await self._scheduler.configure.remote(self._gateway.scheduling.model_dump())

    def _scheduler_calls(self) -> SchedulerCalls:
        scheduler = self._scheduler

        async def ask(method: str, *arguments: str) -> Any:
            try:
                return await getattr(scheduler, method).remote(*arguments)
            except RayActorError:
                raise AdmissionError("the scheduler is being started again") from None
            except RayTaskError as error:
                raise AdmissionError(f"the scheduler cannot answer now: {error.cause}") from None

        async def application(application_id: str) -> dict[str, Any] | None:
            found: dict[str, Any] | None = await ask("application", application_id)
            return found

        async def close(application_id: str) -> bool:
            is_known = bool(await ask("close_application", application_id))
            self._dispatcher.note_closed(application_id)
            return is_known

        async def cancel(application_id: str) -> bool:
            return bool(await ask("cancel_application", application_id))

        async def status() -> dict[str, Any]:
            found: dict[str, Any] = await ask("status")
            return found

        return SchedulerCalls(application, close, cancel, status)
