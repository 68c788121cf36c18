"""Error answers of the HTTP API: alike on FastAPI's routes and on the routes that bypass it."""

import logging
import random
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from justitia_ray.core.limits import LimitStanding
from justitia_ray.errors import AdmissionError, JustitiaError
from justitia_ray.observability.log_events import log_event
from justitia_ray.protocol.errors import (
    anthropic_error,
    error_headers,
    error_in_form,
    has_anthropic_form,
    openai_error,
    status_of,
)
from justitia_ray.protocol.rate_limits import limit_headers
from justitia_ray.serve.asgi import Message

logger = logging.getLogger("ray.serve")

UNFORESEEN = JustitiaError("the service failed to answer; its log says why")
"""Error that a caller gets for an unexpected exception."""


def route_path(scope: Message) -> str:
    """Return the path for matching routes; the authentication must check the same path."""
    path: str = scope["path"]
    prefix: str = scope.get("root_path", "")
    return path[len(prefix) :] if path == prefix or path.startswith(f"{prefix}/") else path


def error_response(
    path: str,
    error: JustitiaError,
    standings: Iterable[LimitStanding] = (),
    draw: Callable[[], float] = random.random,
) -> JSONResponse:
    """Return the HTTP answer to a call that failed with an error of this package.

    Args:
        path: The call's route.
        error: The failure.
        standings: Limits of the caller's tenant; the limit that the error names comes first.
        draw: Draws a number from 0 to 1, which spreads the callers' retries.
    """
    limit = error.limit if isinstance(error, AdmissionError) else None
    binding = None if limit is None else LimitStanding(**limit)
    headers = error_headers(error, draw) | headers_of_limits(path, standings, binding)
    return JSONResponse(error_in_form(path, error), status_of(error)[0], headers)


def headers_of_limits(
    path: str, standings: Iterable[LimitStanding], binding: LimitStanding | None = None
) -> dict[str, str]:
    """Return the response headers for a caller's rate limits, in the form of the path's API."""
    anthropic = has_anthropic_form(path)
    return limit_headers(standings, datetime.now(UTC), is_anthropic=anthropic, binding=binding)


def unforeseen_response(path: str, error: Exception) -> JSONResponse:
    """Log an unexpected exception and return its answer; the caller re-raises it for Serve.

    Args:
        path: Route of the call, which determines the form of the answer.
        error: The failure.
    """
    log_event(logger, logging.ERROR, "request.failed", path=path, reason=type(error).__name__)
    return JSONResponse(error_in_form(path, UNFORESEEN), 500)


def add_error_handlers(app: FastAPI) -> None:
    """Add handlers for errors that FastAPI's routes raise."""

    @app.exception_handler(JustitiaError)
    async def answer_package_error(request: Request, error: JustitiaError) -> JSONResponse:
        route_path: str = request.scope["route"].path  # without Serve's prefix
        return error_response(route_path, error)

    @app.exception_handler(HTTPException)
    async def answer_http_error(request: Request, error: HTTPException) -> JSONResponse:
        message = f"{request.method} {request.url.path}: {error.detail}"
        if allowed := (error.headers or {}).get("Allow"):
            message = f"{message}; {allowed} is allowed"
        if has_anthropic_form(route_path(request.scope)):
            content = anthropic_error(error.status_code, message)
        else:
            kind = "NotFoundError" if error.status_code == 404 else "BadRequestError"
            content = openai_error(message, kind)
        return JSONResponse(content, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def answer_unforeseen_error(request: Request, error: Exception) -> JSONResponse:
        return unforeseen_response(route_path(request.scope), error)
