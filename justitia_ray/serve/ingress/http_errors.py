"""Error answers of the HTTP surface: the same on FastAPI's routes and on those that pass it by."""

import logging

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from justitia_ray.errors import JustitiaError
from justitia_ray.observability.log_events import log_event
from justitia_ray.protocol.errors import error_headers, error_in_form, openai_error, status_of

logger = logging.getLogger("ray.serve")


def error_response(path: str, error: JustitiaError) -> JSONResponse:
    """Return the answer to a call on the route `path` that failed with an error of this service."""
    return JSONResponse(error_in_form(path, error), status_of(error)[0], error_headers(error))


def unforeseen_response(path: str, error: Exception) -> JSONResponse:
    """Log an error that nobody foresaw, and return its answer; raise it again, for Serve's log."""
    log_event(logger, logging.ERROR, "request.failed", path=path, reason=type(error).__name__)
    message = "the service failed to answer; its log says why"
    return JSONResponse(openai_error(message, "InternalServerError"), 500)


def add_error_handlers(app: FastAPI) -> None:
    """Let the routes of an application answer with these errors."""

    @app.exception_handler(JustitiaError)
    async def ours(request: Request, error: JustitiaError) -> JSONResponse:
        route_path: str = request.scope["route"].path  # without Serve's prefix
        return error_response(route_path, error)

    @app.exception_handler(HTTPException)
    async def unserved(request: Request, error: HTTPException) -> JSONResponse:
        message = f"{request.method} {request.url.path}: {error.detail}"
        content = openai_error(message, "NotFoundError")
        return JSONResponse(content, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> JSONResponse:
        return unforeseen_response(request.url.path, error)
