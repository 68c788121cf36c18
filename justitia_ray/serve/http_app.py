"""The HTTP surface: OpenAI's inference paths, applications, health. FastAPI, without Ray.

A Serve handle reaches the same surface through the same application, called in process.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from justitia_ray.config import AppConfig, describe
from justitia_ray.errors import (
    AdmissionError,
    BodyTooLarge,
    JustitiaError,
    RequestError,
    UnknownApplication,
    shown_short,
)
from justitia_ray.protocol.openai_body import CHAT, COMPLETIONS
from justitia_ray.protocol.status import error_body, error_headers, status_of
from justitia_ray.serve.attempts import Attempts
from justitia_ray.serve.gateway import (
    APPLICATION_HEADER,
    DEFAULT_TENANT,
    TENANT_HEADER,
    Gateway,
    Opening,
)
from justitia_ray.serve.keepalive import KEEPALIVE
from justitia_ray.serve.predictor_http import PredictorCalls, add_predictor
from justitia_ray.serve.replica_calls import StreamItem

logger = logging.getLogger("ray.serve")


class ApplicationBody(BaseModel):
    """Body of `POST /v1/applications`."""

    model_config = ConfigDict(extra="forbid")

    application_class: str
    input: str = ""
    tenant: str = DEFAULT_TENANT
    weight: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None = None
    application_id: str | None = None


class SchedulerCalls:
    """What the HTTP surface asks of the scheduler directly."""

    def __init__(
        self,
        application: Callable[[str], Awaitable[dict[str, Any] | None]],
        close: Callable[[str], Awaitable[bool]],
        cancel: Callable[[str], Awaitable[bool]],
        status: Callable[[], Awaitable[dict[str, Any]]],
    ) -> None:
        self.application = application
        self.close = close
        self.cancel = cancel
        self.status = status


def build_http_app(
    config: AppConfig,
    gateway: Gateway,
    scheduler: SchedulerCalls,
    predictor: PredictorCalls | None = None,
) -> FastAPI:
    """Return the application; its only state are the attempts with an idempotency key."""
    section = config.ingress
    attempts = Attempts(section.retry_linger_s, section.retry_kept_s, section.retry_kept_bytes)
    app = FastAPI(title="justitia_ray", docs_url=None, redoc_url=None, openapi_url=None)
    _add_error_handlers(app)
    _add_health(app, config, scheduler)
    _add_applications(app, config, gateway, scheduler)
    if predictor is not None:
        add_predictor(app, predictor, partial(_read_body, most=section.max_body_bytes))

    async def infer(path: str, request: Request) -> Response:
        raw = await _read_body(request, config.ingress.max_body_bytes)
        body = gateway.parse(path, raw)
        headers = {name.lower(): value for name, value in request.headers.items()}
        key = headers.get("idempotency-key")
        if key is None:
            items = gateway.answer(path, headers, body)
        else:
            caller = (headers.get(TENANT_HEADER, ""), headers.get(APPLICATION_HEADER, ""), key)
            items = attempts.join(
                hashlib.sha256(json.dumps(caller).encode()).hexdigest(),
                path.encode() + raw,
                lambda: gateway.answer(path, headers, body),
            )
        if body.stream:
            return await _stream(items, config.ingress.keepalive_s)
        return await _unary(items)

    @app.post(CHAT)
    async def chat(request: Request) -> Response:
        return await infer(CHAT, request)

    @app.post(COMPLETIONS)
    async def completions(request: Request) -> Response:
        return await infer(COMPLETIONS, request)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        model = {
            "id": config.model.name,
            "object": "model",
            "created": 0,
            "owned_by": "justitia_ray",
            "max_model_len": gateway.max_model_len,
        }
        return {"object": "list", "data": [model]}

    return app


def _add_applications(
    app: FastAPI, config: AppConfig, gateway: Gateway, scheduler: SchedulerCalls
) -> None:
    @app.post("/v1/applications")
    async def open_application(request: Request) -> dict[str, Any]:
        # Read by hand, so that a body without a content type (plain curl) is JSON here too.
        raw = await _read_body(request, config.ingress.max_body_bytes)
        try:
            body = ApplicationBody.model_validate_json(raw)
        except ValidationError as error:
            param = str(error.errors()[0]["loc"][0]) if error.errors()[0]["loc"] else None
            raise RequestError(describe(error), param) from None
        arrival, tag = await gateway.open_application(Opening(**body.model_dump()))
        return {
            "application_id": arrival.application_id,
            "predicted_kv_token_time": arrival.predicted_kv_token_time,
            "virtual_finish_time": tag,
        }

    @app.get("/v1/applications/{application_id:path}")
    async def application(application_id: str) -> dict[str, Any]:
        found = await scheduler.application(application_id)
        if found is None:
            raise _unknown(application_id)
        return found

    @app.post("/v1/applications/{application_id:path}/close")
    async def close(application_id: str) -> dict[str, Any]:
        if not await scheduler.close(application_id):
            raise _unknown(application_id)
        return {"application_id": application_id, "closed": True}

    @app.delete("/v1/applications/{application_id:path}")
    async def cancel(application_id: str) -> dict[str, Any]:
        if not await scheduler.cancel(application_id):
            raise _unknown(application_id)
        return {"application_id": application_id, "cancelled": True}


def _add_health(app: FastAPI, config: AppConfig, scheduler: SchedulerCalls) -> None:
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        reason = None
        try:
            status = await asyncio.wait_for(scheduler.status(), 5.0)
            if not status["ready"] or status["degraded"] is not None:
                reason = f"scheduler: {status['degraded'] or 'not in office'}"
            elif not status["replicas"]:
                reason = "no replica pulls"
        except TimeoutError:
            reason = "scheduler: no answer within 5 s"
        except AdmissionError as error:
            reason = str(error)
        state: Literal["ready", "degraded"] = "ready" if reason is None else "degraded"
        return JSONResponse({"status": state, "reason": reason}, 200 if reason is None else 503)

    @app.get("/v1/status")
    async def status() -> dict[str, Any]:
        return {"model": config.model.name} | await scheduler.status()


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(JustitiaError)
    async def ours(request: Request, error: JustitiaError) -> JSONResponse:
        return JSONResponse(error_body(error), status_of(error)[0], error_headers(error))

    @app.exception_handler(HTTPException)
    async def unserved(request: Request, error: HTTPException) -> JSONResponse:
        message = f"{request.method} {request.url.path}: {error.detail}"
        body = {"error": {"message": message, "type": "NotFoundError", "param": None, "code": None}}
        return JSONResponse(body, error.status_code)

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> JSONResponse:
        # Starlette raises it again, so that Serve logs where it comes from.
        logger.error("request.failed path=%s error=%s", request.url.path, type(error).__name__)
        body = {"message": "the service failed to answer; its log says why"}
        error_type = {"type": "InternalServerError", "param": None, "code": None}
        return JSONResponse({"error": body | error_type}, 500)


async def _read_body(request: Request, most: int) -> bytes:
    """Return the body.

    Raises:
        BodyTooLarge: If it is too long; before any of it is read, if its length is declared.
        RequestError: If the connection ends before the body does.
    """
    too_large = BodyTooLarge(f"the body is longer than {most} bytes (ingress.max_body_bytes)")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > most:
        raise too_large
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise too_large
    except ClientDisconnect:
        raise RequestError("the connection ended before the body did") from None
    return bytes(body)


async def _unary(items: AsyncGenerator[StreamItem]) -> Response:
    async with aclosing(items):
        status, head = _as_head(await anext(items))
        chunks = [item async for item in items if isinstance(item, bytes)]
    return Response(b"".join(chunks), status, head)


async def _stream(items: AsyncGenerator[StreamItem], keepalive_s: float) -> Response:
    """Answer with a stream: with the replica's own status if it comes soon.

    While it does not, a stream of status 200 is begun and kept alive by comments; an error that
    comes later is an event in it.
    """
    first = asyncio.ensure_future(anext(items))
    try:
        await asyncio.wait([first], timeout=keepalive_s)
        if first.done():
            status, head = _as_head(first.result())
            return StreamingResponse(_chunks(items), status, head)
    except BaseException:
        await _abandon(first, items)
        raise
    waiting = _kept_alive(first, items, keepalive_s)
    return StreamingResponse(waiting, 200, {"content-type": "text/event-stream; charset=utf-8"})


async def _chunks(items: AsyncGenerator[StreamItem]) -> AsyncGenerator[bytes]:
    async with aclosing(items):
        async for item in items:
            if isinstance(item, bytes):
                yield item


async def _kept_alive(
    first: asyncio.Future[StreamItem], items: AsyncGenerator[StreamItem], keepalive_s: float
) -> AsyncGenerator[bytes]:
    try:
        while not first.done():
            yield KEEPALIVE
            await asyncio.wait([first], timeout=keepalive_s)
        try:
            status, _ = _as_head(first.result())
        except JustitiaError as error:
            yield f"data: {json.dumps(error_body(error))}\n\n".encode()
            return
        async for chunk in _chunks(items):
            yield chunk if status < 400 else b"data: " + chunk + b"\n\n"
    finally:
        await _abandon(first, items)


async def _abandon(first: asyncio.Future[StreamItem], items: AsyncGenerator[StreamItem]) -> None:
    first.cancel()
    with suppress(asyncio.CancelledError, StopAsyncIteration, JustitiaError):
        await first
    await items.aclose()


def _as_head(item: StreamItem) -> tuple[int, dict[str, str]]:
    if isinstance(item, bytes):
        raise TypeError("a stream must begin with its head")
    return item


def _unknown(application_id: str) -> UnknownApplication:
    return UnknownApplication(f"application {shown_short(application_id)} is not open")
