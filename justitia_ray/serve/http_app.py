"""The HTTP surface: inference, applications, predictor, health. FastAPI, without Ray.

A Serve handle reaches the same surface through the same application, called in process.
"""

import logging
from functools import partial

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from justitia_ray.errors import BodyTooLarge, JustitiaError, RequestError
from justitia_ray.observability.log_events import log_event
from justitia_ray.protocol.status import error_body, error_headers, status_of
from justitia_ray.serve.examination_http import add_examination
from justitia_ray.serve.http_applications import add_applications
from justitia_ray.serve.http_health import add_health
from justitia_ray.serve.http_inference import add_inference
from justitia_ray.serve.models import ServedModels
from justitia_ray.serve.openings import Openings
from justitia_ray.serve.predictor_http import add_predictor

logger = logging.getLogger("ray.serve")


def build_http_app(models: ServedModels, openings: Openings | None = None) -> FastAPI:
    """Return the application.

    Args:
        models: What is served.
        openings: What several models know each other's applications by; None with one.
    """
    section = models.first.config.ingress
    read_body = partial(_read_body, most=section.max_body_bytes)
    app = FastAPI(title="justitia_ray", docs_url=None, redoc_url=None, openapi_url=None)
    _add_error_handlers(app)
    add_health(app, models)
    add_applications(app, models, openings, read_body)
    add_predictor(app, models, read_body)
    add_examination(app, models)
    add_inference(app, models, read_body)
    return app


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
        reason = type(error).__name__
        log_event(logger, logging.ERROR, "request.failed", path=request.url.path, reason=reason)
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
