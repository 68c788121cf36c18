"""HTTP application: routes, error answers, health, readiness and status; without Ray.

Calls over a Serve handle use the same application, in process.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from justitia_ray.errors import AdmissionError, DeadlineMissed, JustitiaError, RequestError
from justitia_ray.protocol.request_mapping import listed_aliases
from justitia_ray.protocol.status import SchedulerStatus, read_answer
from justitia_ray.serve.asgi import AsgiApp, Message, Receive, Send
from justitia_ray.serve.front import read_front
from justitia_ray.serve.ingress.body_room import BodyRoom
from justitia_ray.serve.ingress.console_feed import ConsoleHub, ModelFeed
from justitia_ray.serve.ingress.door import Door
from justitia_ray.serve.ingress.http_applications import add_applications
from justitia_ray.serve.ingress.http_body import BodyReader
from justitia_ray.serve.ingress.http_console import SNAPSHOTS, SnapshotStream, add_console
from justitia_ray.serve.ingress.http_deadline import within_time
from justitia_ray.serve.ingress.http_errors import add_error_handlers, error_response, route_path
from justitia_ray.serve.ingress.http_inference import inference_endpoints
from justitia_ray.serve.ingress.http_query import how_many
from justitia_ray.serve.ingress.http_usage import add_usage
from justitia_ray.serve.ingress.http_what_if import add_what_if_route
from justitia_ray.serve.ingress.models import ServedModel, ServedModels
from justitia_ray.serve.ingress.openapi import DESCRIPTION_PATH, description
from justitia_ray.serve.ingress.predictor_http import add_predictor, predictor_overview
from justitia_ray.serve.ingress.recognition import ApplicationFinder
from justitia_ray.serve.ingress.submission import ApplicationSpecCache
from justitia_ray.units import Seconds

_ANSWER_S: Seconds = 5.0


class HttpApp(FastAPI):
    """FastAPI application; its inference endpoints bypass FastAPI, which would cost 0.3 ms a call.

    The inference endpoints are FastAPI routes as well: FastAPI answers other methods, and Serve
    labels its metrics by route.

    Args:
        direct: The endpoints by method and path.
        door: Authenticates and authorizes callers.
        limit_s: Time limit for a call of the other routes; None: no limit.
    """

    def __init__(
        self,
        direct: Mapping[tuple[str, str], AsgiApp],
        door: Door,
        limit_s: Seconds | None = None,
    ) -> None:
        routes: list[BaseRoute] = [
            Route(path, endpoint, methods=[method]) for (method, path), endpoint in direct.items()
        ]
        super().__init__(
            title="justitia_ray",
            docs_url=None,
            redoc_url=None,
            openapi_url=DESCRIPTION_PATH,
            routes=routes,
        )
        self._direct = direct
        self._door = door
        self._limit_s = limit_s

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI description of the HTTP API."""
        if not self.openapi_schema:
            self.openapi_schema = description()
        return self.openapi_schema

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        path = route_path(scope)
        if scope["method"] == "HEAD" and path in ("", "/"):
            # Agent programs send HEAD / to find out whether the service runs.
            await Response()(scope, receive, send)
            return
        try:
            _check_query(scope.get("query_string", b""))
            await self._door.admit(scope, path)
        except JustitiaError as error:
            await error_response(path, error)(scope, receive, send)
            return
        endpoint = self._direct.get((scope["method"], path))
        if endpoint is not None:
            await endpoint(scope, receive, send)
            return
        try:
            async with within_time(scope, self._limit_s):
                await super().__call__(scope, receive, send)
        except DeadlineMissed as error:  # FastAPI's routes do not stream, so no byte was sent yet.
            await error_response(path, error)(scope, receive, send)


def _check_query(query: bytes) -> None:
    """Raise RequestError unless a query is UTF-8; the HTTP server passes on any bytes.

    Raises:
        RequestError: If the query is not UTF-8.
    """
    if not query.isascii():
        try:
            query.decode()
        except UnicodeDecodeError:
            raise RequestError("the query holds bytes that are not UTF-8") from None


def build_http_app(
    models: ServedModels,
    specs: ApplicationSpecCache,
    door: Door,
    finder: ApplicationFinder,
    limit_s: Seconds | None = None,
) -> HttpApp:
    """Return the HTTP application of an ingress.

    Args:
        models: The served models.
        specs: Cache of application specs, shared by all models.
        door: Authenticates and authorizes callers.
        finder: Finds the application of each inference.
        limit_s: Time limit for a call (`http_deadline`); None: no limit.
    """
    section = models.first.config.ingress
    bodies = BodyReader(section.max_body_bytes, BodyRoom(section.max_body_bytes_held))
    inferences = inference_endpoints(models, bodies, finder, limit_s)
    feeds = {m.name: ModelFeed(m.name, m.scheduler, partial(predictor_overview, m)) for m in models}
    direct: dict[tuple[str, str], AsgiApp] = {
        ("POST", path): endpoint for path, endpoint in inferences.items()
    }
    direct["GET", SNAPSHOTS] = SnapshotStream(models, ConsoleHub(feeds), limit_s)
    app = HttpApp(direct, door, limit_s)
    add_error_handlers(app)
    _add_health(app, models)
    add_applications(app, models, specs, bodies)
    add_predictor(app, models, bodies)
    add_console(app, models)
    add_what_if_route(app, models, bodies)
    return app


def _add_health(app: FastAPI, models: ServedModels) -> None:
    """Add the routes `/healthz`, `/readyz`, `/v1/models` and the operators' views.

    `/v1/examination` contains ids of applications, which callers may have chosen, but no texts.
    """

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Return `ok` if this process answers."""
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz(model: str | None = None) -> JSONResponse:
        """Return whether inferences can run; status 503 if a model cannot run inferences."""
        asked = models.chosen(model)
        reasons = await asyncio.gather(*(_not_ready(m) for m in asked))
        told = [
            reason if models.only is not None else f"model {m.name}: {reason}"
            for m, reason in zip(asked, reasons, strict=True)
            if reason is not None
        ]
        answer = {"status": "degraded" if told else "ready", "reason": "; ".join(told) or None}
        return JSONResponse(answer, 503 if told else 200)

    @app.get("/v1/status")
    async def status(applications: str = "0", model: str | None = None) -> dict[str, Any]:
        """Return each scheduler's state with its first applications, as many as requested."""
        most = how_many(applications, "applications")
        if (single := models.single(model)) is not None:
            return await _model_status(single, most)
        answers = await models.ask_each(lambda m: _status_or_error(m, most))
        return {"ready": all(told["ready"] for told in answers.values()), "models": answers}

    @app.get("/v1/examination")
    async def examination(model: str | None = None) -> dict[str, Any]:
        """Return the reports of all processes on leases, tags and applications: ids, no texts."""
        if (single := models.single(model)) is not None:
            return await _inspect_model(single)
        return {"models": await models.ask_each(_inspect_model)}

    add_usage(app, models)

    @app.get("/v1/models")
    async def model_list() -> dict[str, Any]:
        """Return all names of the models, in a form for OpenAI's and Anthropic's clients.

        Aliases that are patterns are not listed.
        """
        data = [
            _model_card(m, name)
            for m in models
            for name in (*m.config.model.names, *listed_aliases(m.config.model.aliases))
        ]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]}
        return {"object": "list", "data": data, "has_more": False, **ends}

    @app.get("/v1/models/{name:path}")
    async def model_card(name: str) -> dict[str, Any]:
        """Return one model by one of its names, or by a name that matches a pattern of aliases."""
        return _model_card(models.named(name), name)


def _model_card(model: ServedModel, name: str) -> dict[str, Any]:
    card = {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "justitia_ray",
        "max_model_len": model.gateway.max_model_len,
        "type": "model",
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": model.gateway.max_model_len,
    }
    return card if name == model.name else card | {"parent": model.name}


async def _not_ready(model: ServedModel) -> str | None:
    try:
        answer = await asyncio.wait_for(model.scheduler.status(0), _ANSWER_S)
    except TimeoutError:
        return f"scheduler: no answer within {_ANSWER_S:g} s"
    except AdmissionError as error:
        return str(error)
    status = read_answer(SchedulerStatus, answer, "status")
    if not status.ready or status.degraded is not None:
        return f"scheduler: {status.degraded or 'not in office'}"
    states = {replica.state for replica in status.replicas.values()}
    if states == {"stalled"}:
        return "all replicas are stalled: their engines have work and make no steps"
    scaling = model.config.autoscaling
    if states or (scaling is not None and scaling.min_replicas == 0):
        return None  # only a call starts the first replica
    return "no replica pulls"


async def _inspect_model(model: ServedModel) -> dict[str, Any]:
    return (await model.inspection.inspect()).model_dump(mode="json")


async def _model_status(model: ServedModel, applications: int) -> dict[str, Any]:
    told = await model.scheduler.status(applications)
    front = read_front().model_dump(include={"kind", "max_connections"})
    return {"model": model.name, **told, "front": front}


async def _status_or_error(model: ServedModel, applications: int) -> dict[str, Any]:
    """Return a model's status or its error, so that a failing model does not hide other models."""
    try:
        return await asyncio.wait_for(_model_status(model, applications), _ANSWER_S)
    except TimeoutError:
        reason = f"no answer within {_ANSWER_S:g} s"
    except AdmissionError as error:
        reason = str(error)
    return {"model": model.name, "ready": False, "degraded": reason}
